//! Ops on the model's own shapes and weights: the model run on kernels, each launch judged.

use assay_hip::engine::Kernels;

use super::mend::Model;
use super::report::{Evidence, Outcome, Row};
use super::{plural, trace};
use crate::diff::{NodeReport, engine};
use crate::forward;

/// The row of the kernels.
pub(super) fn row(
    model: Result<&Model, &str>,
    kernels: Option<(&Kernels, &engine::Prompt)>,
    step: &mut dyn FnMut(usize, usize, &str),
) -> Row {
    Row::new(
        "kernels on the model's own weights",
        "a prompt run on HIP kernels, every launch judged on its own inputs",
        "minutes on the emulator",
        outcome(model, kernels, step),
    )
}

fn outcome(
    model: Result<&Model, &str>,
    kernels: Option<(&Kernels, &engine::Prompt)>,
    step: &mut dyn FnMut(usize, usize, &str),
) -> Outcome {
    let not = |needs: String| Outcome::NotTestable { needs };
    let Some((kernels, prompt)) = kernels else {
        return not("kernels (--backend emu, or hip on a device; --kernel NAME --source FILE for one of yours)".into());
    };
    let model = match model {
        Ok(model) => model,
        Err(why) => return not(format!("a checkpoint that can be read: {why}")),
    };
    let report = match engine::diff(&model.checkpoint, kernels, prompt, step) {
        Ok(report) => report,
        Err(e) => return not(format!("kernels that run this model: {e:#}")),
    };
    let (stretches, ops): (Vec<&NodeReport>, Vec<&NodeReport>) =
        report.nodes.iter().partition(|n| n.op == forward::NAME);
    let mut evidence: Vec<Evidence> = trace::introduced(&ops);
    if evidence.is_empty() {
        evidence = trace::introduced(&stretches);
    }
    if !evidence.is_empty() {
        return Outcome::Convicted { evidence };
    }
    let by = format!(
        "{} pass, over {} of prompt in calls of {}",
        plural(ops.len(), "place"),
        plural(prompt.ids.len(), "token"),
        prompt.chunk
    );
    let limits = vec![
        "kernels of this project, unless --source gives one: they say nothing of the engine's own"
            .into(),
    ];
    Outcome::Cleared { by, limits }
}
