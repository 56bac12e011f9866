//! Every kernel and probe through the real toolchain, without a device: no spills, no scratch, waves of 64, shared
//! memory within what a workgroup has.
//!
//! `cargo test -p assay-hip --test code_objects -- --ignored`. ASSAY_HIP_ARCH names the targets, HIPCC
//! the compiler.

use assay_hip::probe::PROBES;
use assay_hip::{code_object, kernels};

#[test]
#[ignore = "needs hipcc: `.ci/run` installs it and runs this with --ignored"]
fn kernels_neither_spill_nor_use_scratch_and_run_in_waves_of_64() {
    let archs =
        std::env::var("ASSAY_HIP_ARCH").unwrap_or_else(|_| "gfx906,gfx908,gfx90a".to_owned());
    let all = kernels().iter().map(|kernel| (kernel.name, kernel.source));
    for (name, source) in all.chain(PROBES.iter().map(|probe| (probe.name, probe.source))) {
        for arch in archs.split([',', ';', ' ']).filter(|arch| !arch.is_empty()) {
            let functions =
                code_object::resources(source, arch).unwrap_or_else(|e| panic!("{name}: {e}"));
            for f in functions {
                eprintln!(
                    "{arch} {}: {} VGPRs, {} SGPRs, {} bytes of LDS",
                    f.function, f.vgprs, f.sgprs, f.lds
                );
                assert_eq!(f.complaints(), [""; 0], "{arch} {}", f.function);
            }
        }
    }
}

#[test]
#[ignore = "needs hipcc: `.ci/run` installs it and runs this with --ignored"]
fn a_target_of_the_dtk_alone_is_said_to_be_one() {
    let kernel = &kernels()[0];
    match code_object::resources(kernel.source, "gfx928") {
        // A DTK's hipcc compiles it.
        Ok(functions) => assert!(functions.iter().all(|f| f.complaints().is_empty())),
        Err(e) => assert!(e.to_string().contains("DTK"), "{e}"),
    }
}
