//! Entries of a ledger: a child is known by the code that its processes mapped.

use assay_hip::{BackendKind, Identity, sha256};
use assay_reference::ops::Scope;

use super::{Checked, Hello, Session};
use crate::ledger::{Entry, MappedObject, mapped_objects, objects_key};

/// This machine's architecture for what computes on the CPU; else the name of the device, since the same
/// libraries compute on either.
fn arch(hello: &Hello) -> String {
    if hello.device.starts_with("cpu") {
        return std::env::consts::ARCH.into();
    }
    hello.details.get("gpu").unwrap_or(&hello.device).clone()
}

/// An entry for each check that verified something. To be called when the checks are over and the child
/// still runs: only then has it loaded what the ops need. One that is gone is started again and asked
/// one case of each op.
///
/// # Errors
/// When the child does not start again, or what it runs cannot be read.
pub fn entries(
    session: &mut Session,
    checked: &[Checked],
    scope: Scope,
    seed: u64,
) -> anyhow::Result<Vec<Entry>> {
    if session.child.is_none() {
        session.renew();
        for g in checked.iter().filter_map(Checked::answered) {
            session.ask(&g.case, &g.label)?;
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
