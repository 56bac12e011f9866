//! The kernels on a device: `cargo test --features hip`. Without one they are skipped, never passed;
//! `ASSAY_REQUIRE_DEVICE=1` makes that a failure.
#![cfg(feature = "hip")]

use assay_verify::judge::Verdict;
use assay_verify::suite::{Profile, check_device};

/// Says that something was skipped; fails where a device is required.
fn skip(what: &str, reason: &str) {
    let required = std::env::var("ASSAY_REQUIRE_DEVICE").is_ok_and(|v| v != "0" && !v.is_empty());
    assert!(!required, "{what}: {reason}, but ASSAY_REQUIRE_DEVICE is set");
    eprintln!("{what}: skipped: {reason}");
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
