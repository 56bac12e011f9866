//! Commands end on hosts with many CPUs, and say there what they say anywhere.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use assay_tests::{cli, golden};

/// Far longer than any of these takes.
const HANGS: Duration = Duration::from_secs(120);

/// Exit code and text of a diff with so many threads.
fn diff(trace: &str, threads: usize) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.txt");
    let mut command = Command::new(cli::binary());
    command.arg("diff").arg(golden::path("checkpoints/tiny-qwen3"));
    command.arg(golden::path("traces").join(trace));
    command.env("RAYON_NUM_THREADS", threads.to_string());
    command.stdout(std::fs::File::create(&report).expect("a file")).stderr(Stdio::null());
    let (mut child, start) = (command.spawn().expect("assay starts"), Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().expect("its state") {
            break status;
        }
        if start.elapsed() > HANGS {
            child.kill().expect("it runs");
            panic!("{trace} with {threads} threads has not ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = std::fs::read_to_string(&report).expect("what it printed");
    (status.code().expect("an exit code"), text)
}

/// A thread that waits for others takes up their work: it must hold nothing that this work waits for.
#[test]
fn a_diff_with_many_threads_ends_and_says_the_same() {
    for (trace, code) in [("tiny-qwen3/f32", 0), ("faults/fault-13", 1)] {
        let alone = diff(trace, 1);
        assert_eq!(alone.0, code, "{}", alone.1);
        for threads in [3, 8, 64] {
            assert!(diff(trace, threads) == alone, "{trace} with {threads} threads");
        }
    }
}
