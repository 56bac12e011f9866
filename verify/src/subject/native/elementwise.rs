//! Ops whose elements do not meet: `embedding`, `add`, `silu_mul`.

use assay_reference::{Dtype, Result, Tensor};

use super::run::Run;
use super::scalar::{Store, exp2};
use super::{Keys, Known};

pub(super) const EMBEDDING_FAULTS: &[Known] = &[
    ("scaled", Keys::None),
    ("id_offset", Keys::Number),
    ("id_16_bit", Keys::None),
    ("gain", Keys::Number),
];

pub(super) const ADD_FAULTS: &[Known] = &[
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("block_dropped", Keys::None),
    ("residual_dropped", Keys::None),
    ("sum_f16", Keys::None),
    ("gain", Keys::Number),
];

pub(super) const SILU_KNOBS: &[(&str, &[&str])] = &[("silu", &["f32", "stored"])];

pub(super) const SILU_FAULTS: &[Known] = &[
    ("operands_swapped", Keys::None),
    ("sigmoid", Keys::None),
    ("no_activation", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("log2e_bf16", Keys::None),
    ("exp_clamped", Keys::None),
    ("tanh_pade", Keys::None),
    ("exp_f16", Keys::None),
    ("gain", Keys::Number),
];

/// `embedding`: row ids\[t\] of the table.
pub(super) fn embedding(run: &Run<'_>) -> Result<Tensor> {
    let table = run.arg("weight")?;
    let &[v, h] = table.shape() else { return run.refuse("weight must be [V, H]") };
    let offset = run.number("id_offset").unwrap_or(0.0) as i64;
    let factor = if run.is("scaled") { (h as f32).sqrt() } else { 1.0 };
    let rows = run.floats("weight")?;
    let ids = run.ints("ids")?;
    let mut out = Vec::with_capacity(ids.len() * h);
    for id in &ids {
        let id = if run.is("id_16_bit") { id & 0xffff } else { *id };
        let row = (id + offset).rem_euclid(v as i64) as usize;
        out.extend(rows[row * h..][..h].iter().map(|x| x * factor));
    }
    let shape = [run.arg("ids")?.shape(), &[h]].concat();
    run.output(&shape, out)
}

/// `add`: a + b.
pub(super) fn add(run: &Run<'_>) -> Result<Tensor> {
    let (a, b) = (run.floats("a")?, run.floats("b")?);
    let half = |x: f32| Store::Nearest.round(Dtype::F16, x);
    let sum = |(a, b): (&f32, &f32)| match () {
        () if run.is("block_dropped") => *a,
        () if run.is("residual_dropped") => *b,
        () if run.is("sum_f16") => half(half(*a) + half(*b)),
        () => a + b,
    };
    run.output(run.arg("a")?.shape(), a.iter().zip(&b).map(sum).collect())
}

/// `silu_mul`: silu(gate) up.
pub(super) fn silu_mul(run: &Run<'_>) -> Result<Tensor> {
    let (gate, up) = (run.floats("gate")?, run.floats("up")?);
    let out = gate.iter().zip(&up).map(|(g, u)| gated(run, *g, *u)).collect();
    run.output(run.arg("gate")?.shape(), out)
}

/// silu(gate) up of one element, before it is stored.
pub(super) fn gated(run: &Run<'_>, gate: f32, up: f32) -> f32 {
    let (g, u) = if run.is("operands_swapped") { (up, gate) } else { (gate, up) };
    run.stored_if("silu", "stored", activation(run, g)) * u
}

fn activation(run: &Run<'_>, g: f32) -> f32 {
    let chain = run.chain();
    let e = match () {
        () if run.is("no_activation") => return g,
        () if run.is("tanh_pade") => {
            let y = 0.5 * g;
            let t = (y * (27.0 + y * y) / (27.0 + 9.0 * y * y)).clamp(-1.0, 1.0);
            return g * (0.5 + 0.5 * t);
        }
        () if run.is("log2e_bf16") => exp2(-g * 1.445_312_5),
        () if run.is("exp_clamped") => chain.exp(if -g > 10.0 { 10.0 } else { -g }),
        () if run.is("exp_f16") => Store::Nearest.round(Dtype::F16, chain.exp(-g)),
        () => chain.exp(-g),
    };
    if run.is("sigmoid") { 1.0 / (1.0 + e) } else { g / (1.0 + e) }
}
