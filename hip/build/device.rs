//! Feature `hip`: compiles the kernels with hipcc, links the HIP runtime and generates
//! bindings to it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Wave64 targets that upstream compilers know. For a DCU name its own in ASSAY_HIP_ARCH.
const DEFAULT_ARCHS: &str = "gfx906,gfx90a";

/// The runtime functions that `src/device` calls.
const FUNCTIONS: [&str; 11] = [
    "hipGetDeviceCount",
    "hipSetDevice",
    "hipDeviceGetName",
    "hipRuntimeGetVersion",
    "hipDriverGetVersion",
    "hipMalloc",
    "hipFree",
    "hipMemcpy",
    "hipMemset",
    "hipDeviceSynchronize",
    "hipGetErrorName",
];

pub(crate) fn build() {
    for variable in ["ASSAY_HIP_ARCH", "AMDGPU_TARGETS", "HIPCC", "ROCM_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-changed=device");
    println!("cargo:rerun-if-changed=probes");
    println!("cargo:rerun-if-changed=include");
    let rocm = std::env::var_os("ROCM_PATH").map(PathBuf::from);
    let archs = archs(rocm.as_deref());
    let archs: Vec<&str> = archs.iter().map(String::as_str).collect();

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut archive = cc::Build::new();
    archive.cpp(true); // links the C++ library that hipcc's host code needs
    let hipcc = hipcc(rocm.as_deref());
    for source in kernel_sources() {
        let name = source.parent().and_then(Path::file_name).expect("a kernel's folder");
        let object = out.join(name).with_extension("o");
        compile(&hipcc, &source, &object, &archs);
        archive.object(object);
    }
    for source in hip_files("probes") {
        let name = source.file_stem().expect("a probe's file").to_string_lossy();
        let object = out.join(format!("probe_{name}.o"));
        compile(&hipcc, &source, &object, &archs);
        archive.object(object);
    }
    let query = out.join("device_arch.o");
    compile(&hipcc, Path::new("device/arch.hip"), &query, &archs);
    archive.object(query);
    println!("cargo:rustc-env=ASSAY_HIPCC_VERSION={}", version(&hipcc));
    archive.compile("assay_kernels");

    if let Some(rocm) = &rocm {
        println!("cargo:rustc-link-search=native={}", rocm.join("lib").display());
    }
    println!("cargo:rustc-link-lib=dylib=amdhip64");
    generate_bindings(rocm.as_deref(), &out.join("hip_runtime.rs"));
}

/// The targets: what the environment names, else the agents of this machine, else the defaults.
fn archs(rocm: Option<&Path>) -> Vec<String> {
    let split = |text: String| -> Vec<String> {
        let names = text.split([',', ';', ' ', '\n']).map(str::trim);
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    let named = ["ASSAY_HIP_ARCH", "AMDGPU_TARGETS"].iter().find_map(|v| std::env::var(v).ok());
    if let Some(named) = named.map(split).filter(|names| !names.is_empty()) {
        return named;
    }
    let tool = rocm.map_or(PathBuf::from("rocm_agent_enumerator"), |rocm| {
        rocm.join("bin/rocm_agent_enumerator")
    });
    let output = Command::new(tool).output().ok().filter(|o| o.status.success());
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let mut agents = split(text.unwrap_or_default());
    // gfx000 is the CPU.
    agents.retain(|name| name.starts_with("gfx") && name != "gfx000");
    agents.sort();
    agents.dedup();
    if agents.is_empty() { split(DEFAULT_ARCHS.to_owned()) } else { agents }
}

fn kernel_sources() -> Vec<PathBuf> {
    let folders = std::fs::read_dir("kernels").expect("the folder of kernels");
    let mut sources: Vec<PathBuf> = folders
        .filter_map(|entry| Some(entry.ok()?.path().join("kernel.hip")))
        .filter(|path| path.exists())
        .collect();
    sources.sort();
    sources
}

/// The .hip files of a folder.
fn hip_files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "hip"));
    files.sort();
    files
}

fn hipcc(rocm: Option<&Path>) -> PathBuf {
    let named = std::env::var_os("HIPCC").map(PathBuf::from);
    let installed = rocm.map(|rocm| rocm.join("bin/hipcc")).filter(|path| path.exists());
    named.or(installed).unwrap_or_else(|| PathBuf::from("hipcc"))
}

/// What hipcc says of its version, on one line.
fn version(hipcc: &Path) -> String {
    let output = Command::new(hipcc).arg("--version").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let lines = text.lines().take(2).map(str::trim).collect::<Vec<_>>();
    format!("hipcc {}", lines.join(", "))
}

fn compile(hipcc: &Path, source: &Path, object: &Path, archs: &[&str]) {
    let output = Command::new(hipcc)
        .args(["-c", "-fPIC", "-std=c++17", "-O3", "-Wall", "-Iinclude", "-fno-crash-diagnostics"])
        .args(archs.iter().map(|arch| format!("--offload-arch={arch}")))
        .arg(source)
        .arg("-o")
        .arg(object)
        .output();
    let output = output.unwrap_or_else(|e| {
        panic!(
            "feature `hip` needs hipcc, but {} does not run ({e}); install ROCm or DTK and set \
             ROCM_PATH or HIPCC",
            hipcc.display()
        )
    });
    if output.status.success() {
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let hint = if said.contains("invalid target ID") {
        "\nthis hipcc does not know one of the targets. Those of Hygon's newer DCU (gfx928 and others) are \
         known to the hipcc of its DTK only, not to upstream clang: source env.sh of the DTK \
         installation, or set HIPCC to its hipcc"
    } else {
        ""
    };
    panic!("{} rejects {}:\n{said}{hint}", hipcc.display(), source.display());
}

fn generate_bindings(rocm: Option<&Path>, target: &Path) {
    let mut builder = bindgen::Builder::default()
        .header_contents("wrapper.h", "#include <hip/hip_runtime_api.h>")
        .clang_args(["-x", "c++", "-std=c++17", "-D__HIP_PLATFORM_AMD__"])
        .newtype_enum("hipError_t")
        .layout_tests(false);
    if let Some(rocm) = rocm {
        builder = builder.clang_arg(format!("-I{}", rocm.join("include").display()));
    }
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    let bindings = builder.generate().unwrap_or_else(|e| {
        panic!(
            "no bindings to hip/hip_runtime_api.h: {e}; install the HIP headers and libclang, and \
             set LIBCLANG_PATH to libclang's folder"
        )
    });
    bindings.write_to_file(target).expect("OUT_DIR is writable");
}
