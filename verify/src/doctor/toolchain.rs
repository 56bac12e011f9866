//! DTK or ROCm: found, sourced, and able to compile for the devices that are here.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Check, Machine};

pub(super) fn checks(machine: &Machine, archs: &BTreeSet<String>) -> Vec<Check> {
    let mut checks = vec![installation(machine)];
    checks.extend(environment(machine));
    checks.extend(compiles(machine, archs));
    checks
}

fn installation(machine: &Machine) -> Check {
    const NAME: &str = "toolchain";
    let hipcc = machine.tool("hipcc", &["--version"]);
    let version = hipcc.output().and_then(|out| out.lines().find(|l| l.contains("version")));
    let several = machine.dtk_versions();
    match (machine.rocm(), version) {
        (None, None) => Check::absent(NAME, "no DTK, no ROCm, no hipcc"),
        (Some(path), None) => Check::bad(
            NAME,
            format!("{} is installed, but hipcc {}", path.display(), hipcc.failure()),
            format!("source {}/env.sh, in the shell that starts the service", path.display()),
        ),
        (path, Some(version)) => {
            let mut found = version.trim().to_owned();
            if let Some(path) = path {
                found += &format!(", {}", path.display());
            }
            if several.len() > 1 {
                let names: Vec<_> = several.iter().map(|p| p.display().to_string()).collect();
                let advice = "the one whose env.sh was sourced last is used; a wheel built for the other \
                              loads both";
                return Check::warning(
                    NAME,
                    format!("{found}; installed: {}", names.join(", ")),
                    advice,
                );
            }
            Check::ok(NAME, found)
        }
    }
}

/// Whether env.sh was sourced, and agrees with itself.
fn environment(machine: &Machine) -> Vec<Check> {
    const NAME: &str = "toolchain.environment";
    let mut checks = Vec::new();
    let dtk = machine.path("/opt/dtk").is_dir() || !machine.dtk_versions().is_empty();
    match machine.var("ROCM_PATH") {
        None if dtk => checks.push(Check::bad(
            NAME,
            "DTK is installed and ROCM_PATH is not set",
            "source /opt/dtk/env.sh: without it Triton, torch's extensions and hipcc look for ROCm elsewhere",
        )),
        None => {}
        Some(path) if !Path::new(path).is_dir() => checks.push(Check::bad(
            NAME,
            format!("ROCM_PATH={path} is no folder"),
            "source env.sh of the DTK that is installed",
        )),
        Some(path) => {
            let lib = format!("{}/", path.trim_end_matches('/'));
            let libraries = machine.var("LD_LIBRARY_PATH").unwrap_or_default();
            if dtk && !libraries.split(':').any(|p| format!("{p}/").starts_with(&lib)) {
                checks.push(Check::warning(
                    NAME,
                    format!("ROCM_PATH={path}, but no folder of it is in LD_LIBRARY_PATH"),
                    "source env.sh rather than setting ROCM_PATH by hand: libraries of another version load",
                ));
            } else {
                checks.push(Check::ok(NAME, format!("ROCM_PATH={path}")));
            }
        }
    }
    checks.extend(machine.var("TRITON_HIP_LLD_PATH").map(linker));
    checks
}

/// lld decides by the name it is called by what kind of linker it is.
fn linker(path: &str) -> Check {
    const NAME: &str = "triton.linker";
    if !Path::new(path).is_file() {
        return Check::bad(
            NAME,
            format!("TRITON_HIP_LLD_PATH={path} is not there"),
            "name the ld.lld of DTK or ROCm (llvm/bin/ld.lld), or unset it",
        );
    }
    if !path.ends_with("ld.lld") {
        return Check::bad(
            NAME,
            format!("TRITON_HIP_LLD_PATH={path} does not end in ld.lld"),
            "make a link of that name to it: called by another name it is another linker, and every \
             Triton kernel fails to link",
        );
    }
    Check::ok(NAME, format!("TRITON_HIP_LLD_PATH={path}"))
}

/// Compiles an empty kernel for each device: what a version says is no evidence.
fn compiles(machine: &Machine, archs: &BTreeSet<String>) -> Vec<Check> {
    const NAME: &str = "toolchain.arch";
    if machine.tool("hipcc", &["--version"]).output().is_none() {
        return Vec::new();
    }
    if archs.is_empty() {
        return vec![Check::absent(NAME, "no device, so no arch to compile for")];
    }
    let trial = |arch: &String| {
        let Ok(folder) = tempfile::tempdir() else {
            return Check::absent(NAME, "no temporary folder can be made to compile in");
        };
        let (source, object) = (folder.path().join("k.hip"), folder.path().join("k.o"));
        let text = "#include <hip/hip_runtime.h>\n\
                    extern \"C\" __global__ void k(float* x) { x[threadIdx.x] += 1.0f; }\n";
        if std::fs::write(&source, text).is_err() {
            return Check::absent(NAME, "the temporary folder cannot be written to");
        }
        let target = format!("--offload-arch={arch}");
        let (source, object) = (source.to_string_lossy(), object.to_string_lossy());
        let said = machine.tool("hipcc", &["-c", "-std=c++17", &target, &source, "-o", &object]);
        match said.output() {
            Some(_) => Check::ok(NAME, format!("hipcc compiles for {arch}")),
            None => Check::bad(
                NAME,
                format!("hipcc does not compile for {arch}: {}", said.failure()),
                "this hipcc is not that of the DTK that knows the device: see `which hipcc`",
            ),
        }
    };
    archs.iter().map(trial).collect()
}
