//! `--html`: one self-contained page, and what a real browser makes of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use assay_tests::{cli, golden};

/// The page of a recording with one wrong op.
fn of_a_recording(dir: &Path) -> PathBuf {
    let file = dir.join("report.html");
    let model = golden::path("checkpoints/tiny-qwen3");
    let trace = golden::path("traces/faults/fault-13");
    let paths = ["diff".as_ref(), model.as_os_str(), trace.as_os_str()];
    let run = cli::assay(paths.into_iter().chain(["--html".as_ref(), file.as_os_str()]));
    assert_eq!(run.code, 1, "{run:#?}");
    file
}

/// The page of a kernel with a known fault, and the fault's name.
fn of_a_kernel(dir: &Path) -> (PathBuf, String) {
    let (file, source) = (dir.join("report.html"), dir.join("kernel.hip"));
    let edits = assay_verify::mutants::edits().expect("anchors");
    let broken = edits.iter().find(|e| e.name.ends_with("zero_without_plus_one")).expect("listed");
    std::fs::write(&source, &broken.source).expect("a source");
    let args = ["check", "--kernel", broken.kernel.name, "--source"].map(AsRef::as_ref);
    let paths = [source.as_os_str(), "--html".as_ref(), file.as_os_str()];
    let run = cli::assay(args.into_iter().chain(paths));
    assert_eq!(run.code, 1, "{run:#?}");
    (file, broken.expected.clone().expect("a mutant has one"))
}

#[test]
fn the_page_names_the_fault_and_needs_nothing_else() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let html = std::fs::read_to_string(of_a_recording(dir.path())).expect("the page");
    assert!(html.contains("matmul.gain") && html.contains("layers.0.o_proj"));
    assert!(html.contains("<svg class=\"map\""), "no heat map");
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "the page asks for `{outside}`");
    }
    cli::refused(["check", "--html", "-"], &["--html", "file"]);
    cli::refused(["check", "--html", "/nowhere/report.html"], &["/nowhere/report.html"]);
}

/// Names of Chromium's command, and of its relatives.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

#[test]
#[ignore = "needs Chromium: cargo test -p assay-tests html_report -- --ignored"]
fn a_browser_draws_the_page_without_a_complaint() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (file, fault) = of_a_kernel(dir.path());
    let shot = dir.path().join("shot.png");
    let profile = dir.path().join("profile");
    let browse = |name: &&str, what: &str| {
        Command::new(name)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
            .args(["--window-size=1200,1600", "--virtual-time-budget=5000"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(what)
            .arg(format!("file://{}", file.display()))
            .output()
            .ok()
    };
    let run = BROWSERS.iter().find_map(|name| browse(name, "--dump-dom"));
    let run = run.unwrap_or_else(|| panic!("none of {BROWSERS:?} is installed"));
    let (dom, log) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{log}");
    // Messages of the page's console are logged as CONSOLE.
    assert!(!log.contains("CONSOLE"), "{log}");
    assert!(dom.contains(&fault), "{fault}: {dom}");
    // The page's script counts the paths that have a size on the screen.
    let drawn: Vec<&str> =
        dom.split("data-drawn=\"").skip(1).filter_map(|s| s.split('"').next()).collect();
    assert_eq!(drawn.len(), 1, "one heat map");
    assert!(drawn[0].parse::<usize>().is_ok_and(|n| n > 0), "the heat map is empty: {drawn:?}");
    let shoot = format!("--screenshot={}", shot.display());
    assert!(BROWSERS.iter().find_map(|name| browse(name, &shoot)).is_some());
    assert!(shot.metadata().is_ok_and(|m| m.len() > 10_000), "the screenshot is empty");
}
