//! The suite's power: kernels broken on purpose must be caught, legitimate changes must pass.
//!
//! A mutant is data: an anchor in the kernel source and its replacement. It is compiled and checked
//! like any source; what it is called and what is expected are compared with the findings afterwards.

use assay_hip::{Kernel, Matrix, mutate};
use serde::Serialize;

use crate::finding::Finding;
use crate::judge::Verdict;
use crate::suite::{KernelReport, Profile, check_kernel, results_pass};

/// What an edit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Breaks the kernel: must be caught.
    Mutant,
    /// A legitimate change: must pass.
    Control,
}

/// A source edit to be checked.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The kernel that it edits.
    pub kernel: &'static Kernel,
    /// `gemm_bf16.k_limit`.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// The edited source.
    pub source: String,
    /// The build that is checked.
    pub matrix: Matrix,
    /// The finding that should come of it; `None` for controls.
    pub expected: Option<String>,
}

/// The outcome for an edit.
#[derive(Clone, Debug, Serialize)]
pub struct EditReport {
    /// `gemm_bf16.k_limit`.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Whether anything was found.
    pub caught: bool,
    /// The name given: that of the first finding.
    pub named: Option<String>,
    /// The name that is right.
    pub expected: Option<String>,
    /// For a mutant, whether the name given is the right one, which `unexplained` never is; for a control,
    /// whether it passed.
    pub right: bool,
    /// All findings.
    pub findings: Vec<Finding>,
    /// The conventions of a pass.
    pub conventions: Vec<String>,
    /// Whether only the checks of single accesses caught it: its results pass.
    pub only_sanitize: bool,
}

/// What is found where no name is.
const NAMELESS: &str = "unexplained";

impl EditReport {
    /// Whether the catalogue has no name for the mutant.
    pub fn is_nameless(&self) -> bool {
        self.expected.as_deref() == Some(NAMELESS)
    }

    /// A mutant is caught, a control passes.
    pub fn is_good(&self) -> bool {
        match self.kind {
            Kind::Mutant => self.caught,
            Kind::Control => !self.caught,
        }
    }
}

/// All edits of all kernels, mutants first within each.
///
/// # Errors
/// When an anchor does not occur exactly once.
pub fn edits() -> anyhow::Result<Vec<Edit>> {
    let mut out = Vec::new();
    for kernel in assay_hip::kernels() {
        for m in &kernel.mutants {
            out.push(Edit {
                kernel,
                name: format!("{}.{}", kernel.name, m.edit.name),
                kind: Kind::Mutant,
                source: mutate(kernel.source, &m.edit)?,
                matrix: m.edit.matrix,
                expected: Some(m.expect.clone()),
            });
        }
        for c in &kernel.controls {
            out.push(Edit {
                kernel,
                name: format!("{}.{}", kernel.name, c.name),
                kind: Kind::Control,
                source: mutate(kernel.source, c)?,
                matrix: c.matrix,
                expected: None,
            });
        }
    }
    Ok(out)
}

/// Checks one edit.
///
/// # Errors
/// As [`check_kernel`].
pub fn check(edit: &Edit, seed: u64) -> anyhow::Result<EditReport> {
    let build = (edit.source.as_str(), edit.matrix);
    let report = check_kernel(edit.kernel, build, seed, Profile::Power, &|| {})?;
    let mut report = grade(edit, report);
    if report.caught && report.findings.iter().all(|f| f.name.starts_with("memory.")) {
        report.only_sanitize = results_pass(edit.kernel, build, seed)?;
    }
    Ok(report)
}

fn grade(edit: &Edit, report: KernelReport) -> EditReport {
    let findings = report.judgement.verdict.findings();
    let caught = !report.judgement.verdict.is_pass();
    let named = findings.first().map(|f| f.name.clone());
    let right = match edit.kind {
        Kind::Mutant => named == edit.expected && named.as_deref().is_some_and(|n| n != NAMELESS),
        Kind::Control => !caught,
    };
    let conventions = match report.judgement.verdict {
        Verdict::Pass { conventions, .. } => conventions,
        _ => Vec::new(),
    };
    EditReport {
        name: edit.name.clone(),
        kind: edit.kind,
        caught,
        named,
        expected: edit.expected.clone(),
        right,
        findings,
        conventions,
        only_sanitize: false,
    }
}
