//! Whether blocks of more than 256 threads run whole.

use super::{Reading, findings, words};
use crate::backend::Backend;
use crate::error::Error;
use crate::finding::LaunchStatus;
use crate::options::LaunchOptions;

/// Threads a block: a wave, the usual bound, above it, and the most that HIP allows.
const THREADS: [usize; 5] = [64, 256, 320, 512, 1024];
const BLOCKS: usize = 3;

/// Launches blocks of each size, in which every thread writes its index.
///
/// # Errors
/// When the backend cannot run the probe. A launch that is refused, hangs or fails is a reading.
pub fn measure(backend: &Backend, options: &LaunchOptions) -> Result<Vec<Reading>, Error> {
    THREADS.iter().map(|&threads| block(backend, options, threads)).collect()
}

fn block(backend: &Backend, options: &LaunchOptions, threads: usize) -> Result<Reading, Error> {
    let what = format!("block.{threads}_threads");
    let n = BLOCKS * threads;
    let failed = |reads: &str, said: String| -> Result<Reading, Error> {
        Ok(Reading::new(&what, reads, said).found(findings::CANARY))
    };
    let launched =
        match words::launch(backend, options, "probe_canary", threads as i32, &vec![[0; 3]; n]) {
            Ok(launched) => launched,
            // The runtime's answer to a launch that it took, or to one after it.
            Err(e @ Error::Hip { .. }) => return failed("failed", e.to_string()),
            Err(e) => return Err(e),
        };
    match launched.report.status {
        LaunchStatus::Completed => {}
        LaunchStatus::Refused(code) => {
            return failed("refused", format!("the launcher returned hipError_t {code}"));
        }
        LaunchStatus::Hung => return failed("hang", "the launch did not end".to_owned()),
        LaunchStatus::Aborted => {
            let said: Vec<String> =
                launched.report.findings.iter().map(ToString::to_string).collect();
            return failed("failed", said.join("; "));
        }
    }
    let written = words::words(&launched);
    let right = written.iter().enumerate().filter(|&(i, &word)| word == i as u32).count();
    if right == n {
        return Ok(Reading::new(&what, "every thread ran", "safe under `__launch_bounds__(1024)`")
            .over(&written));
    }
    let wrong = written.iter().enumerate().find(|&(i, &word)| word != i as u32);
    let first = wrong.map_or(0, |(i, _)| i);
    let missing = written.iter().filter(|&&word| word == words::UNWRITTEN).count();
    let meaning = format!(
        "{missing} threads wrote nothing, first wrong is thread {} of block {}: launch no more than \
         the largest size that ran whole",
        first % threads,
        first / threads
    );
    let reads = format!("{right} of {n} threads ran");
    Ok(Reading::new(&what, reads, meaning).over(&written).found(findings::CANARY))
}
