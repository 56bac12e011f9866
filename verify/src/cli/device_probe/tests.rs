//! What fails is a finding of its own probe.

use assay_hip::{BackendKind, LaunchStatus, Launched};

use super::*;
use crate::ledger::Ended;

fn identity() -> Identity {
    Identity {
        kernel: "probe.vector".into(),
        backend: BackendKind::Hip,
        arch: "gfx906".into(),
        source: "source".into(),
        code: "code".into(),
        toolchain: "hipcc".into(),
        runtime: "HIP".into(),
    }
}

fn failures() -> [(Error, &'static str); 4] {
    let name = String::from("hipErrorIllegalAddress");
    let status = String::from("rocblas_status_internal_error (6)");
    let (what, probe) = (String::from("the launch ended as Hung"), String::from("the probe"));
    [
        (Error::Hip { call: "hipDeviceSynchronize", code: 700, name }, "probe.failed"),
        (Error::Launch { kernel: "probe_vector", probe, what }, "probe.failed"),
        (Error::Memory { what: "out".into(), bytes: 4 }, "probe.failed"),
        (Error::Library { call: "rocblas_sgemm", status }, "library_error"),
    ]
}

#[test]
fn a_call_that_fails_is_a_finding_and_stops_no_other_probe() {
    for (error, name) in failures() {
        let said = error.to_string();
        let measured =
            Measured::of("vector".into(), Some(identity()), Err(error)).expect("no error");
        assert!(measured.skipped.is_none() && measured.readings.is_empty());
        assert_eq!(measured.findings, [Finding::new(name, said)]);
        let entry = measured.entry().expect("an entry");
        assert_eq!((entry.outcome.result, entry.outcome.word()), (Ended::Fail, name));
        assert_eq!((entry.identity, entry.evidence.outputs), (identity(), None));
    }
    let unknown = failures().map(|(error, _)| Measured::of("vector".into(), None, Err(error)));
    assert!(unknown.into_iter().all(|m| m.expect("no error").entry().is_none()));
    // What no device and no library answers is an error of the program or of this machine.
    let compiler = Error::NoCompiler { tried: "c++".into() };
    assert!(Measured::of("vector".into(), None, Err(compiler)).is_err());
    let skipped = Error::NoDevice { reason: "hipErrorNoDevice".into() };
    let skipped = Measured::of("vector".into(), Some(identity()), Err(skipped)).expect("skipped");
    assert!(skipped.skipped.is_some() && skipped.findings.is_empty() && skipped.entry().is_none());
}

/// Zeros, after a launch that was refused.
fn refused(_: &Backend, case: &Case, _: &LaunchOptions) -> Result<Launched, Error> {
    let shape = [case.tensors["x"].shape()[0], case.tensors["weight"].shape()[0]];
    let y = Tensor::from_f64(case.dtype, &shape, &vec![0.0; shape[0] * shape[1]]);
    let report = LaunchReport { status: LaunchStatus::Refused(1), findings: Vec::new() };
    Ok(Launched { outputs: vec![("y", y)], report })
}

#[test]
fn what_a_refused_product_left_is_no_reading() {
    let canary = assay_hip::probe::probe("canary").expect("a probe");
    let backend = Backend::emulated(canary.source, Mode::Plain).expect("it compiles");
    let gemm = assay_hip::kernel("gemm_bf16").expect("a kernel");
    let kernel = Kernel { run: refused, ..gemm.clone() };
    let (identity, given) =
        product(&backend, &kernel, ("gemm_bf16", Dtype::Bf16)).expect("an identity");
    assert_eq!(identity.kernel, "probe.gemm_bf16");
    let error = given.expect_err("nothing was computed").to_string();
    assert!(error.starts_with("gemm_bf16 at the device probe: "), "{error}");
    assert!(error.contains("Refused(1)"), "{error}");
}
