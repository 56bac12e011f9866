//! A linear layer in whatever form its weight is stored: what composites with many linear layers, as a
//! mixture of experts, evaluate by name.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::awq_dequant::AwqDequant;
use super::ct_dequant::CtDequant;
use super::fp8_dequant::Fp8Dequant;
use super::gptq_dequant::GptqDequant;
use super::quant_gemm::{AwqGemm, CtGemm, Dequant, Fp8Gemm, GptqGemm, Params};
use super::{Arg, Inputs, Op, OutSpec, Tensors, Tile, matmul};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::policy::Policy;

/// A linear layer's form with the params of its op.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Linear {
    /// `weight` [N, K] in floating point: `matmul`.
    #[default]
    Dense,
    /// `gptq_gemm`.
    Gptq(Params<<GptqDequant as Op>::Params>),
    /// `awq_gemm`.
    Awq(Params<<AwqDequant as Op>::Params>),
    /// `ct_gemm`.
    CompressedTensors(Params<<CtDequant as Op>::Params>),
    /// `fp8_gemm`.
    Fp8(Params<<Fp8Dequant as Op>::Params>),
}

/// Calls `$f::<Op>(params, ...)` for the form's op.
macro_rules! dispatch {
    ($linear:expr, $f:ident ( $($arg:expr),* )) => {
        match $linear {
            Linear::Dense => $f::<matmul::Matmul>(&matmul::Params::default(), $($arg),*),
            Linear::Gptq(p) => $f::<GptqGemm>(p, $($arg),*),
            Linear::Awq(p) => $f::<AwqGemm>(p, $($arg),*),
            Linear::CompressedTensors(p) => $f::<CtGemm>(p, $($arg),*),
            Linear::Fp8(p) => $f::<Fp8Gemm>(p, $($arg),*),
        }
    };
}

impl Linear {
    /// The op's name.
    pub fn op(&self) -> &'static str {
        match self {
            Linear::Dense => matmul::Matmul::NAME,
            Linear::Gptq(_) => GptqDequant::GEMM,
            Linear::Awq(_) => AwqDequant::GEMM,
            Linear::CompressedTensors(_) => CtDequant::GEMM,
            Linear::Fp8(_) => Fp8Dequant::GEMM,
        }
    }

    /// The op's params as JSON.
    pub fn params(&self) -> Value {
        // A dense layer's are all defaults.
        let json = match self {
            Linear::Dense => Ok(Value::Object(serde_json::Map::new())),
            Linear::Gptq(p) => serde_json::to_value(p),
            Linear::Awq(p) => serde_json::to_value(p),
            Linear::CompressedTensors(p) => serde_json::to_value(p),
            Linear::Fp8(p) => serde_json::to_value(p),
        };
        json.expect("params are plain data")
    }

    /// The policy of an implementation that stores `dtype`: of a quantised layer with one part, the
    /// weight's.
    pub fn policy(&self, dtype: Dtype) -> Policy {
        fn of<O: Op>(_: &O::Params, dtype: Dtype) -> Policy {
            O::policy(dtype)
        }
        dispatch!(self, of(dtype))
    }

    /// Checks the layer whose tensors begin with `prefix` for an input of `k` columns, and gives the
    /// number of outputs.
    ///
    /// # Errors
    /// As the op's check; the argument is named without its prefix.
    pub fn check(&self, tensors: &Tensors, prefix: &str, k: usize) -> Result<usize> {
        fn of<O: Op>(params: &O::Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
            O::check(params, tensors)
        }
        let mut own: Tensors = tensors
            .iter()
            .filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_owned(), t.clone())))
            .collect();
        own.insert("x".into(), crate::Tensor::from_f64(Dtype::F32, &[1, k], &vec![0.0; k]));
        Ok(dispatch!(self, of(&own))?[0].cols())
    }

    /// Evaluates the layer whose tensors in `inputs` begin with `prefix` (as `experts.3.gate_proj.`) on
    /// the rows x [..., K]: [..., N] row-major, before the rounding of the output, which is
    /// `policy.output`'s. Call [`Linear::check`] first. `policy` is one as [`Linear::policy`] gives it.
    ///
    /// # Panics
    /// When a tensor of the layer is missing (`check` was not called).
    pub fn eval<R: Real>(
        &self,
        x: Arg<'_, R>,
        inputs: &Inputs<'_, R>,
        prefix: &str,
        policy: &Policy,
    ) -> Vec<R> {
        fn of<O: Op, R: Real>(
            params: &O::Params,
            inputs: &Inputs<'_, R>,
            policy: &Policy,
        ) -> Vec<R> {
            O::eval(params, inputs, policy, &Tile::ALL).remove(0).data
        }
        let inputs = inputs.under(prefix).with("x", x);
        match self {
            Linear::Dense => of::<matmul::Matmul, R>(&matmul::Params::default(), &inputs, policy),
            Linear::Gptq(p) => of::<GptqGemm, R>(p, &inputs, policy),
            Linear::Awq(p) => of::<AwqGemm, R>(p, &inputs, policy),
            Linear::CompressedTensors(p) => of::<CtGemm, R>(p, &inputs, policy),
            Linear::Fp8(p) => of::<Fp8Gemm, R>(p, &inputs, policy),
        }
    }
}
