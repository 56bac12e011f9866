//! Vendors' libraries as subjects, on stand-ins that are compiled here: no device, no vendor.

use std::path::{Path, PathBuf};
use std::process::Command;

use assay_hip::vendor::{self, Library, Place, Vendor};
use assay_hip::{Backend, BackendKind, Error, sha256};
use assay_tests::cli;
use assay_verify::suite::{KernelReport, Profile, check_backend};

const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/vendor/fake.cpp");

/// The stand-in with some faults, compiled.
fn build(folder: &Path, name: &str, defines: &[&str]) -> PathBuf {
    let compiler = std::env::var("CXX").ok().filter(|c| !c.is_empty());
    let target = folder.join(format!("lib{name}.so"));
    let output = Command::new(compiler.as_deref().unwrap_or("c++"))
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-ffp-contract=off"])
        .args(defines)
        .arg(FAKE)
        .arg("-o")
        .arg(&target)
        .output()
        .expect("a C++ compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target
}

fn open(subject: &vendor::Subject, path: &Path) -> Backend {
    Backend::Library(Library::open(subject.vendor, path, Place::Host).expect("it loads"))
}

fn check(name: &str, path: &Path) -> KernelReport {
    let subject = vendor::subject(name).expect("a subject");
    check_backend(&subject.kernel, &open(subject, path), 1, Profile::Power, &|| {})
        .expect("it runs")
}

fn findings(report: &KernelReport) -> Vec<String> {
    report.judgement.verdict.findings().into_iter().map(|f| f.name).collect()
}

#[test]
fn right_libraries_pass_and_say_their_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = build(folder.path(), "right", &[]);
    for subject in vendor::subjects() {
        let report = check(subject.kernel.name, &path);
        let verdict = &report.judgement.verdict;
        assert!(verdict.is_pass(), "{}: {verdict:?}", subject.kernel.name);
        assert!(report.cases >= 10, "{}: {} cases", subject.kernel.name, report.cases);
        let identity = open(subject, &path).identity(&subject.kernel).expect("a file");
        // What ran on the host is no evidence for a device.
        assert_eq!(identity.backend, BackendKind::Process);
        let version = match subject.vendor {
            Vendor::RocBlas => "rocBLAS 9.8.7.fake",
            Vendor::HipBlasLt => "hipBLASLt 0.12.3",
        };
        assert_eq!(identity.toolchain, version);
    }
}

/// A name without a folder is the loader's to find, and the working directory is not where it looks.
#[test]
fn a_library_by_its_name_is_identified_by_the_file_that_was_loaded() {
    const NAME: &str = "Cargo.toml";
    assert!(Path::new(NAME).exists(), "tests run in their package's folder");
    let folder = tempfile::tempdir().expect("a folder");
    let path = build(folder.path(), "named", &["-Wl,-soname,Cargo.toml"]);
    let subject = vendor::subject("rocblas.sgemm").expect("a subject");
    let by_path = open(subject, &path);
    // The loader knows what it has loaded by the name that the object has for itself.
    let by_name = open(subject, Path::new(NAME));
    let code = |backend: &Backend| backend.identity(&subject.kernel).expect("a file").code;
    assert_eq!(code(&by_name), code(&by_path));
    assert_eq!(code(&by_path), sha256(std::fs::read(&path).expect("a file")));
}

#[test]
fn faults_of_a_library_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let truncating = build(folder.path(), "truncating", &["-DTRUNCATE"]);
    assert_eq!(findings(&check("rocblas.gemm_bf16", &truncating))[0], "matmul.truncating_store");
    let short = build(folder.path(), "short", &["-DSHORT"]);
    assert_eq!(findings(&check("hipblaslt.gemm_bf16", &short))[0], "memory.unwritten_output");
    // TF32 is nothing that the catalogue has, but never a pass.
    let tf32 = build(folder.path(), "tf32", &["-DTF32"]);
    let report = check("rocblas.sgemm", &tf32);
    assert!(!report.judgement.verdict.is_pass());
}

#[test]
fn an_error_status_is_a_finding_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let failing = build(folder.path(), "failing", &["-DSTATUS=6"]);
    for (name, said) in [
        ("rocblas.gemm_bf16", "rocblas_gemm_ex answered rocblas_status_internal_error (6)"),
        ("rocblas.sgemm", "rocblas_sgemm answered rocblas_status_internal_error (6)"),
        ("hipblaslt.gemm_f32", "hipblasLtMatmul answered HIPBLAS_STATUS_INTERNAL_ERROR (6)"),
    ] {
        let report = check(name, &failing);
        let finding = &report.judgement.verdict.findings()[0];
        assert_eq!(finding.code, "A023");
        assert!(finding.text.contains(said), "{}", finding.text);
    }
    let none = build(folder.path(), "none", &["-DNO_ALGORITHM", "-DWITHOUT_SGEMM"]);
    let finding = &check("hipblaslt.gemm_bf16", &none).judgement.verdict.findings()[0];
    assert!(finding.text.contains("no algorithm for this shape"), "{}", finding.text);
    match Library::open(Vendor::RocBlas, &none, Place::Host) {
        Err(Error::NoLibrary { reason, .. }) => {
            assert!(reason.contains("rocblas_sgemm"), "{reason}")
        }
        other => panic!("a library without rocblas_sgemm: {:?}", other.err()),
    }
}

/// Of several names only one is there: what that one lacks is said, not that the others are absent.
#[test]
fn a_library_that_lacks_another_says_which() {
    let folder = tempfile::tempdir().expect("a folder");
    let lib = folder.path().join("lib");
    std::fs::create_dir(&lib).expect("a folder");
    let needed = build(&lib, "assay_needed", &["-Wl,-soname,libassay_needed.so"]);
    let needed_text = needed.to_str().expect("UTF-8");
    let whole = build(&lib, "rocblas", &["-Wl,--no-as-needed", needed_text]);
    std::fs::rename(&whole, lib.join("librocblas.so.4")).expect("renamed");
    std::fs::remove_file(&needed).expect("removed");
    let output = Command::new(cli::binary())
        .args(["check", "--backend", "hip", "--kernel", "rocblas.gemm_bf16"])
        .env("ROCM_PATH", folder.path())
        .output()
        .expect("assay starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // Where the loader has a rocBLAS of its own, that one is taken.
    let names = ["librocblas.so", "librocblas.so.5", "librocblas.so.4", "librocblas.so.0"];
    let opened = |name: &&str| Library::open(Vendor::RocBlas, Path::new(name), Place::Host).is_ok();
    if names.iter().any(opened) {
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("libassay_needed.so: cannot open shared object"), "{text}");
    assert!(text.contains("it is there and does not load"), "{text}");
}

#[test]
fn without_a_device_or_a_library_it_is_skipped_and_says_what_is_missing() {
    let run = cli::assay(["check", "--backend", "hip", "--kernel", "rocblas.gemm_bf16"]);
    let all = format!("{}{}", run.stdout, run.stderr);
    // With a device and the library this would verify something.
    if run.code == 3 {
        assert!(all.contains("rocblas.gemm_bf16"), "{all}");
        assert!(all.contains("no device") || all.contains("install it"), "{all}");
    } else {
        assert!([0, 1].contains(&run.code), "{all}");
    }
    let run = cli::assay(["check", "--kernel", "rocblas.gemm_bf16"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("--backend hip"), "{}", run.stderr);
    let run = cli::assay(["check", "--subject", "hipblaslt", "--kernel", "rocblas.sgemm"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("hipblaslt.gemm_bf16"), "{}", run.stderr);
}
