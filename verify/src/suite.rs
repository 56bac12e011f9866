//! The check of a kernel on the emulator: memory checks on small cases, then every case's output
//! through the judge, with the device's freedoms (last bits of exp, flushed subnormals, thread
//! order) exercised.

mod memory;
mod once;
mod runs;

use assay_hip::emu::{Compiler, Mode};
use assay_hip::probe::layout;
use assay_hip::vendor::{self, Subject as VendorSubject};
use assay_hip::{Backend, Kernel, LaunchOptions, LaunchStatus, Matrix};
use assay_reference::ops::Scope;
use assay_reference::{Case, Dtype, Tensor};
use rayon::prelude::*;
use serde::Serialize;

use self::memory::{memory_phase, misplaced};
pub(crate) use self::runs::work;
use self::runs::{Runs, merge, run_case};
use crate::families::{self, Generated};
use crate::finding::Finding;
use crate::judge::{Judgement, Observation, Options, Unseen, Verdict, judge_all};
use crate::ledger::Evidence;
use crate::relations::{self, Claims};
use crate::subject::Subject;

/// Shared memory of a workgroup on the devices that the kernels are for.
const LDS_LIMIT: usize = 64 * 1024;

/// How much of a check to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Everything, larger cases with every access checked and repeated too, and the pairs of faults that
    /// the cases would call by each other's name.
    Full,
    /// Everything within seconds a kernel.
    Standard,
    /// The same, and each case of any size with every access checked.
    Sanitize,
    /// The same, and the pairs.
    Pairs,
    /// What decides whether a wrong kernel is caught: each case once checked and once plain.
    Power,
}

impl Profile {
    /// Largest number of multiply-adds of a case that also runs with every access checked.
    fn checked_work(self) -> usize {
        match self {
            Profile::Sanitize => usize::MAX,
            Profile::Full => 20_000_000,
            Profile::Standard | Profile::Pairs | Profile::Power => 1_000_000,
        }
    }

    /// The same for the runs that only repeat.
    fn repeat_work(self) -> usize {
        match self {
            Profile::Full => usize::MAX,
            Profile::Standard | Profile::Sanitize | Profile::Pairs => 6_000_000,
            Profile::Power => 0,
        }
    }
}

/// The outcome for one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// Kernel name, with the build where it is not the plain one: `gemm_bf16 [mmac]`.
    pub kernel: String,
    /// The op that it implements.
    pub op: String,
    /// Cases of the op that are within the kernel's contract.
    pub cases: usize,
    /// Those that are not, by what the contract asks.
    pub outside: Vec<Outside>,
    /// Families, dispatch cells and the bits of the outputs.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// Verdict and figures.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// Cases of an op that a kernel does not take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outside {
    /// What its contract asks: `x: a shape [..., K] with 1 to 8 rows`.
    pub contract: String,
    /// How many cases break it.
    pub cases: usize,
}

/// The cases of a kernel's op that are within its contract, and the others.
pub fn cases(kernel: &Kernel, seed: u64) -> (Vec<Generated>, Vec<Outside>) {
    let mut outside: Vec<Outside> = Vec::new();
    let mut count = |contract: String| match outside.iter_mut().find(|o| o.contract == contract) {
        Some(known) => known.cases += 1,
        None => outside.push(Outside { contract, cases: 1 }),
    };
    let mut all = match vendor::subject(kernel.name) {
        Some(subject) if subject.dtype == Dtype::F32 => families::f32_cases(kernel.op, seed),
        Some(_) => families::without_bias(kernel.op, seed),
        None => families::cases(kernel.op, seed),
    };
    all.retain(|g| match kernel.accepts(&g.case) {
        Ok(()) => true,
        Err(assay_hip::Error::Argument { argument, expected, .. }) => {
            count(format!("{argument}: {expected}"));
            false
        }
        // A defect, which the run will report.
        Err(_) => true,
    });
    (all, outside)
}

impl KernelReport {
    fn new(
        (kernel, matrix): (&Kernel, Matrix),
        (cases, outside): &(Vec<Generated>, Vec<Outside>),
        evidence: Evidence,
        judgement: Judgement,
    ) -> KernelReport {
        KernelReport {
            kernel: matrix.label(kernel.name),
            op: kernel.op.into(),
            cases: cases.len(),
            outside: outside.clone(),
            evidence,
            judgement,
        }
    }

    fn failed(
        kernel: (&Kernel, Matrix),
        cases: &(Vec<Generated>, Vec<Outside>),
        findings: Vec<Finding>,
    ) -> KernelReport {
        let mut judgement = Judgement::skipped("");
        judgement.verdict = Verdict::Fail { findings };
        KernelReport::new(kernel, cases, Evidence::of(&cases.0, &[]), judgement)
    }
}

/// Checks `source`, built with these matrix instructions, as an implementation of `kernel`. Nothing but
/// the source and the cases decides.
///
/// `step` is called once for each case of each phase.
///
/// # Errors
/// When there is no C++ compiler, or the emulator cannot run. A source that does not compile is a
/// finding.
pub fn check_kernel(
    kernel: &Kernel,
    (source, matrix): (&str, Matrix),
    seed: u64,
    profile: Profile,
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<KernelReport> {
    let cases = cases(kernel, seed);
    let compiler = Compiler::find()?.with_matrix(matrix);
    let build = (kernel, matrix);
    let compile = |mode| match compiler.compile(source, mode) {
        Ok(module) => Ok(Ok(module)),
        Err(e @ assay_hip::Error::Compile { .. }) => Ok(Err(e)),
        Err(e) => Err(e),
    };
    let refused = |e: assay_hip::Error| {
        KernelReport::failed(build, &cases, vec![Finding::new("compile_error", e.to_string())])
    };
    let checked = match compile(Mode::Checked)? {
        Ok(module) => module,
        Err(e) => return Ok(refused(e)),
    };
    if matrix != Matrix::None {
        let findings = misplaced(layout::emulated(matrix)?.as_ref());
        if !findings.is_empty() {
            return Ok(KernelReport::failed(build, &cases, findings));
        }
    }
    let lds = checked.static_lds_bytes();
    let mut findings = memory_phase(kernel, &checked.into(), &cases.0, (seed, profile), step)?;
    if lds > LDS_LIMIT {
        let text = format!("{lds} bytes of static shared memory: a workgroup has {LDS_LIMIT}");
        findings.insert(0, Finding::new("memory.lds_limit", text));
    }
    if !findings.is_empty() {
        return Ok(KernelReport::failed(build, &cases, findings));
    }
    match compile(Mode::Plain)? {
        Ok(module) => check_backend(kernel, &module.into(), seed, profile, step),
        Err(e) => Ok(refused(e)),
    }
}

/// Whether the results of `source` pass although an access check found something in it: a race that no
/// schedule showed, a read beyond a buffer whose value is not used.
///
/// # Errors
/// As [`check_kernel`].
pub fn results_pass(
    kernel: &Kernel,
    (source, matrix): (&str, Matrix),
    seed: u64,
) -> anyhow::Result<bool> {
    let compiler = Compiler::find()?.with_matrix(matrix);
    let Ok(module) = compiler.compile(source, Mode::Plain) else { return Ok(false) };
    let report = check_backend(kernel, &module.into(), seed, Profile::Power, &|| {})?;
    Ok(report.judgement.verdict.is_pass())
}

/// Checks `kernel` on the first HIP device; skipped, never passed, when there is none.
///
/// # Errors
/// When the device fails.
pub fn check_device(
    kernel: &Kernel,
    seed: u64,
    profile: Profile,
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<KernelReport> {
    check_where(kernel, Backend::device(), seed, profile, step)
}

/// Checks a function of a vendor's library on the first HIP device; skipped, never passed, when there is
/// no device or no library.
///
/// # Errors
/// When the device fails, or the library cannot be started.
pub fn check_vendor(
    subject: &VendorSubject,
    seed: u64,
    profile: Profile,
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<KernelReport> {
    check_where(&subject.kernel, vendor::open(subject.vendor), seed, profile, step)
}

fn check_where(
    kernel: &Kernel,
    backend: Result<Backend, assay_hip::Error>,
    seed: u64,
    profile: Profile,
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<KernelReport> {
    let build = (kernel, Matrix::None);
    let reason = match backend {
        Ok(backend) => {
            if kernel.builds().len() > 1 {
                let findings = misplaced(layout::layout_map(&backend)?.as_ref());
                if !findings.is_empty() {
                    return Ok(KernelReport::failed(build, &cases(kernel, seed), findings));
                }
            }
            return check_backend(kernel, &backend, seed, profile, step);
        }
        Err(assay_hip::Error::NoDevice { reason }) => format!("no device: {reason}"),
        Err(e @ assay_hip::Error::NoLibrary { .. }) => e.to_string(),
        Err(e) => return Err(e.into()),
    };
    let nothing = (Vec::new(), Vec::new());
    Ok(KernelReport::new(build, &nothing, Evidence::default(), Judgement::skipped(reason)))
}

/// Runs every case of `kernel` on a backend, the emulator or a device, and judges the outputs.
///
/// `step` is called once for each case.
///
/// # Errors
/// When the backend cannot run.
pub fn check_backend(
    kernel: &Kernel,
    backend: &Backend,
    seed: u64,
    profile: Profile,
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<KernelReport> {
    let matrix = match backend {
        Backend::Emulated(module) => module.matrix(),
        _ => Matrix::None, // of a device, the architecture says it
    };
    let build = (kernel, matrix);
    let own = cases(kernel, seed);
    let cases = &own.0;
    let runs: Vec<Runs> = cases
        .par_iter()
        .map(|g| {
            let runs = run_case(kernel, backend, g, seed, profile);
            step();
            runs
        })
        .collect::<anyhow::Result<_>>()?;
    let plain: Vec<Vec<&Tensor>> = runs.iter().map(Runs::plain).collect();
    let evidence = Evidence::of(cases, &plain);
    let mut findings: Vec<Finding> = Vec::new();
    let mut observations = Vec::new();
    let mut others: Vec<(&'static str, Vec<Observation>)> = Vec::new();
    for r in runs {
        merge(&mut findings, r.findings);
        observations.extend(r.observations);
        for (output, observation) in r.others {
            match others.iter_mut().find(|(name, _)| *name == output) {
                Some((_, of_it)) => of_it.push(observation),
                None => others.push((output, vec![observation])),
            }
        }
    }
    if !findings.is_empty() {
        return Ok(KernelReport::failed(build, &own, findings));
    }
    let unseen = match profile {
        Profile::Standard | Profile::Sanitize => Unseen::Catalogue,
        Profile::Full | Profile::Pairs => Unseen::Pairs,
        Profile::Power => Unseen::Nothing,
    };
    let options = Options { scope: Scope::Kernel, unseen, preset: None, known: None };
    let mut judgement = if kernel.builds().len() > 1 && others.is_empty() {
        once::judge_once(kernel.op, &observations, options)?
    } else {
        judge_all(kernel.op, &observations, &others, options)?
    };
    if judgement.verdict.is_pass() {
        // A fault with a name says more than a relation that it breaks.
        // A library may choose another kernel for each shape, and promises nothing else.
        let batch_invariant = !matches!(backend, Backend::Library(_));
        let claims = Claims { batch_invariant, scope: Scope::Kernel };
        let broken = relations::check(&Launched { kernel, backend, seed }, seed, claims)?;
        if !broken.is_empty() {
            judgement.verdict = Verdict::Fail { findings: broken };
        }
    }
    Ok(KernelReport::new(build, &own, evidence, judgement))
}

/// A kernel on a backend as a subject: the output of one launch.
struct Launched<'a> {
    kernel: &'a Kernel,
    backend: &'a Backend,
    seed: u64,
}

impl Subject for Launched<'_> {
    fn op(&self) -> &str {
        self.kernel.op
    }

    fn takes(&self, case: &Case) -> bool {
        !matches!(self.kernel.accepts(case), Err(assay_hip::Error::Argument { .. }))
    }

    fn run(&self, case: &Case) -> assay_reference::Result<Tensor> {
        let options = LaunchOptions { seed: self.seed ^ 4, ..LaunchOptions::default() };
        let refused =
            |what: String| assay_reference::Error::Request(format!("{}: {what}", self.kernel.name));
        let launched =
            (self.kernel.run)(self.backend, case, &options).map_err(|e| refused(e.to_string()))?;
        match launched.report.status {
            LaunchStatus::Completed => Ok(launched.output().clone()),
            other => Err(refused(format!("the launch ended as {other:?}"))),
        }
    }
}

/// How many times `step` is called for a kernel.
pub fn steps(kernel: &Kernel, seed: u64) -> usize {
    2 * cases(kernel, seed).0.len()
}
