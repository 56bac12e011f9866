//! The kernels on a device: `cargo test --features hip`. Without one they are skipped, never passed;
//! `ASSAY_REQUIRE_DEVICE=1` makes that a failure.
#![cfg(feature = "hip")]

use std::io::Write;

use assay_hip::probe::PROBES;
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
                // What is unexplained is a defect of the probe; other findings are the device's.
                let unexplained = readings.iter().find(|r| r.reads == "unexplained");
                assert!(unexplained.is_none(), "{unexplained:?}");
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
            // What is wrong there is a finding about the library; to have judged nothing is one here.
            verdict => {
                eprintln!("{name}: {} {:?}", verdict.word(), verdict.findings());
                assert!(verdict.is_pass() || !verdict.findings().is_empty(), "{name}");
            }
        }
    }
}
