//! Mixtures of experts: Qwen3-MoE's fields.

use super::Architecture;
use super::fields::Fields;
use crate::error::Result;

/// The sparse layers of a mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moe {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts that a token goes to.
    pub num_experts_per_tok: usize,
    /// Whether the chosen experts' weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Width of an expert.
    pub intermediate_size: usize,
    /// By layer: whether it is a mixture; the others have one dense MLP.
    pub sparse: Vec<bool>,
}

const WHY: &str =
    "assay does not guess it: take it from the original config.json (Qwen3-30B-A3B's is";

/// The most experts of a whole model: each is looked at by name before a tensor is.
const MAX_EXPERTS: usize = 1 << 17;

/// The fields of a mixture; `None` for dense architectures, whose config must not have them.
pub(super) fn read(
    f: &Fields<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<Option<Moe>> {
    if architecture != Architecture::Qwen3Moe {
        return Ok(None);
    }
    let num_experts = match (
        f.integer("num_experts", 1..=1 << 12)?,
        f.integer("num_local_experts", 1..=1 << 12)?,
    ) {
        (Some(a), Some(b)) if a != b => {
            return Err(f.error(
                "num_experts",
                format!("is {a}, but `num_local_experts` is {b}: one of the two is wrong"),
            ));
        }
        (a, b) => f.need("num_experts", a.or(b), &format!("{WHY} 128)"))? as usize, // 1..=2^12
    };
    let chosen = f.integer("num_experts_per_tok", 1..=num_experts as i64)?;
    let chosen = f.need("num_experts_per_tok", chosen, &format!("{WHY} 8)"))? as usize;
    let normalised = f.flag("norm_topk_prob")?;
    let normalised = f.need(
        "norm_topk_prob",
        normalised,
        &format!("{WHY} true, but transformers would take false)"),
    )?;
    let step = f.integer("decoder_sparse_step", 1..=1 << 12)?;
    let step = f.need("decoder_sparse_step", step, &format!("{WHY} 1)"))? as usize;
    let dense = f.integers("mlp_only_layers", 0..=layers as i64 - 1)?.unwrap_or_default();
    let sparse: Vec<bool> =
        (0..layers).map(|i| (i + 1).is_multiple_of(step) && !dense.contains(&(i as i64))).collect();
    let mixtures = sparse.iter().filter(|s| **s).count();
    if mixtures * num_experts > MAX_EXPERTS {
        return Err(f.error(
            "num_experts",
            format!(
                "is {num_experts} in each of {mixtures} layers: at most {MAX_EXPERTS} experts in all \
                 are supported (released models have about 12000)"
            ),
        ));
    }
    Ok(Some(Moe {
        num_experts,
        num_experts_per_tok: chosen,
        norm_topk_prob: normalised,
        intermediate_size: f.count("moe_intermediate_size", 1 << 20)?,
        sparse,
    }))
}
