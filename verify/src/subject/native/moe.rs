//! A mixture of experts: `moe_route` and `moe_experts`.

use assay_reference::{Dtype, Result, Tensor};
use serde_json::Value;

use super::chain::Rows;
use super::elementwise::gated;
use super::linear::transposed;
use super::packed::{Format, Source};
use super::run::Run;
use super::scalar::{Store, floats};
use super::softmax::softmax;
use super::{Chain, Keys, Known};

pub(super) const ROUTE_KNOBS: &[(&str, &[&str])] = &[("weights", &["stored", "f32"])];

pub(super) const ROUTE_FAULTS: &[Known] = &[
    ("normalisation_flipped", Keys::None),
    ("one_expert_fewer", Keys::None),
    ("one_expert_more", Keys::None),
    ("smallest_chosen", Keys::None),
    ("first_chosen", Keys::None),
    ("sigmoid", Keys::None),
    ("probs_stored", Keys::None),
    ("truncating_store", Keys::None),
    ("divisor_stored", Keys::None),
    ("experts_limited", Keys::Number),
    ("gain", Keys::Number),
];

pub(super) const EXPERT_KNOBS: &[(&str, &[&str])] = &[
    ("intermediate", &["stored", "f32"]),
    ("silu", &["f32", "stored"]),
    ("down", &["f32", "stored"]),
    ("scaled", &["stored", "f32"]),
    ("sum", &["f32", "stored"]),
    ("scale", &["f16", "file", "stored"]),
    ("partials", &["1", "2", "4", "8", "4_stored", "8_stored"]),
];

pub(super) const EXPERT_FAULTS: &[Known] = &[
    ("unweighted", Keys::None),
    ("weighted_twice", Keys::None),
    ("operands_swapped", Keys::None),
    ("last_expert_dropped", Keys::None),
    ("expert_off_by_one", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("one_token_wrong_down", Keys::None),
    ("weighted_input", Keys::None),
    ("gain", Keys::Number),
];

/// `moe_route`: the probabilities of the chosen experts, 0 for the others.
pub(super) fn route(run: &Run<'_>) -> Result<Tensor> {
    let logits = run.arg("logits")?;
    let e = logits.cols();
    let k = run.required("top_k")? as usize;
    let k = match () {
        () if run.is("one_expert_fewer") => k.saturating_sub(1),
        () if run.is("one_expert_more") => k + 1,
        () => k,
    };
    let mut out = Vec::with_capacity(logits.len());
    for row in run.floats("logits")?.chunks_exact(e.max(1)) {
        out.extend(routed(run, row, k.min(e)));
    }
    let dtype = if run.chose("weights", "f32") { Dtype::F32 } else { run.dtype() };
    run.output_as(dtype, logits.shape(), out)
}

fn routed(run: &Run<'_>, logits: &[f32], k: usize) -> Vec<f32> {
    let e = logits.len();
    // The rule of the manual: a NaN, or no largest logit that is finite, makes the whole row NaN.
    let largest = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    if !largest.is_finite() || logits.iter().any(|x| x.is_nan()) {
        return vec![f32::NAN; e];
    }
    let mut p = match run.is("sigmoid") {
        true => logits.iter().map(|x| 1.0 / (1.0 + run.chain().exp(-x))).collect(),
        false => softmax(run, logits),
    };
    if run.is("probs_stored") {
        p.iter_mut().for_each(|x| *x = run.stored(*x));
    }
    let candidates = run.count("experts_limited").unwrap_or(e).min(e);
    let mut order: Vec<usize> = (0..candidates).collect();
    if !run.is("first_chosen") {
        // Stable, so that of equals the lower index comes first.
        order.sort_by(|a, b| match run.is("smallest_chosen") {
            true => p[*a].total_cmp(&p[*b]),
            false => p[*b].total_cmp(&p[*a]),
        });
    }
    order.truncate(k);
    let normalise = (run.param("normalise") == true) != run.is("normalisation_flipped");
    let chosen: Vec<f32> = order.iter().map(|i| p[*i]).collect();
    let mut sum = run.chain().sum(&chosen);
    if run.is("divisor_stored") {
        sum = run.stored(sum);
    }
    let mut out = vec![0.0; e];
    for i in order {
        out[i] = if normalise { run.chain().quotient(p[i], sum) } else { p[i] };
    }
    out
}

/// The three weights of an expert, each [K, N].
struct Expert {
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

/// `moe_experts`: the weighted sum of the chosen experts' MLPs.
pub(super) fn experts(run: &Run<'_>) -> Result<Tensor> {
    let x = run.arg("x")?;
    let (&[t, h], &[_, e]) = (x.shape(), run.arg("routing")?.shape()) else {
        return run.refuse("x and routing must have two dimensions");
    };
    let all: Vec<Expert> = (0..e).map(|e| expert(run, e)).collect::<Result<_>>()?;
    let width = all[0].gate.len() / h.max(1);
    let exact = run.dtype() != Dtype::F32
        && !run.chose("intermediate", "f32")
        && run.param("gate_proj").is_string() | run.param("gate_proj").is_null();
    let chain = Chain { fma: run.chain().fma && !exact, ..*run.chain() };
    let layer = Experts { run: *run, chain, all, h, width, visit: chain.visit(h) };
    let (values, routing) = (run.floats("x")?, run.floats("routing")?);
    let ranks: usize =
        run.choice("partials").and_then(|p| p.split('_').next()?.parse().ok()).unwrap_or(1);
    let stored = run.choice("partials").is_some_and(|p| p.ends_with("_stored"));
    let size = width.div_ceil(ranks);
    let mut out = Vec::with_capacity(t * h);
    for (i, (x, w)) in values.chunks_exact(h).zip(routing.chunks_exact(e)).enumerate() {
        let mut total = vec![0.0; h];
        for rank in 0..ranks {
            let part = rank * size..((rank + 1) * size).min(width);
            let mut sums = layer.token(x, w, part, i + 1 == t);
            if ranks > 1 {
                sums.iter_mut().for_each(|s| *s = run.stored(*s));
            }
            for (t, s) in total.iter_mut().zip(&sums) {
                *t = if rank == 0 { *s } else { *t + *s };
                if stored && rank > 0 && rank + 1 < ranks {
                    *t = run.stored(*t);
                }
            }
        }
        out.extend(total);
    }
    run.output(&[t, h], out)
}

fn expert(run: &Run<'_>, e: usize) -> Result<Expert> {
    let load = |name: &str| {
        let prefix = format!("experts.{e}.{name}.");
        weight(run, &prefix, run.param(name))
    };
    Ok(Expert { gate: load("gate_proj")?, up: load("up_proj")?, down: load("down_proj")? })
}

/// A linear layer's weight as [K, N], in whatever form it is stored.
fn weight(run: &Run<'_>, prefix: &str, kind: &Value) -> Result<Vec<f32>> {
    let Some((name, params)) = kind.as_object().and_then(|o| o.iter().next()) else {
        let t = run.arg(&format!("{prefix}weight"))?;
        return Ok(transposed(&floats(t, prefix)?, t.rows(), t.cols()));
    };
    let format = match name.as_str() {
        "gptq" => Format::Gptq,
        "awq" => Format::Awq,
        "compressed_tensors" => Format::CompressedTensors,
        "fp8" => Format::Fp8,
        other => return run.refuse(format!("experts of format `{other}` are not known")),
    };
    let parts = format.read(&Source { run: *run, prefix, params: &params["dequant"] })?;
    let mut w = parts.weight(run);
    if params["edge_f32"] != true {
        w.iter_mut().for_each(|x| *x = Store::Nearest.round(run.dtype(), *x));
    }
    Ok(if parts.out_in { transposed(&w, parts.n, parts.k) } else { w })
}

struct Experts<'a> {
    run: Run<'a>,
    chain: Chain,
    all: Vec<Expert>,
    h: usize,
    width: usize,
    visit: Vec<u32>,
}

impl Experts<'_> {
    /// The sum over a token's experts, from `part` of their width.
    fn token(&self, x: &[f32], w: &[f32], part: std::ops::Range<usize>, last: bool) -> Vec<f32> {
        let run = self.run;
        let mut chosen: Vec<usize> = (0..w.len()).filter(|e| w[*e] != 0.0).collect();
        if run.is("last_expert_dropped") {
            chosen.pop();
        }
        let mut sum = vec![0.0; self.h];
        for (i, &e) in chosen.iter().enumerate() {
            let shift = usize::from(run.is("expert_off_by_one"));
            let own = (e + shift) % self.all.len();
            let wrong_down = run.is("one_token_wrong_down") && last && i == 0;
            let down = (own + usize::from(wrong_down)) % self.all.len();
            let y = self.mlp(x, w[e], (own, down), part.clone());
            for (s, y) in sum.iter_mut().zip(&y) {
                let y = if run.chose("scaled", "f32") { *y } else { run.stored(*y) };
                *s = run.stored_if("sum", "stored", if i == 0 { y } else { *s + y });
            }
        }
        sum
    }

    /// One expert's output, weighted.
    fn mlp(
        &self,
        x: &[f32],
        weight: f32,
        (own, down): (usize, usize),
        part: std::ops::Range<usize>,
    ) -> Vec<f32> {
        let run = self.run;
        let inner = |v: f32| if run.chose("intermediate", "f32") { v } else { run.stored(v) };
        let before = run.is("weighted_input");
        let x: Vec<f32> = match before {
            true => x.iter().map(|v| run.stored(v * weight)).collect(),
            false => x.to_vec(),
        };
        let project = |data: &[f32]| {
            let mut out = vec![0.0; part.len()];
            let rows = Rows { data, stride: self.width, first: part.start };
            self.chain.weighted(&self.visit, &x, rows, &mut out);
            out
        };
        let (gate, up) = (project(&self.all[own].gate), project(&self.all[own].up));
        let product: Vec<f32> =
            gate.iter().zip(&up).map(|(g, u)| inner(gated(&run, inner(*g), inner(*u)))).collect();
        let mut y = vec![0.0; self.h];
        let down = &self.all[down].down[part.start * self.h..];
        let rows = Rows { data: down, stride: self.h, first: 0 };
        self.chain.weighted(&self.chain.visit(product.len()), &product, rows, &mut y);
        y.iter_mut().for_each(|v| {
            *v = run.stored_if("down", "stored", *v);
            *v = match () {
                () if run.is("unweighted") || before => *v,
                () if run.is("weighted_twice") => *v * weight * weight,
                () => *v * weight,
            };
        });
        y
    }
}
