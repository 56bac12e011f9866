//! The check of a kernel on the emulator: memory checks on small cases, then every case's output
//! through the judge, with the device's freedoms (last bits of exp, flushed subnormals, thread
//! order) exercised.

mod once;

use std::sync::Arc;

use assay_hip::emu::{Compiler, Mode, Placement};
use assay_hip::probe::layout::{self, LayoutMap};
use assay_hip::vendor::{self, Subject as VendorSubject};
use assay_hip::{Backend, Kernel, LaunchOptions, LaunchStatus, Matrix};
use assay_reference::ops::Scope;
use assay_reference::{Case, Dtype, Tensor};
use rayon::prelude::*;
use serde::Serialize;

use crate::dispatch::extent;
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

/// What a matrix path must not be checked without: whether the registers are where the path expects them.
fn misplaced(map: Option<&LayoutMap>) -> Vec<Finding> {
    let misplaced = map.map_or(Vec::new(), LayoutMap::misplaced);
    let Some(first) = misplaced.first() else { return Vec::new() };
    let text = match misplaced.len() {
        1 => first.to_string(),
        n => format!("{first}, and {} more registers", n - 1),
    };
    vec![Finding::new("matrix.layout", text)]
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
    let options = Options { scope: Scope::Kernel, unseen, preset: None };
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

/// Multiply-adds, or elements where there are none.
pub(crate) fn work(case: &Case) -> usize {
    let len = |name: &str| case.tensors.get(name).map_or(1, Tensor::len);
    match case.op.as_str() {
        "matmul" => {
            let n = case.tensors.get("weight").map_or(1, |w| w.shape()[0]);
            len("x") * n
        }
        "attention" => {
            let s = case.tensors.get("k").map_or(1, |k| k.shape()[0]);
            2 * len("q") * s
        }
        "attention_paged" => {
            2 * len("q") * case.tensors.get("context_len").map_or(1, |t| t.get_i64(0)) as usize
        }
        op if op.ends_with("_gemm") => {
            let columns = case.tensors.get("x").and_then(|x| x.shape().last()).map_or(1, |k| *k);
            len("x") / columns.max(1) * len("qweight") * 8
        }
        op if op.ends_with("_dequant") => len("qweight") * 8,
        _ => case.tensors.values().map(Tensor::len).sum(),
    }
}

/// Runs small cases with every access checked, the buffers alternately against the guard page at
/// their end and at their start.
fn memory_phase(
    kernel: &Kernel,
    backend: &Backend,
    cases: &[Generated],
    (seed, profile): (u64, Profile),
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<Finding>> {
    let found: Vec<Option<Vec<Finding>>> = cases
        .par_iter()
        .enumerate()
        .map(|(i, g)| {
            let mut findings = None;
            if work(&g.case) <= profile.checked_work() {
                let placement = if i % 2 == 0 { Placement::End } else { Placement::Start };
                let options =
                    LaunchOptions { seed: seed ^ 1, placement, ..LaunchOptions::default() };
                findings = Some(launch(kernel, backend, g, &options)?.1);
            }
            step();
            Ok(findings)
        })
        .collect::<anyhow::Result<_>>()?;
    let mut all = Vec::new();
    found.iter().flatten().for_each(|f| merge(&mut all, f.clone()));
    let ran: Vec<(&Case, &[Finding])> = (cases.iter().zip(&found))
        .filter_map(|(g, found)| Some((&g.case, found.as_deref()?)))
        .collect();
    all.iter_mut().for_each(|f| f.text += &extent(&f.name, &ran));
    all.sort_by_key(|f| CAUSES.iter().position(|c| *c == f.name).unwrap_or(CAUSES.len()));
    Ok(all)
}

/// Memory findings from cause to consequence: a thread that leaves early also leaves shared memory
/// unwritten and output cells empty.
const CAUSES: &[&str] = &[
    "memory.barrier_divergence",
    "memory.inactive_lane",
    "memory.lds_overrun",
    "memory.out_of_bounds_write",
    "memory.out_of_bounds_read",
    "memory.wild_access",
    "memory.input_modified",
    "memory.canary_damaged",
    "memory.overlapping_stores",
    "memory.data_race",
    "memory.uninitialised_lds",
    "memory.uninitialised_buffer",
    "memory.hang",
    "memory.stack_overflow",
    "memory.unwritten_output",
];

/// Keeps the first finding of each name, in order.
fn merge(all: &mut Vec<Finding>, more: Vec<Finding>) {
    for f in more {
        if !all.iter().any(|a| a.name == f.name) {
            all.push(f);
        }
    }
}

struct Runs {
    /// Of the op's first output.
    observations: Vec<Observation>,
    /// Of each further one, with its name.
    others: Vec<(&'static str, Observation)>,
    findings: Vec<Finding>,
}

impl Runs {
    /// All outputs of the plain run, whose observations come first; none when it gave none.
    fn plain(&self) -> Vec<&Tensor> {
        let Some(first) = self.observations.first() else { return Vec::new() };
        let others = self.others.iter().filter(|(_, o)| o.label == first.label);
        std::iter::once(&first.output).chain(others.map(|(_, o)| &o.output)).collect()
    }
}

fn run_case(
    kernel: &Kernel,
    backend: &Backend,
    g: &Generated,
    seed: u64,
    profile: Profile,
) -> anyhow::Result<Runs> {
    let case = Arc::new(g.case.clone());
    let observe = |runs: &mut Runs, outputs: Vec<(&'static str, Tensor)>, suffix: &str| {
        let label = format!("{}{suffix}", g.label);
        let of = |output| Observation {
            case: case.clone(),
            output,
            label: label.clone(),
            structured: g.structured,
        };
        let mut outputs = outputs.into_iter();
        runs.observations.extend(outputs.next().map(|(_, output)| of(output)));
        runs.others.extend(outputs.map(|(name, output)| (name, of(output))));
    };
    let base = LaunchOptions { seed: seed ^ 2, ..LaunchOptions::default() };
    let (outputs, findings) = launch(kernel, backend, g, &base)?;
    let mut runs = Runs { observations: Vec::new(), others: Vec::new(), findings };
    let Some(outputs) = outputs else { return Ok(runs) };
    observe(&mut runs, outputs.clone(), "");
    if work(&g.case) > profile.repeat_work() || !runs.findings.is_empty() {
        return Ok(runs);
    }
    // The same bits again: another thread order over another fill.
    let again = LaunchOptions { seed: seed ^ 3, fill: vec![0x5a], ..base.clone() };
    let (repeat, findings) = launch(kernel, backend, g, &again)?;
    merge(&mut runs.findings, findings);
    if repeat.is_some_and(|r| r != outputs) {
        let text = format!("{}: another thread order gave other bits", g.label);
        merge(&mut runs.findings, vec![Finding::new("not_deterministic", text)]);
    }
    // A device's last bits: on the emulator the verdict must hold for them too.
    let perturbations: &[u32] = if matches!(backend, Backend::Emulated(_)) { &[1, 2] } else { &[] };
    for &ulps in perturbations {
        let ftz = ulps == 2 && g.case.family != "special";
        let perturbed = LaunchOptions { ulps, ftz, placement: Placement::Start, ..base.clone() };
        let (outputs, findings) = launch(kernel, backend, g, &perturbed)?;
        merge(&mut runs.findings, findings);
        if let Some(outputs) = outputs {
            let flushed = if ftz { ", subnormals flushed" } else { "" };
            let label = format!(" (exp off by {ulps} ulp{flushed})");
            observe(&mut runs, outputs, &label);
        }
    }
    Ok(runs)
}

/// What a launch stored, by output, when it completed.
type Outputs = Option<Vec<(&'static str, Tensor)>>;

/// One launch: the outputs when it completed, and the findings.
fn launch(
    kernel: &Kernel,
    backend: &Backend,
    g: &Generated,
    options: &LaunchOptions,
) -> anyhow::Result<(Outputs, Vec<Finding>)> {
    let launched = match (kernel.run)(backend, &g.case, options) {
        // A library's answer to a case within the contract says something of the library.
        Err(e @ assay_hip::Error::Library { .. }) => {
            let text = format!("{}: {e}", g.label);
            return Ok((None, vec![Finding::new("library_error", text)]));
        }
        launched => launched?,
    };
    let mut findings: Vec<Finding> = Vec::new();
    for f in &launched.report.findings {
        merge(&mut findings, vec![Finding::new(f.code(), format!("{}: {f}", g.label))]);
    }
    if let LaunchStatus::Refused(code) = launched.report.status {
        let text = format!("{}: the launcher returned hipError_t {code}", g.label);
        findings.push(Finding::new("launch_refused", text));
    }
    let completed = launched.report.status == LaunchStatus::Completed;
    Ok((completed.then_some(launched.outputs), findings))
}

/// How many times `step` is called for a kernel.
pub fn steps(kernel: &Kernel, seed: u64) -> usize {
    2 * cases(kernel, seed).0.len()
}
