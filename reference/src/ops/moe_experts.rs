//! `moe_experts`: the sum over a token's experts of routing weight times SwiGLU MLP.
//!
//! Shapes: x [T, H], routing [T, E] (0 where an expert is not chosen), for each expert e the tensors of
//! three linear layers: `experts.e.gate_proj.*` and `up_proj` [I, H], `down_proj` [H, I]; output [T, H].
//! y = sum_e routing\[e\] down_e(silu(gate_e x) * up_e x), in the order of the experts.
//! Points: `gate_up`, `silu`, `product`, `down`, `scaled`, `sum` (after each addition), `output`.
//! Conventions: what is stored in the model's dtype between the steps. By default gate, up, their
//! product and the weighted output are, and the sum is f32, as in fused kernels; an eager framework
//! also stores silu(gate), the output before it is weighted (`down=stored`), and the sum after each
//! expert (`sum=stored`). In a model split over n ranks each has a part of every expert's width; the
//! ranks' sums are stored, then added in f32 or stored after each (`partials=2`, `4_stored` ...).
//!
//! Source: <https://arxiv.org/abs/2505.09388> and transformers' `Qwen3MoeExperts`

use serde::{Deserialize, Serialize};

use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    gain_faults, linear::Linear, need, silu_mul, store_faults, via_f16_fault,
};
use crate::arith::{Real, fenv::DefaultEnv};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// How expert outputs are weighted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weighting {
    /// By the routing weights.
    #[default]
    Routing,
    /// By 1: a fault.
    One,
    /// By the routing weights twice: a fault.
    Squared,
    /// The input is, and stored, before the MLP: a fault.
    Input,
}

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// How the experts' gate_proj is stored.
    pub gate_proj: Linear,
    /// How up_proj is stored.
    pub up_proj: Linear,
    /// How down_proj is stored.
    pub down_proj: Linear,
    /// Over how many ranks the experts' widths are split: their sums are stored, then added. 0 is 1.
    pub ranks: usize,
    /// Whether the sum over ranks is stored after each rank.
    pub ranks_stored: bool,
    /// Whether scales of quantised weights are rounded to the stored dtype first.
    pub scales_stored: bool,
    /// Weighting of the experts.
    pub weighting: Weighting,
    /// silu(up) * gate: a fault.
    pub swapped: bool,
    /// Expert e uses the weights of expert (e + shift) mod E: a fault unless 0.
    pub shift: usize,
    /// The chosen expert with the highest index is left out: a fault.
    pub last_dropped: bool,
    /// For the last token the first chosen expert's down_proj is the next expert's: a fault.
    pub down_misrouted: bool,
}

impl Params {
    /// The right op over linear layers stored as these.
    pub fn new([gate_proj, up_proj, down_proj]: [Linear; 3]) -> Params {
        Params { gate_proj, up_proj, down_proj, ..Params::default() }
    }

    fn linears(&self) -> [(&'static str, &Linear); 3] {
        [("gate_proj", &self.gate_proj), ("up_proj", &self.up_proj), ("down_proj", &self.down_proj)]
    }

    fn has_scales(&self) -> bool {
        let scaled = |l: &Linear| !matches!(l, Linear::Dense | Linear::Fp8(_));
        self.linears().iter().any(|(_, l)| scaled(l))
    }
}

/// The op.
#[derive(Debug)]
pub struct MoeExperts;

fn prefix(expert: usize, module: &str) -> String {
    format!("experts.{expert}.{module}.")
}

/// One linear layer of an expert over rows, before its rounding.
fn linear<R: Real>(
    params: &Params,
    inputs: &Inputs<'_, R>,
    (expert, module, form): (usize, &str, &Linear),
    x: Vec<R>,
    rows: usize,
    policy: &Policy,
) -> Vec<R> {
    let shape = vec![rows, x.len() / rows];
    let mut own = form.policy(policy.output.dtype);
    (own.acc, own.lambda) = (policy.acc, policy.lambda);
    if params.scales_stored
        && let Some(weight) = own.parts.first_mut()
    {
        weight.round_at("scale", policy.output.dtype);
    }
    form.eval(Arg::made(shape, x), inputs, &prefix(expert, module), &own)
}

/// One expert's MLP over rows, before it is weighted: by rank, each from its part of the width. `experts`
/// are the one whose gate and up are used, and the one whose down.
fn mlp<R: Real>(
    params: &Params,
    inputs: &Inputs<'_, R>,
    experts: (usize, usize),
    x: &[R],
    rows: usize,
    policy: &Policy,
) -> Vec<Vec<R>> {
    let [gate, up, down] = params.linears().map(|(module, form)| {
        (if module == "down_proj" { experts.1 } else { experts.0 }, module, form)
    });
    let side = |layer| {
        let mut out = linear(params, inputs, layer, x.to_vec(), rows, policy);
        policy.apply("gate_up", &mut out);
        out
    };
    let (mut gate, mut up) = (side(gate), side(up));
    if params.swapped {
        std::mem::swap(&mut gate, &mut up);
    }
    gate.iter_mut().for_each(|g| *g = silu_mul::silu(*g));
    policy.apply("silu", &mut gate);
    gate.iter_mut().zip(&up).for_each(|(g, u)| *g = g.mul(*u));
    policy.apply("product", &mut gate);
    let ranks = params.ranks.max(1);
    let width = gate.len() / rows;
    let size = width.div_ceil(ranks).max(1);
    let one = |rank: usize| {
        let mut part = gate.clone();
        if ranks > 1 {
            // Another rank's products add nothing.
            let mine = rank * size..(rank + 1) * size;
            let others = part.iter_mut().enumerate().filter(|(i, _)| !mine.contains(&(i % width)));
            others.for_each(|(_, x)| *x = R::lift(0.0));
        }
        let mut out = linear(params, inputs, down, part, rows, policy);
        policy.apply("down", &mut out);
        out
    };
    (0..ranks).map(one).collect()
}

/// Experts of the case: those of which there are tensors.
fn experts(tensors: &Tensors) -> usize {
    let there = |e: &usize| {
        let prefix = prefix(*e, "down_proj");
        tensors.range(prefix.clone()..).next().is_some_and(|(name, _)| name.starts_with(&prefix))
    };
    (0..).take_while(there).count()
}

impl Op for MoeExperts {
    const NAME: &'static str = "moe_experts";
    const SUMMARY: &'static str = "weighted sum of the chosen experts' MLPs";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("x", "[T, H] activations"),
        ArgSpec::new("routing", "[T, E] weights, 0 where not chosen"),
        ArgSpec::new(
            "experts.*",
            "the tensors of E experts: experts.0.gate_proj.weight [I, H] ...",
        ),
    ];
    const POINTS: &'static [&'static str] =
        &["gate_up", "silu", "product", "down", "scaled", "sum", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let x = need(Self::NAME, tensors, "x", true)?;
        let routing = need(Self::NAME, tensors, "routing", true)?;
        let (&[t, h], &[rt, e]) = (x.shape(), routing.shape()) else {
            let what = format!("and routing must have two dimensions, x has {:?}", x.shape());
            return Err(Error::arg(Self::NAME, "x", what));
        };
        if rt != t {
            let what = format!("must have {t} rows, has shape {:?}", routing.shape());
            return Err(Error::arg(Self::NAME, "routing", what));
        }
        if experts(tensors) != e {
            let what = format!("has {e} experts, but there are tensors of {}", experts(tensors));
            return Err(Error::arg(Self::NAME, "routing", what));
        }
        for expert in 0..e {
            check_expert(params, tensors, expert, h)?;
        }
        Ok(OutSpec::output([t, h]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (x, routing) = (inputs.req("x"), inputs.req("routing"));
        let (h, e) = (x.cols(), routing.cols());
        let rows = tile.rows_of(routing.shape()[0]);
        let weights: Vec<Vec<R>> = rows.iter().map(|&r| routing.row(r)).collect();
        // By rank and row: what each of its experts adds.
        let ranks = params.ranks.max(1);
        let mut terms: Vec<Vec<Vec<Vec<R>>>> = vec![vec![Vec::new(); rows.len()]; ranks];
        for expert in 0..e {
            let takes = |i: &usize| {
                let last = || weights[*i][expert + 1..].iter().all(|w| w.value() == 0.0);
                weights[*i][expert].value() != 0.0 && !(params.last_dropped && last())
            };
            let source = (expert + params.shift) % e;
            let misrouted = |i: &usize| {
                let first = || weights[*i][..expert].iter().all(|w| w.value() == 0.0);
                params.down_misrouted && rows[*i] + 1 == routing.shape()[0] && first()
            };
            let (wrong, right): (Vec<_>, Vec<_>) =
                (0..rows.len()).filter(takes).partition(misrouted);
            for (mine, down) in [(right, source), (wrong, (source + 1) % e)] {
                if mine.is_empty() {
                    continue;
                }
                let input =
                    |&i: &usize| weighted_input(x.row(rows[i]), weights[i][expert], params, policy);
                let data: Vec<R> = mine.iter().flat_map(input).collect();
                let out = mlp(params, inputs, (source, down), &data, mine.len(), policy);
                for (out, terms) in out.iter().zip(&mut terms) {
                    for (&i, row) in mine.iter().zip(out.chunks(h)) {
                        terms[i].push(weighted(row, weights[i][expert], params, policy));
                    }
                }
            }
        }
        let _env = DefaultEnv::enter();
        let mut data = Vec::with_capacity(rows.len() * h);
        for i in 0..rows.len() {
            let parts = terms.iter().map(|terms| total(&terms[i], h, policy)).collect();
            let mut row = over_ranks(parts, params, policy);
            policy.apply("output", &mut row);
            tile.pick(&row, &mut data);
        }
        vec![Out { name: "output", data }]
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let also_stored = |point: &'static str| {
            Knob::new(point, "f32").or("stored", move |s: &mut Setup<Self>| {
                s.policy.round_at(point, s.policy.output.dtype);
            })
        };
        let kept = |name: &'static str, points: &'static [&'static str]| {
            Knob::new(name, "stored").or("f32", move |s: &mut Setup<Self>| {
                s.policy.points.retain(|(p, _)| !points.contains(p));
            })
        };
        let mut knobs = vec![
            kept("intermediate", &["gate_up", "product"]),
            also_stored("silu"),
            also_stored("down"),
            kept("scaled", &["scaled"]),
            also_stored("sum"),
        ];
        let mut partials = Knob::new("partials", "1");
        for (value, ranks, stored) in [
            ("2", 2, false),
            ("4", 4, false),
            ("8", 8, false),
            ("4_stored", 4, true),
            ("8_stored", 8, true),
        ] {
            partials = partials.or_eager(value, move |s: &mut Setup<Self>| {
                s.params.ranks = ranks;
                s.params.ranks_stored = stored;
            });
        }
        knobs.push(partials);
        if params.has_scales() {
            knobs.push(Knob::new("scale", "file").or("stored", |s: &mut Setup<Self>| {
                s.params.scales_stored = true;
            }));
        }
        knobs
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = Vec::new();
        let mut fault = |code, slug, detail: &str, edit: fn(&mut Params)| {
            faults.push(Fault::new(code, slug, detail, move |s: &mut Setup<Self>| {
                edit(&mut s.params);
            }));
        };
        // Weights of 1 (one expert, normalised) are the same squared or left out.
        let weigh = |t: &crate::Tensor| t.to_f64().iter().any(|w| *w != 0.0 && *w != 1.0);
        if tensors.get("routing").is_some_and(weigh) {
            let detail = "expert outputs are added without their routing weights";
            fault("A210", "unweighted", detail, |p| p.weighting = Weighting::One);
            let detail = "routing weights are multiplied in twice";
            fault("A211", "weighted_twice", detail, |p| p.weighting = Weighting::Squared);
            let detail = "routing weights multiply the experts' input, not their output";
            fault("A269", "weighted_input", detail, |p| p.weighting = Weighting::Input);
        }
        fault("A212", "operands_swapped", "silu(up) * gate: the operands are swapped", |p| {
            p.swapped = true;
        });
        fault(
            "A213",
            "last_expert_dropped",
            "the chosen expert of the highest index is left out",
            |p| {
                p.last_dropped = true;
            },
        );
        if experts(tensors) > 1 {
            fault("A214", "expert_off_by_one", "each expert uses the next one's weights", |p| {
                p.shift = 1;
            });
            let detail = "the last token's first expert uses the next one's down_proj";
            fault("A268", "one_token_wrong_down", detail, |p| p.down_misrouted = true);
        }
        faults.extend(store_faults(["A215", "A216"]));
        faults.extend(via_f16_fault(tensors.get("x")));
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A217", residual)
    }

    fn policy(dtype: Dtype) -> Policy {
        let mut policy = Policy::stored_as(dtype);
        for point in ["gate_up", "product", "scaled"] {
            policy.round_at(point, dtype);
        }
        policy
    }
}

/// A token as an expert sees it.
fn weighted_input<R: Real>(mut row: Vec<R>, w: R, params: &Params, policy: &Policy) -> Vec<R> {
    if params.weighting == Weighting::Input {
        row.iter_mut().for_each(|x| *x = x.mul(w).round(policy.output, policy.lambda));
    }
    row
}

/// An expert's output, weighted.
fn weighted<R: Real>(row: &[R], w: R, params: &Params, policy: &Policy) -> Vec<R> {
    let mut scaled: Vec<R> = match params.weighting {
        Weighting::Routing => row.iter().map(|y| y.mul(w)).collect(),
        Weighting::One | Weighting::Input => row.to_vec(),
        Weighting::Squared => row.iter().map(|y| y.mul(w).mul(w)).collect(),
    };
    policy.apply("scaled", &mut scaled);
    scaled
}

/// The sum of a row's terms: in any order, or one by one where something happens after each.
fn total<R: Real>(terms: &[Vec<R>], width: usize, policy: &Policy) -> Vec<R> {
    if policy.is_identity_at("sum") {
        let column = |c: usize| terms.iter().map(|t| t[c]).collect::<Vec<R>>();
        return (0..width).map(|c| R::sum(&column(c), 0, &policy.acc)).collect();
    }
    let mut row = vec![R::lift(0.0); width];
    for term in terms {
        row.iter_mut().zip(term).for_each(|(s, t)| *s = s.add(*t));
        policy.apply("sum", &mut row);
    }
    row
}

/// The sum of the ranks' stored sums; one rank's is not stored yet.
fn over_ranks<R: Real>(mut parts: Vec<Vec<R>>, params: &Params, policy: &Policy) -> Vec<R> {
    let store = |row: &mut Vec<R>| {
        row.iter_mut().for_each(|y| *y = y.round(policy.output, policy.lambda));
    };
    if parts.len() > 1 {
        parts.iter_mut().for_each(store);
    }
    let mut parts = parts.into_iter();
    let first = parts.next().unwrap_or_default();
    parts.fold(first, |mut sum, part| {
        if params.ranks_stored {
            store(&mut sum);
        }
        sum.iter_mut().zip(part).for_each(|(s, x)| *s = s.add(x));
        sum
    })
}

fn check_expert(params: &Params, tensors: &Tensors, expert: usize, h: usize) -> Result<()> {
    const OP: &str = MoeExperts::NAME;
    let outputs = |(module, form): (&str, &Linear), k: usize| -> Result<usize> {
        let prefix = prefix(expert, module);
        form.check(tensors, &prefix, k).map_err(|e| match e {
            Error::Arg { arg, what, .. } => Error::arg(OP, format!("{prefix}{arg}"), what),
            other => other,
        })
    };
    // The first tensor of a layer stands for it.
    let named = |module: &str| {
        let prefix = prefix(expert, module);
        let first = tensors.range(prefix.clone()..).next();
        first.map_or(prefix, |(name, _)| name.clone())
    };
    let [gate, up, down] = params.linears();
    let (width, also) = (outputs(gate, h)?, outputs(up, h)?);
    if also != width {
        let what = format!("has {also} outputs, gate_proj has {width}");
        return Err(Error::arg(OP, named("up_proj"), what));
    }
    let out = outputs(down, width)?;
    if out != h {
        let what = format!("must have {h} outputs, has {out}");
        return Err(Error::arg(OP, named("down_proj"), what));
    }
    Ok(())
}
