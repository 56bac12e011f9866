//! Norms fused with the addition before them.
//!
//! A trace records the residual stream as it was stored, and a norm is judged on that. A fused kernel
//! may normalise the sum as it was in f32 instead (`residual=f32` of `add_rms_norm`: FlashInfer's
//! kernel, vLLM's torch implementation), which in 16 bits is another input. So a norm that is wrong on
//! the stored sum, while the addition that made the sum is right, is judged as the composite too, on the
//! addition's own inputs.
//!
//! Source: `fused_add_rms_norm` in <https://github.com/vllm-project/vllm/blob/main/vllm/ir/ops/layernorm.py>

use assay_reference::Result;
use assay_reference::qwen::{Node, Plan, Source};
use serde_json::json;

use super::{NodeReport, Recording};

/// The name of the composite.
const OP: &str = "add_rms_norm";

/// Judges the failing norms of `nodes` (which are `plan`'s, in order) as fused, and takes the verdict
/// where it is a pass. Not under a preset, which says how norms round and nothing of the composite.
pub(super) fn settle(plan: &Plan, source: &Recording<'_>, nodes: &mut [NodeReport]) -> Result<()> {
    if source.options.preset.is_some() {
        return Ok(());
    }
    for i in 0..nodes.len() {
        if nodes[i].judgement.verdict.findings().is_empty() {
            continue;
        }
        let Some((add, fused)) = composite(plan, &plan.nodes[i]) else { continue };
        if !nodes[add].judgement.verdict.is_pass() {
            continue;
        }
        let judgement = source.judge(&fused)?;
        if judgement.verdict.is_pass() {
            nodes[i] = NodeReport::new(&fused.probe, OP, judgement);
        }
    }
    Ok(())
}

/// A norm and the addition whose sum it reads as one op, and the addition's place in the plan.
fn composite(plan: &Plan, norm: &Node) -> Option<(usize, Node)> {
    if norm.op != "rms_norm" {
        return None;
    }
    let (_, x) = norm.inputs.iter().find(|(arg, _)| arg == "x")?;
    let Source::Probe(sum, _) = x else { return None };
    let add = plan.nodes.iter().position(|n| n.op == "add" && n.probe == *sum)?;
    let mut fused = norm.clone();
    fused.op = OP;
    fused.params = json!({ "norm": norm.params });
    fused.inputs.retain(|(arg, _)| arg != "x");
    fused.inputs.extend(plan.nodes[add].inputs.iter().cloned());
    Some((add, fused))
}
