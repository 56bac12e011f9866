//! The kernels on a device: `cargo test --features hip`. Without one they are skipped, never passed;
//! `ASSAY_REQUIRE_DEVICE=1` makes that a failure.
#![cfg(feature = "hip")]

use std::io::Write;

use assay_hip::probe::{PROBES, findings};
use assay_hip::{Backend, Error, LaunchOptions, vendor};
use assay_verify::judge::Verdict;
use assay_verify::suite::{Profile, check_device, check_vendor};

/// Says that something was skipped; fails where a device is required.
fn skip(what: &str, reason: &str) {
    let required = std::env::var("ASSAY_REQUIRE_DEVICE").is_ok_and(|v| v != "0" && !v.is_empty());
    assert!(!required, "{what}: {reason}, but ASSAY_REQUIRE_DEVICE is set");
    // Past the capture of a test that passes: a skip is said.
    let _ = writeln!(std::io::stderr(), "{what}: skipped: {reason}");
}

/// Readings after which nothing that runs there can be trusted, or that a probe cannot read. Others, such as
/// an f32 product in TF32, are the device's own. A call that fails is an error of the probe.
const FATAL_READINGS: &[&str] = &["matrix.layout", findings::CANARY, findings::UNEXPLAINED];

/// Findings that say a library did not run, or touched what is not its own; others are about its numbers.
fn is_fatal_of_library(name: &str) -> bool {
    name == "library_error" || name == "launch_refused" || name.starts_with("memory.")
}

#[test]
fn kernels_pass_on_the_device_or_say_that_there_is_none() {
    for kernel in assay_hip::kernels() {
        let report = check_device(kernel, 1, Profile::Standard, &|| {})
            .unwrap_or_else(|e| panic!("{}: {e:#}", kernel.name));
        match &report.judgement.verdict {
            Verdict::Skipped { reason } => skip(kernel.name, reason),
            verdict => assert!(verdict.is_pass(), "{}: {verdict:?}", kernel.name),
        }
    }
}

#[test]
fn probes_measure_the_device_or_say_that_there_is_none() {
    match Backend::device() {
        Ok(device) => {
            for probe in PROBES {
                let readings = (probe.measure)(&device, &LaunchOptions::default())
                    .unwrap_or_else(|e| panic!("{}: {e}", probe.name));
                for r in &readings {
                    eprintln!("{}: {} ({})", r.what, r.reads, r.meaning);
                }
                let fatal = |finding: &str| FATAL_READINGS.contains(&finding);
                let fatal: Vec<_> =
                    readings.iter().filter(|r| r.finding.is_some_and(fatal)).collect();
                assert!(fatal.is_empty(), "{}: {fatal:#?}", probe.name);
            }
        }
        Err(Error::NoDevice { reason }) => skip("probes", &format!("no device: {reason}")),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn libraries_are_checked_on_the_device_or_say_what_is_missing() {
    for subject in vendor::subjects() {
        let name = subject.kernel.name;
        let report = check_vendor(subject, 1, Profile::Power, &|| {})
            .unwrap_or_else(|e| panic!("{name}: {e:#}"));
        match &report.judgement.verdict {
            Verdict::Skipped { reason } => skip(name, reason),
            // Wrong numbers are findings about the library; to have judged nothing is one here.
            verdict => {
                let findings = verdict.findings();
                eprintln!("{name}: {} {findings:?}", verdict.word());
                assert!(verdict.is_pass() || !findings.is_empty(), "{name}");
                let fatal: Vec<_> =
                    findings.iter().filter(|f| is_fatal_of_library(&f.name)).collect();
                assert!(fatal.is_empty(), "{name}: {fatal:#?}");
            }
        }
    }
}
