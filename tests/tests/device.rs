//! The kernels on a device: `cargo test --features hip`. Without one they are skipped, never passed.
#![cfg(feature = "hip")]

use assay_hip::{Backend, Error};
use assay_verify::suite::{Profile, check_backend};

#[test]
fn kernels_pass_on_the_device_or_say_that_there_is_none() {
    let backend = match Backend::device() {
        Ok(backend) => backend,
        Err(Error::NoDevice { reason }) => {
            eprintln!("skipped: no device ({reason})");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    for kernel in assay_hip::kernels() {
        let report = check_backend(kernel, &backend, 1, Profile::Full, &|| {})
            .unwrap_or_else(|e| panic!("{}: {e:#}", kernel.name));
        let verdict = &report.judgement.verdict;
        assert!(verdict.is_pass(), "{}: {verdict:?}", kernel.name);
    }
}
