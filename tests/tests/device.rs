//! The kernels on a device: `cargo test --features hip`. Without one they are skipped, never passed.
#![cfg(feature = "hip")]

use assay_verify::judge::Verdict;
use assay_verify::suite::{Profile, check_device};

#[test]
fn kernels_pass_on_the_device_or_say_that_there_is_none() {
    for kernel in assay_hip::kernels() {
        let report = check_device(kernel, 1, Profile::Standard, &|| {})
            .unwrap_or_else(|e| panic!("{}: {e:#}", kernel.name));
        match &report.judgement.verdict {
            Verdict::Skipped { reason } => eprintln!("{}: skipped: {reason}", kernel.name),
            verdict => assert!(verdict.is_pass(), "{}: {verdict:?}", kernel.name),
        }
    }
}
