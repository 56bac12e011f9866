//! `moe_route`: which experts a token goes to, and with which weights.
//!
//! Shapes: logits [T, E]; output [T, E]: the softmax's probability for each of the k most likely
//! experts, divided by their sum where the model asks for it (`norm_topk_prob`), and 0 for the others.
//! The softmax is f32 in any model. Equal logits: the lower index is chosen; since frameworks do not
//! say which they take, both outcomes are within the bound. A NaN makes its row NaN, and so do logits of which
//! the largest is infinite.
//! Points: `probs`, `output`.
//! Conventions: weights are stored in the model's dtype (`weights=stored`) or kept in f32, as fused
//! kernels do (`weights=f32`).
//!
//! Source: <https://arxiv.org/abs/2505.09388> and transformers' `Qwen3MoeTopKRouter`

use serde::{Deserialize, Serialize};

use super::softmax::{exponentials, maximum};
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, store_faults,
};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding, pow2};
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Which experts are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choose {
    /// The most likely.
    #[default]
    Largest,
    /// The least likely: a fault.
    Smallest,
    /// The first k, whatever the logits: a fault.
    First,
}

/// How logits become weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// 1 / (1 + e^-x) of each: a fault.
    Sigmoid,
}

/// Semantic knobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Experts a token goes to.
    pub top_k: usize,
    /// Whether their weights are divided by their sum.
    pub normalise: bool,
    /// Which are taken.
    #[serde(default)]
    pub choose: Choose,
    /// How they are weighted.
    #[serde(default)]
    pub scoring: Scoring,
    /// The sum by which the weights are divided is rounded to this dtype: a fault.
    #[serde(default)]
    pub divisor: Option<Dtype>,
    /// Only the first so many experts can be chosen: a fault.
    #[serde(default)]
    pub limit: Option<usize>,
}

impl Params {
    /// The right op.
    pub fn new(top_k: usize, normalise: bool) -> Params {
        Params {
            top_k,
            normalise,
            choose: Choose::Largest,
            scoring: Scoring::Softmax,
            divisor: None,
            limit: None,
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct MoeRoute;

fn scores<R: Real>(row: &[R], params: &Params, policy: &Policy) -> Vec<R> {
    let mut p = match params.scoring {
        Scoring::Softmax => {
            let mut p = exponentials(row, maximum(row));
            let sum = R::sum(&p, 0, &policy.acc);
            p.iter_mut().for_each(|x| *x = x.div(sum));
            p
        }
        Scoring::Sigmoid => {
            row.iter().map(|x| R::lift(1.0).div(R::lift(1.0).add(x.neg().exp()))).collect()
        }
    };
    policy.apply("probs", &mut p);
    p
}

/// Which experts are chosen.
struct Choice {
    /// For each expert whether it is chosen, and whether that depends on how a tie is broken.
    by_expert: Vec<(bool, bool)>,
    /// How far apart the scores that tie may be, relative to themselves; 0 without a tie.
    doubt: f64,
    /// The same in absolute terms: subnormal f32 scores are rounded to few bits, or flushed.
    floor: f64,
}

fn chosen<R: Real>(row: &[R], scores: &[R], params: &Params) -> Choice {
    let n = params.limit.map_or(row.len(), |limit| limit.min(row.len()));
    let key = |i: usize| match params.choose {
        Choose::Largest => scores[i].value(),
        Choose::Smallest => -scores[i].value(),
        Choose::First => -(i as f64),
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    let mut out = vec![(false, false); row.len()];
    order[..params.top_k].iter().for_each(|&i| out[i].0 = true);
    if params.top_k == n || params.choose == Choose::First {
        return Choice { by_expert: out, doubt: 0.0, floor: 0.0 };
    }
    // Probabilities that an f32 softmax may not tell apart, or may exchange: each is off by some
    // units, and by as many more as the exponent x - max has, which is rounded before e^x is taken.
    let last = order[params.top_k - 1];
    let exponent = (maximum(row).value() - row[last].value()).abs();
    let doubt = (16.0 + 4.0 * exponent) * pow2(-R::BITS);
    let (border, next) = (scores[last].value(), scores[order[params.top_k]].value());
    // e^x may be flushed below 2^-126, and so may its quotient by a sum that is at least 1.
    let floor = if R::BITS == 24 { pow2(-125) } else { 0.0 };
    let near = |p: f64| (p - border).abs() <= doubt * border.abs() + floor;
    if !near(next) {
        return Choice { by_expert: out, doubt: 0.0, floor: 0.0 };
    }
    (0..n).filter(|&i| near(scores[i].value())).for_each(|i| out[i].1 = true);
    Choice { by_expert: out, doubt, floor }
}

/// The weight of one expert, widened by what a tie leaves open: an expert at the border may have its
/// weight or 0, and the sum by which all are divided may hold one expert instead of another.
fn widened<R: Real>(x: R, (taken, tied): (bool, bool), doubt: f64, floor: f64) -> R {
    let either = x.value() * (1.0 + 2.0 * doubt) + floor;
    match (taken, tied) {
        (true, false) if doubt > 0.0 => x.mul(R::approx(1.0, doubt)),
        (true, false) => x,
        (true, true) => x.add(R::approx(0.0, either)),
        (false, true) => R::approx(0.0, either),
        (false, false) => R::lift(0.0),
    }
}

impl Op for MoeRoute {
    const NAME: &'static str = "moe_route";
    const SUMMARY: &'static str = "weights of the k most likely experts";
    const ARGS: &'static [ArgSpec] = &[ArgSpec::new("logits", "[T, E] the router's")];
    const POINTS: &'static [&'static str] = &["probs", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let logits = need(Self::NAME, tensors, "logits", true)?;
        if !(1..=logits.cols()).contains(&params.top_k) {
            let what = format!("must be from 1 to {}, is {}", logits.cols(), params.top_k);
            return Err(Error::arg(Self::NAME, "top_k", what));
        }
        Ok(OutSpec::output(logits.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let logits = inputs.req("logits");
        let rows = logits.shape().iter().product::<usize>() / logits.cols();
        Out::by_rows(tile, rows, |r| {
            let row = logits.row(r);
            if !maximum(&row).value().is_finite() {
                return vec![R::lift(f64::NAN); row.len()];
            }
            let mut p = scores(&row, params, policy);
            let Choice { by_expert, doubt, mut floor } = chosen(&row, &p, params);
            if params.normalise {
                let taken: Vec<R> =
                    p.iter().zip(&by_expert).filter(|(_, c)| c.0).map(|(p, _)| *p).collect();
                let mut sum = R::sum(&taken, 0, &policy.acc);
                if let Some(dtype) = params.divisor {
                    sum = sum.round(Rounding::nearest(dtype), policy.lambda);
                }
                p.iter_mut().for_each(|x| *x = x.div(sum));
                floor /= sum.value();
            }
            p.iter_mut().zip(by_expert).for_each(|(x, choice)| {
                *x = widened(*x, choice, doubt, floor);
            });
            policy.apply("output", &mut p);
            p
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("weights", "stored").or("f32", |s: &mut Setup<Self>| {
            if s.policy.output.dtype != Dtype::F64 {
                s.policy.output = Rounding::nearest(Dtype::F32);
            }
        })]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = Vec::new();
        let mut fault = |code, slug, detail: String, edit: fn(&mut Params)| {
            faults.push(Fault::new(code, slug, detail, move |s: &mut Setup<Self>| {
                edit(&mut s.params);
            }));
        };
        let k = params.top_k;
        let experts = tensors.get("logits").map_or(0, |t| t.cols());
        // All experts together have weight 1 anyway.
        if k < experts {
            let what =
                if params.normalise { "not divided by their sum" } else { "divided by their sum" };
            let detail = format!("the chosen weights are {what}");
            fault("A200", "normalisation_flipped", detail, |p| p.normalise = !p.normalise);
        }
        if k > 1 {
            let detail = format!("{} experts are chosen instead of {k}", k - 1);
            fault("A201", "one_expert_fewer", detail, |p| p.top_k -= 1);
        }
        if k < experts {
            let detail = format!("{} experts are chosen instead of {k}", k + 1);
            fault("A202", "one_expert_more", detail, |p| p.top_k += 1);
            fault("A203", "smallest_chosen", "the least likely experts are chosen".into(), |p| {
                p.choose = Choose::Smallest;
            });
            fault("A204", "first_chosen", format!("the first {k} experts are chosen"), |p| {
                p.choose = Choose::First;
            });
        }
        // A single expert divided by itself has weight 1 by any scoring.
        if k > 1 || !params.normalise {
            let detail = "each logit goes through a sigmoid, not a softmax".into();
            fault("A205", "sigmoid", detail, |p| p.scoring = Scoring::Sigmoid);
        }
        let dtype = tensors.get("logits").map_or(Dtype::F64, |t| t.dtype());
        if params.normalise && k > 1 && [Dtype::Bf16, Dtype::F16].contains(&dtype) {
            faults.push(Fault::new(
                "A266",
                "divisor_stored",
                format!("the sum by which the weights are divided is rounded to {dtype}"),
                move |s: &mut Setup<Self>| s.params.divisor = Some(dtype),
            ));
        }
        for limit in [32, 64] {
            if (k..experts).contains(&limit) {
                let detail = format!("only the first {limit} of {experts} experts can be chosen");
                let edit = move |s: &mut Setup<Self>| s.params.limit = Some(limit);
                let fault = Fault::new("A267", "experts_limited", detail, edit);
                faults.push(fault.keyed(format!("{limit}")));
            }
        }
        faults.push(Fault::new(
            "A206",
            "probs_stored",
            "probabilities are rounded to the model's dtype before experts are chosen",
            |s: &mut Setup<Self>| s.policy.round_at("probs", s.policy.output.dtype),
        ));
        // No softmax is exactly half-way between two stored numbers, so that ties cannot show.
        let store = store_faults(["A207", "A208"]);
        faults.extend(store.into_iter().filter(|f| f.slug != "ties_away_store"));
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A209", residual)
    }
}
