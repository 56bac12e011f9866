//! What the device compiler makes of the kernels, read from the code objects: no register
//! spills, no scratch memory, waves of 64 lanes.
//!
//! Needs hipcc but no device, so it runs only when asked for:
//! `cargo test -p assay-hip --test code_objects -- --ignored`. ASSAY_HIP_ARCH names the
//! targets, HIPCC the compiler.

use std::path::Path;
use std::process::Command;

use assay_hip::kernels;
use object::{Object, ObjectSection};
use rmpv::Value;

/// Note type of the AMDGPU metadata, which is a MessagePack map.
const NT_AMDGPU_METADATA: u32 = 32;

fn compile(source: &str, arch: &str, directory: &Path) -> Vec<u8> {
    let (input, output) = (directory.join("kernel.hip"), directory.join("kernel.elf"));
    std::fs::write(&input, source).unwrap();
    let hipcc = std::env::var("HIPCC").unwrap_or_else(|_| "hipcc".to_owned());
    let result = Command::new(&hipcc)
        .args(["-std=c++17", "-O3", "-Wall", "-Werror", "-fno-crash-diagnostics", "-c"])
        .args(["--cuda-device-only", "--no-gpu-bundle-output"])
        .arg(format!("--offload-arch={arch}"))
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
        .arg(&input)
        .arg("-o")
        .arg(&output)
        .output()
        .unwrap_or_else(|e| panic!("{hipcc} does not run: {e}"));
    assert!(result.status.success(), "{arch}: {}", String::from_utf8_lossy(&result.stderr));
    std::fs::read(output).unwrap()
}

/// The metadata map of a code object.
fn metadata(elf: &[u8]) -> Value {
    let file = object::File::parse(elf).unwrap();
    let section = file.section_by_name(".note").expect("a code object has a note section");
    let mut notes = section.data().unwrap();
    while notes.len() >= 12 {
        let word = |at: usize| u32::from_le_bytes(notes[at..at + 4].try_into().unwrap());
        let (name_bytes, bytes, kind) = (word(0) as usize, word(4) as usize, word(8));
        let start = 12 + name_bytes.next_multiple_of(4);
        if kind == NT_AMDGPU_METADATA && notes[12..].starts_with(b"AMDGPU\0") {
            return rmpv::decode::read_value(&mut &notes[start..start + bytes]).unwrap();
        }
        notes = &notes[start + bytes.next_multiple_of(4)..];
    }
    panic!("the code object has no AMDGPU metadata");
}

fn field<'a>(map: &'a Value, name: &str) -> &'a Value {
    let entries = map.as_map().expect("a map");
    let found = entries.iter().find(|(key, _)| key.as_str() == Some(name));
    &found.unwrap_or_else(|| panic!("the metadata lacks {name}")).1
}

#[test]
#[ignore = "needs hipcc: `.ci/run` installs it and runs this with --ignored"]
fn kernels_neither_spill_nor_use_scratch_and_run_in_waves_of_64() {
    let archs = std::env::var("ASSAY_HIP_ARCH").unwrap_or_else(|_| "gfx906,gfx90a".to_owned());
    let directory = tempfile::tempdir().unwrap();
    for kernel in kernels() {
        for arch in archs.split([',', ';', ' ']).filter(|arch| !arch.is_empty()) {
            let metadata = metadata(&compile(kernel.source, arch, directory.path()));
            let functions = field(&metadata, "amdhsa.kernels").as_array().unwrap();
            assert!(!functions.is_empty(), "{}: no kernel in the code object", kernel.name);
            for function in functions {
                let number = |name: &str| field(function, name).as_u64().unwrap();
                let name = field(function, ".name").as_str().unwrap();
                eprintln!(
                    "{arch} {name}: {} VGPRs, {} SGPRs, {} bytes of LDS",
                    number(".vgpr_count"),
                    number(".sgpr_count"),
                    number(".group_segment_fixed_size")
                );
                for zero in
                    [".vgpr_spill_count", ".sgpr_spill_count", ".private_segment_fixed_size"]
                {
                    assert_eq!(number(zero), 0, "{arch} {name} {zero}");
                }
                assert_eq!(number(".wavefront_size"), 64, "{arch} {name}");
            }
        }
    }
}
