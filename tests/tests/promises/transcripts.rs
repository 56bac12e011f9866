//! The transcripts in the manual are what the commands print.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use assay_tests::{cli, golden};

/// A command of a transcript and the lines that it is said to print.
#[derive(Debug)]
struct Step {
    command: String,
    output: Vec<String>,
}

/// The commands of a page, by heading of the second level.
fn sections(page: &str) -> Vec<(String, Vec<Step>)> {
    let mut out: Vec<(String, Vec<Step>)> = Vec::new();
    let mut blank = 0;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            out.push((heading.to_string(), Vec::new()));
        }
        let Some((_, steps)) = out.last_mut() else { continue };
        match line.strip_prefix("    ") {
            Some(code) => match code.strip_prefix("$ ") {
                Some(command) => {
                    steps.push(Step { command: command.to_string(), output: Vec::new() });
                }
                None => {
                    let step = steps.last_mut().expect("a transcript begins with a command");
                    step.output.extend(std::iter::repeat_n(String::new(), blank));
                    step.output.push(code.trim_end().to_string());
                }
            },
            None if line.is_empty() => {
                blank += 1;
                continue;
            }
            // What follows text is another transcript.
            None => {}
        }
        blank = 0;
    }
    out
}

/// Whether the lines that were printed are those of the page, where `...` stands for any, also at the end of a line.
fn fits(page: &[String], printed: &[&str]) -> bool {
    let Some((first, rest)) = page.split_first() else {
        return printed.iter().all(|l| l.is_empty());
    };
    if first == "..." {
        return (0..=printed.len()).any(|n| fits(rest, &printed[n..]));
    }
    let Some((line, others)) = printed.split_first() else { return false };
    let same = match first.strip_suffix("...") {
        Some(beginning) => line.starts_with(beginning),
        None => line == first,
    };
    same && fits(rest, others)
}

fn holds(section: &str) {
    let page = fs::read_to_string(golden::path("../docs/incidents.md")).expect("the page");
    let all = sections(&page);
    let (_, steps) = all.iter().find(|(heading, _)| heading == section).expect("a section");
    assert!(steps.iter().any(|s| s.command.starts_with("assay ")), "{section}: {steps:?}");
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["golden", "hip"] {
        symlink(golden::path("..").join(name), dir.path().join(name)).expect("a link");
    }
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    symlink(cli::binary(), bin.join("assay")).expect("a link");
    steps.iter().for_each(|step| runs(step, dir.path(), &bin));
}

fn runs(step: &Step, dir: &Path, bin: &Path) {
    let path = std::env::var("PATH").expect("a path");
    let done = Command::new("sh")
        .args(["-c", &step.command])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", bin.display()))
        .output()
        .expect("sh runs");
    let printed = String::from_utf8(done.stdout).expect("text");
    let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        fits(&step.output, &lines),
        "$ {}\n-- the page:\n{}\n-- printed:\n{printed}\n{errors}",
        step.command,
        step.output.join("\n")
    );
}

#[test]
fn head_size_80() {
    holds("2. Head size 80");
}

#[test]
fn in_production() {
    holds("4. In production");
}

#[test]
#[ignore = "a minute of the judge: cargo test -p assay-tests transcripts -- --ignored"]
fn two_hundred_exclamation_marks() {
    holds("1. Two hundred `!`");
}

#[test]
#[ignore = "half a minute of the judge: cargo test -p assay-tests transcripts -- --ignored"]
fn the_chain_is_alive() {
    holds("3. The chain is alive");
}

#[test]
fn what_a_page_leaves_out_is_found_and_what_it_says_is_compared() {
    let page = |lines: &[&str]| lines.iter().map(|l| l.to_string()).collect::<Vec<_>>();
    assert!(fits(&page(&["a", "...", "d"]), &["a", "b", "c", "d"]));
    assert!(fits(&page(&["a b ...", "..."]), &["a b c", "d"]));
    for wrong in [&["a", "...", "e"][..], &["a", "c"], &["a b c d ..."], &["a"]] {
        assert!(!fits(&page(wrong), &["a", "b", "c", "d"]), "{wrong:?}");
    }
}
