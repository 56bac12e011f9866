//! The gate lets through what passed as it is now, and nothing else.

use assay_hip::emu::{Compiler, Mode};
use assay_hip::{Admit, Admitted, Backend, BackendKind, Matrix, kernel};

use super::{entry, identity, ledger};
use crate::ledger::{
    Decision, Ended, Entry, Gate, Ledger, Limited, MappedObject, Requirement, Requirements, Status,
    decide, emulated, objects_key, survey,
};

fn required() -> Requirement {
    Requirement::new("gptq_dequant", BackendKind::Emu)
}

fn on(entries: impl IntoIterator<Item = Entry>) -> Decision {
    decide(&ledger(entries), &required(), &identity())
}

#[test]
fn a_passing_current_entry_is_admitted() {
    let decision = on([entry(1)]);
    assert_eq!(
        (decision.status, decision.conventions.as_slice()),
        (Status::Ok, &["defaults".into()][..])
    );
    assert!(decision.reason.contains("seed 1"), "{}", decision.reason);
}

#[test]
fn without_an_entry_it_is_missing() {
    let decision = on([]);
    assert_eq!(decision.status, Status::Missing);
    assert!(decision.reason.contains("assay check --kernel gptq_dequant --ledger"), "{decision:?}");
    let mut other = entry(1);
    other.identity.kernel = "gemm_bf16".into();
    assert_eq!(on([other]).status, Status::Missing);
    let mut elsewhere = entry(1);
    elsewhere.identity.arch = "aarch64".into();
    assert_eq!(on([elsewhere]).status, Status::Missing);
}

/// Evidence of a build says nothing of a build with other matrix instructions, though its kernel and
/// its source are the same.
#[test]
fn a_build_with_matrix_instructions_needs_evidence_of_its_own() {
    let [plain, mfma, mmac] = Matrix::ALL.map(|m| {
        let mut it = identity();
        it.arch = m.emulated_arch();
        assert_eq!(Matrix::of_arch(&it.arch), m);
        it
    });
    let mut of_mmac = entry(1);
    of_mmac.identity = mmac.clone();
    let record = ledger([of_mmac]);
    assert!(record.admit(&mmac).is_ok());
    for other in [&plain, &mfma] {
        let refusal = record.admit(other).expect_err("never checked");
        assert!(refusal.reason.contains("missing"), "{refusal}");
    }
    // A list asks for a build by its architecture; without one, for what would run.
    let mut wanted = required();
    wanted.arch = Some(mmac.arch.clone());
    assert_eq!(decide(&record, &wanted, &mmac).status, Status::Ok);
    let decision = decide(&ledger([]), &wanted, &mmac);
    assert!(decision.reason.contains("--matrix mmac --ledger"), "{decision:?}");
    assert_eq!(decide(&record, &wanted, &plain).status, Status::WrongArch);
}

#[test]
fn whatever_changed_is_named() {
    type Edit = fn(&mut Entry);
    let edits: [(&str, Edit); 6] = [
        ("source", |e| e.identity.source.push('x')),
        ("code", |e| e.identity.code.push('x')),
        ("toolchain", |e| e.identity.toolchain.push('x')),
        ("runtime", |e| e.identity.runtime.push('x')),
        ("suite", |e| e.suite.cases.push('x')),
        ("suite", |e| e.suite.assay.push('x')),
    ];
    for (what, edit) in edits {
        let mut old = entry(1);
        edit(&mut old);
        let decision = on([old.clone()]);
        assert_eq!((decision.status, decision.changed.as_slice()), (Status::Stale, &[what][..]));
        assert!(decision.reason.contains(what), "{decision:?}");
        // Newer evidence about something else does not take away what is current.
        assert_eq!(on([entry(1), old]).status, Status::Ok);
    }
}

#[test]
fn an_emulated_pass_never_admits_a_device_launch() {
    let mut now = identity();
    now.backend = BackendKind::Hip;
    let mut wanted = required();
    wanted.backend = BackendKind::Hip;
    let record = ledger([entry(1)]);
    let decision = decide(&record, &wanted, &now);
    assert_eq!(decision.status, Status::WrongBackend);
    let refusal = record.admit(&now).expect_err("an emu entry");
    assert!(refusal.reason.contains("recorded on emu, which says nothing of hip"), "{refusal}");
    assert!(record.admit(&identity()).is_ok());
}

#[test]
fn a_failure_stands_until_the_same_seed_passes() {
    let failed = |seed| {
        let mut e = entry(seed);
        e.outcome.result = Ended::Fail;
        e.outcome.conventions.clear();
        e.outcome.findings = vec!["matmul.gain".into()];
        e
    };
    let decision = on([entry(1), failed(2)]);
    assert_eq!(decision.status, Status::Failed);
    assert!(decision.reason.contains("matmul.gain (seed 2"), "{decision:?}");
    assert_eq!(on([failed(2), entry(1)]).status, Status::Failed, "another seed proves nothing");
    assert_eq!(on([failed(2), entry(2)]).status, Status::Ok);
    // The failure of another build is that build's.
    let mut other = failed(3);
    other.identity.source.push('x');
    assert_eq!(on([other, entry(1)]).status, Status::Ok);
}

#[test]
fn conventions_cells_and_hidden_faults_are_held_against_the_requirement() {
    let mut e = entry(1);
    e.outcome.unseen = vec!["gptq_dequant.gain".into(), "gptq_dequant.zero_wrap".into()];
    let mut wanted = required();
    let with = |wanted: &Requirement| decide(&ledger([e.clone()]), wanted, &identity());
    assert_eq!(with(&wanted).status, Status::Limited);
    wanted.allow_limited = Limited::These(vec!["gptq_dequant.gain".into()]);
    let decision = with(&wanted);
    assert!(
        decision.reason.contains("zero_wrap") && !decision.reason.contains("gain"),
        "{decision:?}"
    );
    wanted.allow_limited = Limited::Any(true);
    assert_eq!(with(&wanted).status, Status::Ok);
    assert!(with(&wanted).reason.contains("not seen: gptq_dequant.gain"));
    wanted.cells = vec!["g_idx".into()];
    assert_eq!(with(&wanted).status, Status::Ok);
    wanted.cells.push("sequential".into());
    assert_eq!(with(&wanted).status, Status::Missing);
    wanted.cells.clear();
    wanted.convention = Some("weight=stored".into());
    assert_eq!(with(&wanted).status, Status::OtherConvention);
    wanted.arch = Some("gfx906".into());
    assert_eq!(with(&wanted).status, Status::WrongArch);
}

#[test]
fn a_gate_admits_only_what_its_list_names() {
    let gate = |name: &str| Gate {
        ledger: ledger([entry(1)]),
        required: Requirements { kernels: vec![Requirement::new(name, BackendKind::Emu)] },
    };
    let admission = gate("gptq_dequant").admit(&identity()).expect("required and passing");
    assert_eq!(admission.identity, identity());
    let refusal = gate("gemm_bf16").admit(&identity()).expect_err("not in the list");
    assert!(refusal.reason.contains("not in the list"), "{refusal}");
}

/// One byte of a kernel's source, a comment's full stop: what was recorded is no evidence any more. The
/// unedited build is admitted and launched.
#[test]
fn one_byte_of_the_source_makes_the_evidence_stale() {
    let gptq = kernel("gptq_dequant").expect("a kernel");
    let built = emulated(gptq, gptq.source, Matrix::None).expect("compiles");
    let record = ledger([Entry { identity: built.clone(), ..entry(3) }]);
    assert_eq!(decide(&record, &required(), &built).status, Status::Ok);

    let mut bytes = gptq.source.as_bytes().to_vec();
    let stop = gptq.source.find('.').expect("a full stop in the first comment");
    bytes[stop] = b';';
    let edited = String::from_utf8(bytes).expect("UTF-8");
    let decision =
        decide(&record, &required(), &emulated(gptq, &edited, Matrix::None).expect("compiles"));
    assert_eq!(decision.status, Status::Stale, "{decision:?}");
    assert!(decision.changed.contains(&"source"), "{decision:?}");

    // The same through what a serving path uses.
    let compiler = Compiler::find().expect("a compiler");
    let backend =
        |source: &str| Backend::from(compiler.compile(source, Mode::Plain).expect("compiles"));
    assert!(Admitted::new(gptq, &backend(gptq.source), &record).is_ok());
    let changed = backend(&edited);
    let Err(error) = Admitted::new(gptq, &changed, &record) else { panic!("admitted") };
    assert!(error.to_string().contains("stale: source"), "{error}");
}

#[test]
fn a_foreign_process_is_known_by_its_shared_objects() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libvendor.so");
    std::fs::write(&library, "version 1").expect("a file");
    let mut e = entry(1);
    e.identity.backend = BackendKind::Process;
    e.identity.kernel = "vendor_gemm".into();
    let object = |name: &str, content: &str| MappedObject {
        path: name.into(),
        sha256: assay_hip::sha256(content),
    };
    e.objects =
        vec![object("/usr/lib/libc.so.6", "libc"), object("/opt/libvendor.so", "version 1")];
    e.identity.code = objects_key(&e.objects);
    let mut wanted = Requirement::new("vendor_gemm", BackendKind::Process);
    wanted.objects = vec![library.clone()];
    let list = Requirements { kernels: vec![wanted] };
    let look = |ledger: &Ledger| survey(ledger, &list).expect("readable").remove(0);
    let record = ledger([e]);
    assert_eq!(look(&record).status, Status::Ok, "{:?}", look(&record));
    std::fs::write(&library, "version 2").expect("a file");
    let decision = look(&record);
    assert_eq!((decision.status, decision.changed), (Status::Stale, vec!["objects"]));
}
