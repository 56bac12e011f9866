//! Entries of a ledger: a child is known by the code that its processes mapped.

use anyhow::ensure;
use assay_hip::{BackendKind, Identity, sha256};
use assay_reference::ops::Scope;

use super::{Answer, Checked, Hello, Session};
use crate::ledger::{Entry, MappedObject, mapped_objects, objects_key};

/// This machine's architecture for what computes on the CPU; else the name of the device, since the same
/// libraries compute on either.
fn arch(hello: &Hello) -> String {
    if hello.device.starts_with("cpu") {
        return std::env::consts::ARCH.into();
    }
    hello.details.get("gpu").unwrap_or(&hello.device).clone()
}

/// What there is in place of outputs.
fn why(answer: &Answer) -> String {
    match answer {
        Answer::Outputs(_) => "outputs".into(),
        Answer::Unsupported(what) => format!("it refuses it: {what}"),
        Answer::Failed(finding) => finding.text.clone(),
        Answer::GivenUp => "it has failed too often".into(),
    }
}

/// An entry for each check that verified something. To be called when the checks are over and the child
/// still runs: only then has it loaded what the ops need. One that is gone is started again and asked
/// one case of each op.
///
/// # Errors
/// When the child does not start again, does not answer what it has answered before, or what it runs cannot be read.
pub fn entries(
    session: &mut Session,
    checked: &[Checked],
    scope: Scope,
    seed: u64,
) -> anyhow::Result<Vec<Entry>> {
    if session.child.is_none() {
        session.renew();
        for g in checked.iter().filter_map(Checked::answered) {
            let answer = session.ask(&g.case, &g.label)?;
            ensure!(
                matches!(answer, Answer::Outputs(_)),
                "{}: {}: was answered in the check, and is not answered by the child that was started again: {}; there is \
                 nothing to enter in a ledger",
                session.program.line(),
                g.label,
                why(&answer)
            );
        }
    }
    let mut objects: Vec<MappedObject> = Vec::new();
    for process in session.processes()? {
        objects.extend(mapped_objects(process)?);
    }
    objects.sort();
    objects.dedup();
    let hello = session.hello();
    let identity = |kernel: &str| Identity {
        kernel: kernel.into(),
        backend: BackendKind::Process,
        arch: arch(hello),
        source: sha256(format!("{} {hello:?}", session.program.line())),
        code: objects_key(&objects),
        toolchain: format!("{} {}", hello.name, hello.version),
        runtime: hello.device.clone(),
    };
    let entry = |c: &Checked| {
        let mut entry = Entry::of(&c.report, identity(&c.report.kernel), seed)?;
        entry.objects.clone_from(&objects);
        if scope == Scope::Framework {
            entry.identity.kernel += "/framework";
        }
        Some(entry)
    };
    Ok(checked.iter().filter_map(entry).collect())
}
