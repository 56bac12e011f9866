//! What hipcc makes of a kernel: registers, shared memory, spills, read from the code object's metadata.
//! No device is needed, and no feature: any hipcc does.

use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection};
use rmpv::Value;
use serde::Serialize;

use crate::error::Error;
use crate::matrix::Arch;

/// Note type of the AMDGPU metadata, which is a MessagePack map.
const NT_AMDGPU_METADATA: u32 = 32;
/// Shared memory of a workgroup.
const LDS_LIMIT: u64 = 64 * 1024;

/// What a kernel may include of this crate.
const HEADERS: [(&str, &str); 3] = [
    ("assay_bf16.h", include_str!("../include/assay_bf16.h")),
    ("assay_fp8.h", include_str!("../include/assay_fp8.h")),
    ("assay_matrix.h", include_str!("../include/assay_matrix.h")),
];

/// What one device function needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// The function's symbol.
    pub function: String,
    /// The target.
    pub arch: String,
    /// Vector registers a lane.
    pub vgprs: u64,
    /// Accumulation registers a lane, on targets that have them.
    pub agprs: u64,
    /// Scalar registers a wave.
    pub sgprs: u64,
    /// Static shared memory, in bytes.
    pub lds: u64,
    /// Scratch memory a lane, in bytes.
    pub scratch: u64,
    /// Spilled vector and scalar registers.
    pub spills: u64,
    /// Lanes of a wave.
    pub wavefront: u64,
    /// Most threads of a block.
    pub threads: u64,
    /// Waves that a SIMD holds at a time, for targets whose limits are known.
    pub occupancy: Option<u64>,
}

impl Resources {
    /// What is wrong with them.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.spills > 0 {
            out.push(format!("{} spilled registers", self.spills));
        }
        if self.scratch > 0 {
            out.push(format!("{} bytes of scratch a lane", self.scratch));
        }
        if self.wavefront != 64 {
            out.push(format!("waves of {}, not 64", self.wavefront));
        }
        if self.lds > LDS_LIMIT {
            out.push(format!("{} bytes of LDS: a workgroup has {LDS_LIMIT}", self.lds));
        }
        out
    }
}

/// Compiles a kernel's source for a target and reads what each of its functions needs. `HIPCC` names the
/// compiler.
///
/// # Errors
/// [`Error::Hipcc`] when there is no hipcc, it rejects the source or does not know the target.
pub fn resources(source: &str, arch: &str) -> Result<Vec<Resources>, Error> {
    let elf = compile(source, arch, &[])?;
    let broken = |what: &str| Error::Hipcc(format!("the code object for {arch} {what}"));
    let metadata = metadata(&elf).ok_or_else(|| broken("has no AMDGPU metadata"))?;
    let functions = field(&metadata, "amdhsa.kernels").and_then(Value::as_array);
    let functions = functions.filter(|f| !f.is_empty()).ok_or_else(|| broken("has no kernel"))?;
    functions.iter().map(|f| of(f, arch).ok_or_else(|| broken("has incomplete metadata"))).collect()
}

fn of(function: &Value, arch: &str) -> Option<Resources> {
    let number = |name: &str| field(function, name).and_then(Value::as_u64);
    let mut out = Resources {
        function: field(function, ".name")?.as_str()?.to_owned(),
        arch: arch.to_owned(),
        vgprs: number(".vgpr_count")?,
        agprs: number(".agpr_count").unwrap_or(0),
        sgprs: number(".sgpr_count")?,
        lds: number(".group_segment_fixed_size")?,
        scratch: number(".private_segment_fixed_size")?,
        spills: number(".vgpr_spill_count")? + number(".sgpr_spill_count")?,
        wavefront: number(".wavefront_size")?,
        threads: number(".max_flat_workgroup_size")?,
        occupancy: None,
    };
    out.occupancy = occupancy(&out);
    Some(out)
}

/// Waves of a SIMD: the least that registers and shared memory allow.
///
/// Source: <https://github.com/llvm/llvm-project/blob/main/llvm/lib/Target/AMDGPU/GCNSubtarget.cpp>
fn occupancy(it: &Resources) -> Option<u64> {
    // Vector registers of a SIMD a lane, their granule, most waves.
    let (file, granule, most) = match it.arch.as_str() {
        "gfx906" | "gfx908" => (256, 4, 10),
        "gfx90a" => (512, 8, 8),
        _ => return None,
    };
    let by_vgprs = file / it.vgprs.max(1).next_multiple_of(granule);
    let by_sgprs = match it.sgprs {
        ..=80 => 10,
        81..=88 => 9,
        89..=100 => 8,
        _ => 7,
    };
    // Four SIMDs share the memory of a compute unit.
    let waves = it.threads.div_ceil(64).max(1);
    let blocks = LDS_LIMIT.checked_div(it.lds).unwrap_or(u64::MAX);
    let by_lds = blocks.saturating_mul(waves).div_ceil(4);
    Some(by_vgprs.min(by_sgprs).min(by_lds).min(most))
}

/// The code object of a kernel's source for a target: an ELF file. `flags` are added to hipcc's.
///
/// # Errors
/// As [`resources`].
pub fn compile(source: &str, arch: &str, flags: &[&str]) -> Result<Vec<u8>, Error> {
    let folder =
        tempfile::tempdir().map_err(Error::io("create", Path::new("a temporary folder")))?;
    let (input, output) = (folder.path().join("kernel.hip"), folder.path().join("kernel.elf"));
    std::fs::write(&input, source).map_err(Error::io("write", &input))?;
    for (name, text) in HEADERS {
        let header = folder.path().join(name);
        std::fs::write(&header, text).map_err(Error::io("write", &header))?;
    }
    let hipcc = std::env::var("HIPCC").unwrap_or_else(|_| "hipcc".to_owned());
    let result = Command::new(&hipcc)
        .args(["-std=c++17", "-O3", "-Wall", "-Werror", "-fno-crash-diagnostics", "-c"])
        .args(["--cuda-device-only", "--no-gpu-bundle-output"])
        .arg(format!("--offload-arch={arch}"))
        .arg("-I")
        .arg(folder.path())
        .args(flags)
        .arg(&input)
        .arg("-o")
        .arg(&output)
        .output()
        .map_err(|e| {
            Error::Hipcc(format!(
                "{hipcc} does not run ({e}); install hipcc (Debian: apt-get install hipcc \
                 rocm-device-libs libamdhip64-dev), ROCm or DTK, or name one in HIPCC"
            ))
        })?;
    if result.status.success() {
        return std::fs::read(&output).map_err(Error::io("read", &output));
    }
    let said = String::from_utf8_lossy(&result.stderr);
    let dtk_only = Arch::named(arch).is_some_and(|a| a.dtk_only);
    if dtk_only && (said.contains("invalid target ID") || said.contains("Invalid")) {
        return Err(Error::Hipcc(format!(
            "{hipcc} does not know {arch}: only the hipcc of Hygon's DTK does; source env.sh of the \
             DTK installation, or set HIPCC to its hipcc"
        )));
    }
    let lines: Vec<&str> = said.lines().take(20).collect();
    Err(Error::Hipcc(format!("{hipcc} rejects the kernel for {arch}:\n{}", lines.join("\n"))))
}

/// The metadata map of a code object.
fn metadata(elf: &[u8]) -> Option<Value> {
    let file = object::File::parse(elf).ok()?;
    let section = file.section_by_name(".note")?;
    let mut notes = section.data().ok()?;
    while notes.len() >= 12 {
        let word = |at: usize| {
            u32::from_le_bytes([notes[at], notes[at + 1], notes[at + 2], notes[at + 3]])
        };
        let (name, bytes, kind) = (word(0) as usize, word(4) as usize, word(8));
        let start = 12 + name.next_multiple_of(4);
        if kind == NT_AMDGPU_METADATA && notes[12..].starts_with(b"AMDGPU\0") {
            return rmpv::decode::read_value(&mut notes.get(start..start + bytes)?).ok();
        }
        notes = notes.get(start + bytes.next_multiple_of(4)..)?;
    }
    None
}

fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}
