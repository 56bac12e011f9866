//! One kernel source on single cases.

use std::time::{Duration, Instant};

use assay_hip::emu::{Compiler, Mode, Placement};
use assay_hip::{Backend, Kernel, LaunchOptions, LaunchStatus, Matrix};
use assay_reference::Tensor;
use assay_reference::ops::{Erased, Op};

use super::Replay;
use crate::families::Generated;
use crate::finding::Finding;
use crate::judge::{Judgement, Unseen, Verdict};

/// Time that [`capture`] takes at most before it gives up, at a case's end.
const CAPTURE: Duration = Duration::from_secs(60);
/// Elements of a case that is also tried with every access checked.
const CHECKED_ELEMENTS: usize = 100_000;

/// A kernel source, ready to run: on the emulator with and without checks, or on a device.
pub struct Bench<'a> {
    kernel: &'a Kernel,
    source: Option<String>,
    matrix: Matrix,
    plain: Backend,
    checked: Option<Backend>,
}

/// What one launch gave.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What it stored, by output, if it completed.
    pub outputs: Vec<(String, Tensor)>,
    /// The first output's judgement that is not a pass, or the memory findings as one.
    pub judgement: Judgement,
}

impl Trial {
    /// The name of the first finding.
    pub fn finding(&self) -> Option<String> {
        self.judgement.verdict.findings().first().map(|f| f.name.clone())
    }
}

impl<'a> Bench<'a> {
    /// A source on the emulator, built with these matrix instructions.
    ///
    /// # Errors
    /// When there is no compiler, or it refuses the source.
    pub fn emulated(kernel: &'a Kernel, source: &str, matrix: Matrix) -> anyhow::Result<Bench<'a>> {
        let compiler = Compiler::find()?.with_matrix(matrix);
        Ok(Bench {
            kernel,
            source: Some(source.into()),
            matrix,
            plain: compiler.compile(source, Mode::Plain)?.into(),
            checked: Some(compiler.compile(source, Mode::Checked)?.into()),
        })
    }

    /// The built-in kernel on a device.
    ///
    /// # Errors
    /// When there is no device.
    pub fn device(kernel: &'a Kernel) -> anyhow::Result<Bench<'a>> {
        let (source, matrix, checked) = (None, Matrix::None, None);
        Ok(Bench { kernel, source, matrix, plain: Backend::device()?, checked })
    }

    /// A function of a vendor's library on a device.
    ///
    /// # Errors
    /// When there is no device or no library.
    pub fn vendor(subject: &'a assay_hip::vendor::Subject) -> anyhow::Result<Bench<'a>> {
        let plain = assay_hip::vendor::open(subject.vendor)?;
        let (source, matrix, checked) = (None, Matrix::None, None);
        Ok(Bench { kernel: &subject.kernel, source, matrix, plain, checked })
    }

    /// Runs one case and judges it alone.
    ///
    /// # Errors
    /// When the case breaks the kernel's contract, or the backend fails.
    pub fn try_case(
        &self,
        g: &Generated,
        options: &LaunchOptions,
        checked: bool,
    ) -> anyhow::Result<Trial> {
        let backend = self.checked.as_ref().filter(|_| checked).unwrap_or(&self.plain);
        let launched = (self.kernel.run)(backend, &g.case, options)?;
        let mut findings: Vec<Finding> = Vec::new();
        for f in &launched.report.findings {
            findings.push(Finding::new(f.code(), format!("{}: {f}", g.label)));
        }
        if let LaunchStatus::Refused(code) = launched.report.status {
            let text = format!("{}: the launcher returned hipError_t {code}", g.label);
            findings.push(Finding::new("launch_refused", text));
        }
        let completed = launched.report.status == LaunchStatus::Completed;
        // Outputs have the op's names and its order.
        let (_, specs) = Erased::open(&g.case)?;
        let stored = launched.outputs.into_iter().filter(|_| completed);
        let outputs: Vec<(String, Tensor)> =
            specs.iter().zip(stored).map(|(spec, (_, t))| (spec.name.to_string(), t)).collect();
        if outputs.is_empty() || !findings.is_empty() {
            let mut judgement = Judgement::skipped("");
            judgement.verdict = Verdict::Fail { findings };
            return Ok(Trial { outputs, judgement });
        }
        let mut replay = self.replay(g, options, checked);
        replay.set_outputs(outputs.clone());
        let mut judged: Vec<Judgement> =
            replay.judge(Unseen::Nothing)?.into_iter().map(|(_, j)| j).collect();
        let first = judged.iter().position(|j| !j.verdict.is_pass()).unwrap_or(0);
        Ok(Trial { outputs, judgement: judged.swap_remove(first) })
    }

    /// A replay of a case on this bench, without outputs.
    pub fn replay(&self, g: &Generated, options: &LaunchOptions, checked: bool) -> Replay {
        Replay {
            case: g.case.clone(),
            label: g.label.clone(),
            structured: g.structured,
            kernel: Some(self.kernel.name.into()),
            source: self.source.clone(),
            matrix: self.matrix,
            checked,
            options: options.clone(),
            finding: None,
        }
    }
}

/// Elements of a case's inputs.
pub(super) fn elements(g: &Generated) -> usize {
    g.case.tensors.values().map(Tensor::len).sum()
}

/// The smallest case of the kernel's suite that alone shows the finding named `wanted`, with its
/// output. `None` when no single case does, as for findings about several runs, or not within a minute.
///
/// # Errors
/// When the backend fails.
pub fn capture(bench: &Bench<'_>, wanted: &str, seed: u64) -> anyhow::Result<Option<Replay>> {
    let start = Instant::now();
    let (mut cases, _) = crate::suite::cases(bench.kernel, seed);
    cases.sort_by_key(elements);
    // What a checked launch finds is looked for there, at both ends of the buffers.
    let memory = wanted.starts_with("memory.");
    let placements = [Placement::End, Placement::Start];
    let ways: Vec<(bool, Placement)> = if memory {
        placements.iter().flat_map(|&p| [(true, p), (false, p)]).collect()
    } else {
        vec![(false, Placement::End)]
    };
    for g in &cases {
        for &(checked, placement) in &ways {
            if start.elapsed() > CAPTURE {
                return Ok(None);
            }
            if checked && elements(g) > CHECKED_ELEMENTS {
                continue;
            }
            let options = LaunchOptions { seed: seed ^ 2, placement, ..LaunchOptions::default() };
            let trial = bench.try_case(g, &options, checked)?;
            if trial.judgement.verdict.findings().iter().any(|f| f.name == wanted) {
                let mut replay = bench.replay(g, &options, checked);
                replay.set_outputs(trial.outputs);
                replay.finding = Some(wanted.into());
                return Ok(Some(replay));
            }
        }
    }
    Ok(None)
}
