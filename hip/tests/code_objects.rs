//! Every kernel and probe through the real toolchain, without a device: no spills, no scratch, waves of 64, shared
//! memory within what a workgroup has.
//!
//! `cargo test -p assay-hip --test code_objects -- --ignored`. ASSAY_HIP_ARCH names the targets, HIPCC
//! the compiler.

use std::io::Write;
use std::process::{Command, Stdio};

use assay_hip::probe::PROBES;
use assay_hip::{Arch, Matrix, code_object, kernels};

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

/// Built-in kernels with a matrix path.
fn with_matrix_paths() -> impl Iterator<Item = &'static assay_hip::Kernel> {
    kernels().iter().filter(|kernel| kernel.builds().len() > 1)
}

/// A line that makes a compilation fail unless the macros chose this path.
fn demand(matrix: Matrix) -> &'static str {
    match matrix {
        Matrix::None => "\n#ifdef ASSAY_MATRIX\n#error no matrix path expected\n#endif\n",
        Matrix::Mfma => "\n#ifndef ASSAY_MATRIX_MFMA\n#error MFMA expected\n#endif\n",
        Matrix::Mmac => "\n#ifndef ASSAY_MATRIX_MMAC\n#error MMAC expected\n#endif\n",
    }
}

/// How many MFMA instructions a code object has, by LLVM's disassembler; none where there is none.
fn mfma_instructions(elf: &[u8]) -> Option<usize> {
    let tools = ["llvm-objdump", "llvm-objdump-15", "/opt/rocm/llvm/bin/llvm-objdump"];
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(elf).expect("written");
    let text = tools.iter().find_map(|tool| {
        let run = Command::new(tool).arg("-d").arg(file.path()).stderr(Stdio::null()).output();
        run.ok().filter(|run| run.status.success())
    })?;
    let text = String::from_utf8_lossy(&text.stdout);
    Some(text.matches("v_mfma_f32_16x16x16").count())
}

#[test]
#[ignore = "needs hipcc: `.ci/run` installs it and runs this with --ignored"]
fn gfx90a_takes_the_mfma_path_and_gfx906_none() {
    for kernel in with_matrix_paths() {
        for (arch, matrix) in [("gfx906", Matrix::None), ("gfx90a", Matrix::Mfma)] {
            assert_eq!(Matrix::of_arch(arch), matrix);
            let source = format!("{}{}", kernel.source, demand(matrix));
            // Device code only: host code sees no architecture.
            let elf = code_object::compile(&source, arch, &[])
                .unwrap_or_else(|e| panic!("{} {arch}: {e}", kernel.name));
            match mfma_instructions(&elf) {
                Some(n) => assert_eq!(n > 0, matrix == Matrix::Mfma, "{} {arch}: {n}", kernel.name),
                None => eprintln!("{} {arch}: no llvm-objdump; the macro was taken", kernel.name),
            }
        }
    }
}

/// Only DTK's compiler has MMAC builtins; any clang can check the code around them.
#[test]
#[ignore = "needs hipcc: `.ci/run` installs it and runs this with --ignored"]
fn the_mmac_path_is_sound_hip_but_for_its_builtin() {
    let builtin = "#include <hip/hip_runtime.h>\n\
                   typedef short s4 __attribute__((vector_size(8)));\n\
                   typedef float f4 __attribute__((vector_size(16)));\n\
                   extern \"C\" __device__ f4 __builtin_amdgcn_mmac_f32_16x16x16bf16(s4, s4, f4);\n";
    for kernel in with_matrix_paths() {
        for arch in Arch::ALL.iter().filter(|a| a.matrix == Matrix::Mmac).map(|a| a.name) {
            let source = format!("{builtin}{}{}", kernel.source, demand(Matrix::Mmac));
            let macro_of_arch = format!("-D__{arch}__");
            let flags = ["-fsyntax-only", "-Wno-unused-command-line-argument", &macro_of_arch];
            // Nothing is written under -fsyntax-only, so reading the object is what fails.
            match code_object::compile(&source, "gfx906", &flags) {
                Ok(_) => {}
                Err(assay_hip::Error::Io { action: "read", .. }) => {}
                Err(e) => panic!("{} {arch}: {e}", kernel.name),
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
