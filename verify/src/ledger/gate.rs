//! The gate: whether the ledger holds passing, current evidence for what is required.

use assay_hip::emu::{Compiler, Mode};
use assay_hip::{
    Admission, Admit, Backend, BackendKind, Identity, Kernel, Matrix, Refusal, vendor,
};
use serde::Serialize;

use super::entry::Result as Ended;
use super::maps::{MappedObject, hash_file};
use super::{Entry, Ledger, LedgerError, Limited, Requirement, Requirements, Suite};

/// How a required kernel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A passing, current entry is there.
    Ok,
    /// Nothing is recorded for this kernel on this architecture, or not for a required cell.
    Missing,
    /// What is recorded is about another source, code, compiler, runtime or suite.
    Stale,
    /// The current build was checked and did not pass.
    Failed,
    /// It is recorded for another backend only.
    WrongBackend,
    /// It is required for another architecture than this machine's.
    WrongArch,
    /// It passed, but its cases hide faults that are not tolerated.
    Limited,
    /// It passed under other conventions than the required one.
    OtherConvention,
    /// What would run here cannot be found out: there is no device.
    Unknown,
}

impl Status {
    /// For tables.
    pub fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Stale => "stale",
            Status::Failed => "failed",
            Status::WrongBackend => "wrong backend",
            Status::WrongArch => "wrong arch",
            Status::Limited => "limited",
            Status::OtherConvention => "other convention",
            Status::Unknown => "unknown",
        }
    }
}

/// How a required kernel stands, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Kernel name.
    pub kernel: String,
    /// Where it serves.
    pub backend: BackendKind,
    /// On what.
    pub arch: String,
    /// How it stands.
    pub status: Status,
    /// Why, and what to do.
    pub reason: String,
    /// Of stale evidence: what is not as it was: `source`, `code`, `toolchain`, `runtime`, `suite`,
    /// `objects`.
    pub changed: Vec<&'static str>,
    /// Conventions of the evidence that counts.
    pub conventions: Vec<String>,
}

/// What is not as it was when `entry` was made.
fn changed(entry: &Entry, now: &Identity, suite: &Suite) -> Vec<&'static str> {
    let then = &entry.identity;
    let pairs = [
        ("source", then.source != now.source),
        ("code", then.code != now.code),
        ("toolchain", then.toolchain != now.toolchain),
        ("runtime", then.runtime != now.runtime),
        ("suite", entry.suite != *suite),
    ];
    pairs.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| what).collect()
}

/// Decides about one requirement, given what would run.
pub fn decide(ledger: &Ledger, required: &Requirement, now: &Identity) -> Decision {
    let said = |status, reason: String, changed, conventions| Decision {
        kernel: required.name.clone(),
        backend: required.backend,
        arch: now.arch.clone(),
        status,
        reason,
        changed,
        conventions,
    };
    let plain = |status, reason: String| said(status, reason, Vec::new(), Vec::new());
    let check = check_command(required);
    if let Some(wanted) = required.arch.as_deref().filter(|a| !same_arch(a, &now.arch)) {
        let text = format!("is required on {wanted}, and here is {}", now.arch);
        return plain(Status::WrongArch, text);
    }
    let of_kernel = || ledger.entries().iter().filter(|e| e.identity.kernel == required.name);
    let own: Vec<&Entry> = of_kernel()
        .filter(|e| e.identity.backend == required.backend && e.identity.arch == now.arch)
        .collect();
    let Some(last) = own.last() else {
        let other = of_kernel().find(|e| e.identity.backend != required.backend);
        return match other {
            Some(other) => {
                let (there, here) = (other.identity.backend, required.backend);
                let text = format!("recorded on {there}, which says nothing of {here}; {check}");
                plain(Status::WrongBackend, text)
            }
            None => plain(Status::Missing, format!("nothing is recorded on {}; {check}", now.arch)),
        };
    };
    let suite = Suite::of(&last.op);
    let is_current = |e: &&&Entry| match required.backend {
        BackendKind::Process => e.suite == suite && now.code == e.identity.code,
        _ => changed(e, now, &suite).is_empty(),
    };
    let current: Vec<&Entry> = own.iter().filter(is_current).copied().collect();
    if current.is_empty() {
        let mut what = changed(last, now, &suite);
        if required.backend == BackendKind::Process {
            what.retain(|w| *w == "code" || *w == "suite");
            what.iter_mut().filter(|w| **w == "code").for_each(|w| *w = "objects");
        }
        let text = format!("{} changed since the entry of {}; {check}", what.join(", "), last.date);
        return said(Status::Stale, text, what, Vec::new());
    }
    // A failure stands until the same cases pass.
    let superseded =
        |e: &Entry, i: usize| current[i + 1..].iter().any(|later| later.seed == e.seed);
    let standing =
        || current.iter().enumerate().filter(|(i, e)| !superseded(e, *i)).map(|(_, e)| *e);
    if let Some(e) = standing().find(|e| e.outcome.result != Ended::Pass) {
        let text = format!("{} (seed {}, {})", e.outcome.word(), e.seed, e.date);
        return plain(Status::Failed, text);
    }
    // Each pass is judged by itself; the last that satisfies counts, else the last is explained.
    let verdicts: Vec<(Status, String, &Entry)> = standing()
        .map(|e| {
            let (status, reason) = satisfies(e, required);
            (status, reason, e)
        })
        .collect();
    let good = verdicts.iter().rfind(|(status, ..)| *status == Status::Ok);
    match good.or(verdicts.last()) {
        Some((status, reason, e)) => {
            said(*status, reason.clone(), Vec::new(), e.outcome.conventions.clone())
        }
        None => plain(Status::Missing, format!("nothing is recorded; {check}")),
    }
}

/// Whether a passing, current entry is what is required.
fn satisfies(entry: &Entry, required: &Requirement) -> (Status, String) {
    let outcome = &entry.outcome;
    if let Some(wanted) = required.convention.as_ref().filter(|c| !outcome.conventions.contains(c))
    {
        let first = outcome.conventions.first().map_or("none", String::as_str);
        return (Status::OtherConvention, format!("follows `{first}`, and `{wanted}` is required"));
    }
    let reached = |name: &&String| entry.evidence.cells.iter().any(|c| c.name == **name);
    if let Some(cell) = required.cells.iter().find(|name| !reached(name)) {
        let known: Vec<&str> = entry.evidence.cells.iter().map(|c| c.name.as_str()).collect();
        let text = format!("no case reached the cell `{cell}`; recorded are {}", known.join(", "));
        return (Status::Missing, text);
    }
    let refused = required.allow_limited.refuses(&outcome.unseen);
    if !refused.is_empty() {
        let text = format!(
            "passes, but its cases cannot see {}; list them in allow_limited to accept that",
            refused.join(", ")
        );
        return (Status::Limited, text);
    }
    let mut text = format!("passed {} runs (seed {}, {})", entry.runs, entry.seed, entry.date);
    if !outcome.unseen.is_empty() {
        text += &format!("; not seen: {}", outcome.unseen.join(", "));
    }
    (Status::Ok, text)
}

/// `gfx90a` is any `gfx90a:sramecc+:xnack-`; the emulator's `x86_64` is not its `x86_64:mmac`, another build.
fn same_arch(wanted: &str, here: &str) -> bool {
    let bare = here.split(':').next() == Some(wanted);
    wanted == here || bare && Matrix::of_arch(wanted) == Matrix::of_arch(here)
}

fn check_command(required: &Requirement) -> String {
    let name = &required.name;
    let matrix = match required.arch.as_deref().map_or(Matrix::None, Matrix::of_arch) {
        Matrix::None => String::new(),
        matrix => format!(" --matrix {matrix}"),
    };
    match (required.backend, &required.source) {
        (BackendKind::Emu, None) => {
            format!("run `assay check --kernel {name}{matrix} --ledger FILE`")
        }
        (BackendKind::Emu, Some(source)) => {
            let source = source.display();
            format!("run `assay check --kernel {name}{matrix} --source {source} --ledger FILE`")
        }
        (BackendKind::Hip, _) => {
            format!("run `assay check --backend hip --kernel {name} --ledger FILE` on the device")
        }
        (BackendKind::Process, _) => {
            "check it again as it runs now: `assay exec --ledger FILE -- CMD`".into()
        }
    }
}

/// What the emulator would run of a source, built with these matrix instructions. One that does not
/// compile has no code.
///
/// # Errors
/// When there is no C++ compiler, or the emulator cannot run.
pub fn emulated(
    kernel: &Kernel,
    source: &str,
    matrix: Matrix,
) -> Result<Identity, assay_hip::Error> {
    let compiler = Compiler::find()?.with_matrix(matrix);
    match compiler.compile(source, Mode::Plain) {
        Err(assay_hip::Error::Compile { .. }) => Ok(Identity {
            kernel: kernel.name.into(),
            backend: BackendKind::Emu,
            arch: matrix.emulated_arch(),
            source: assay_hip::sha256(source),
            code: String::new(),
            toolchain: compiler.version().into(),
            runtime: String::new(),
        }),
        module => Backend::from(module?).identity(kernel),
    }
}

/// What would run here for a requirement.
///
/// # Errors
/// [`anyhow::Error`] when the emulator's compiler or a file is missing: nothing can be decided then.
/// `Ok(Err(..))` when there is nothing that would run, with the reason.
fn present(required: &Requirement, ledger: &Ledger) -> anyhow::Result<Result<Identity, String>> {
    if required.backend == BackendKind::Process {
        return foreign(required, ledger).map(Ok);
    }
    if let Some(subject) = vendor::subject(&required.name) {
        return match vendor::open(subject.vendor) {
            Err(e @ (assay_hip::Error::NoDevice { .. } | assay_hip::Error::NoLibrary { .. })) => {
                Ok(Err(e.to_string()))
            }
            library => Ok(Ok(library?.identity(&subject.kernel)?)),
        };
    }
    let kernel = assay_hip::kernel(&required.name)
        .ok_or_else(|| anyhow::anyhow!("there is no kernel `{}`", required.name))?;
    if required.backend == BackendKind::Hip {
        return match Backend::device() {
            Err(e @ assay_hip::Error::NoDevice { .. }) => Ok(Err(e.to_string())),
            device => Ok(Ok(device?.identity(kernel)?)),
        };
    }
    let read = |path| std::fs::read_to_string(path).map_err(LedgerError::io("read", path));
    let own = required.source.as_deref().map(read).transpose()?;
    let matrix = required.arch.as_deref().map_or(Matrix::None, Matrix::of_arch);
    Ok(Ok(emulated(kernel, own.as_deref().unwrap_or(kernel.source), matrix)?))
}

/// A foreign process: current when each required object is among those that an entry mapped. The
/// identity takes the latest such entry's key, else that of the objects alone.
fn foreign(required: &Requirement, ledger: &Ledger) -> anyhow::Result<Identity> {
    let objects: Vec<MappedObject> = required
        .objects
        .iter()
        .map(|path| Ok(MappedObject { path: path.clone(), sha256: hash_file(path)? }))
        .collect::<Result<_, LedgerError>>()?;
    let among = |e: &&Entry| {
        let mapped = |o: &MappedObject| e.objects.iter().any(|m| m.sha256 == o.sha256);
        e.identity.kernel == required.name
            && e.identity.backend == BackendKind::Process
            && objects.iter().all(mapped)
    };
    let code = ledger.entries().iter().rfind(among).map(|e| e.identity.code.clone());
    Ok(Identity {
        kernel: required.name.clone(),
        backend: BackendKind::Process,
        arch: required.arch.clone().unwrap_or_else(|| std::env::consts::ARCH.into()),
        source: String::new(),
        code: code.unwrap_or_else(|| super::objects_key(&objects)),
        toolchain: String::new(),
        runtime: String::new(),
    })
}

/// Decides about every requirement, for what would run on this machine.
///
/// # Errors
/// When the emulator's compiler is missing or a file cannot be read.
pub fn survey(ledger: &Ledger, required: &Requirements) -> anyhow::Result<Vec<Decision>> {
    let one = |r: &Requirement| {
        Ok(match present(r, ledger)? {
            Ok(now) => decide(ledger, r, &now),
            Err(reason) => Decision {
                kernel: r.name.clone(),
                backend: r.backend,
                arch: r.arch.clone().unwrap_or_default(),
                status: Status::Unknown,
                reason,
                changed: Vec::new(),
                conventions: Vec::new(),
            },
        })
    };
    required.kernels.iter().map(one).collect()
}

/// A ledger with what is required of it, as a serving path asks it.
#[derive(Clone, Debug)]
pub struct Gate {
    /// What is recorded.
    pub ledger: Ledger,
    /// What is required.
    pub required: Requirements,
}

fn admission(identity: &Identity, decision: Decision) -> Result<Admission, Refusal> {
    let Decision { kernel, backend, status, reason, conventions, .. } = decision;
    match status {
        Status::Ok => Ok(Admission { identity: identity.clone(), conventions, evidence: reason }),
        _ => Err(Refusal { kernel, backend, reason: format!("{}: {reason}", status.word()) }),
    }
}

impl Admit for Gate {
    fn admit(&self, identity: &Identity) -> Result<Admission, Refusal> {
        let fits = |r: &&Requirement| {
            r.name == identity.kernel
                && r.backend == identity.backend
                && r.arch.as_deref().is_none_or(|a| same_arch(a, &identity.arch))
        };
        match self.required.kernels.iter().find(fits) {
            Some(required) => admission(identity, decide(&self.ledger, required, identity)),
            None => Err(Refusal {
                kernel: identity.kernel.clone(),
                backend: identity.backend,
                reason: "it is not in the list of required kernels".into(),
            }),
        }
    }
}

/// Without a list: any passing, current entry admits, and the evidence says which faults it hides.
impl Admit for Ledger {
    fn admit(&self, identity: &Identity) -> Result<Admission, Refusal> {
        let mut required = Requirement::new(&identity.kernel, identity.backend);
        required.allow_limited = Limited::Any(true);
        admission(identity, decide(self, &required, identity))
    }
}
