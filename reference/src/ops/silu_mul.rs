//! `silu_mul`: y = silu(gate) * up, with silu(g) = g / (1 + e^-g): the SwiGLU of Qwen's MLP.
//!
//! Shapes: gate, up [..., D]; output [..., D]. Arithmetic in f32.
//! Points: `silu` (the activation before the product), `output`.
//! Conventions: an eager framework stores silu(gate) in the model's dtype (`silu=stored`).
//! silu(-inf) is NaN by IEEE (-inf / inf); silu(inf) is inf.
//!
//! Source: <https://arxiv.org/abs/2002.05202>

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, softmax, store_faults, via_f16_fault,
};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::policy::Policy;

/// The activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// g / (1 + e^-g).
    #[default]
    Silu,
    /// 1 / (1 + e^-g): a fault.
    Sigmoid,
    /// g: a fault.
    None,
}

/// How the sigmoid of silu is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sigmoid {
    /// 1 / (1 + e^-g).
    #[default]
    Exact,
    /// The exponent of e is at most 10: a fault.
    Clamped,
    /// e^-g as 2^(-g log2 e) with log2 e in bf16: a fault.
    Log2eBf16,
    /// e^-g rounded to f16: a fault.
    ExpF16,
    /// (1 + t(g/2)) / 2 with the Pade approximant t(y) = y (27 + y^2) / (27 + 9 y^2) of tanh, which is
    /// 1 from y = 3 on: a fault.
    Pade,
}

/// The largest exponent of [`Sigmoid::Clamped`].
const LARGEST_EXPONENT: f64 = 10.0;

impl Sigmoid {
    /// silu(g) with this sigmoid.
    fn silu<R: Real>(self, g: R, lambda: f64) -> R {
        let e = match self {
            Sigmoid::Exact => return silu(g),
            Sigmoid::Clamped if g.value() < -LARGEST_EXPONENT => R::lift(LARGEST_EXPONENT).exp(),
            Sigmoid::Clamped => g.neg().exp(),
            Sigmoid::Log2eBf16 => g.neg().mul(R::constant(softmax::LOG2E_BF16)).exp(),
            Sigmoid::ExpF16 => g.neg().exp().round(Rounding::nearest(Dtype::F16), lambda),
            Sigmoid::Pade => {
                let one = R::lift(1.0);
                return g.mul(one.add(pade_tanh(g.mul(R::lift(0.5)))).mul(R::lift(0.5)));
            }
        };
        g.div(R::lift(1.0).add(e))
    }
}

fn pade_tanh<R: Real>(y: R) -> R {
    let v = y.value();
    if v.abs() >= 3.0 {
        return R::lift(1f64.copysign(v));
    }
    let (square, c) = (y.mul(y), R::lift(27.0));
    y.mul(c.add(square)).div(c.add(R::lift(9.0).mul(square)))
}

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The activation.
    pub activation: Activation,
    /// silu(up) * gate: a fault.
    pub swapped: bool,
    /// The sigmoid.
    pub sigmoid: Sigmoid,
}

/// The op.
#[derive(Debug)]
pub struct SiluMul;

/// g / (1 + e^-g).
pub(crate) fn silu<R: Real>(g: R) -> R {
    g.div(R::lift(1.0).add(g.neg().exp()))
}

impl Op for SiluMul {
    const NAME: &'static str = "silu_mul";
    const SUMMARY: &'static str = "silu(gate) * up";
    const ARGS: &'static [ArgSpec] =
        &[ArgSpec::new("gate", "[..., D] activated"), ArgSpec::new("up", "[..., D] multiplied")];
    const POINTS: &'static [&'static str] = &["silu", "output"];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let gate = need(Self::NAME, tensors, "gate", true)?;
        let up = need(Self::NAME, tensors, "up", true)?;
        if gate.shape() != up.shape() {
            let what = format!("must have gate's shape {:?}, has {:?}", gate.shape(), up.shape());
            return Err(Error::arg(Self::NAME, "up", what));
        }
        Ok(OutSpec::output(gate.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (mut gate, mut up) = (inputs.req("gate"), inputs.req("up"));
        if params.swapped {
            std::mem::swap(&mut gate, &mut up);
        }
        let rows = gate.shape().iter().product::<usize>() / gate.cols();
        Out::by_rows(tile, rows, |r| {
            let mut row = gate.row(r);
            if (params.activation, params.sigmoid) == (Activation::Silu, Sigmoid::Exact) {
                let mut e: Vec<R> = row.iter().map(|g| g.neg()).collect();
                R::exp_all(&mut e);
                for (g, e) in row.iter_mut().zip(e) {
                    *g = g.div(R::lift(1.0).add(e));
                }
            } else {
                for g in &mut row {
                    *g = match params.activation {
                        Activation::Silu => params.sigmoid.silu(*g, policy.lambda),
                        Activation::Sigmoid => R::lift(1.0).div(R::lift(1.0).add(g.neg().exp())),
                        Activation::None => *g,
                    };
                }
            }
            policy.apply("silu", &mut row);
            for (g, u) in row.iter_mut().zip(up.row(r)) {
                *g = g.mul(u);
            }
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("silu", "f32").or("stored", |s: &mut Setup<Self>| {
            s.policy.round_at("silu", s.policy.output.dtype);
        })]
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = vec![
            Fault::new(
                "A170",
                "operands_swapped",
                "silu(up) * gate: the operands are swapped",
                |s: &mut Setup<Self>| {
                    s.params.swapped = true;
                },
            ),
            Fault::new(
                "A171",
                "sigmoid",
                "sigmoid(gate) * up: the factor gate is missing",
                |s: &mut Setup<Self>| {
                    s.params.activation = Activation::Sigmoid;
                },
            ),
            Fault::new(
                "A172",
                "no_activation",
                "gate * up: the activation is missing",
                |s: &mut Setup<Self>| {
                    s.params.activation = Activation::None;
                },
            ),
        ];
        for (sigmoid, code, slug, detail) in [
            (Sigmoid::Clamped, "A260", "exp_clamped", "the exponent of e^-gate is clamped at 10"),
            (
                Sigmoid::Log2eBf16,
                "A257",
                "log2e_bf16",
                "e^-gate is computed as a power of 2 with log2(e) in bf16",
            ),
            (
                Sigmoid::Pade,
                "A261",
                "tanh_pade",
                "the sigmoid is made from y (27 + y^2) / (27 + 9 y^2) in place of tanh",
            ),
            (Sigmoid::ExpF16, "A262", "exp_f16", "e^-gate is rounded to f16"),
        ] {
            let edit = move |s: &mut Setup<Self>| s.params.sigmoid = sigmoid;
            faults.push(Fault::new(code, slug, detail, edit));
        }
        faults.extend(store_faults(["A173", "A175"]));
        faults.extend(via_f16_fault(tensors.get("gate")));
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A174", residual)
    }
}
