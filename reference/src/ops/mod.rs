//! The ops: each a family of variants.
//!
//! An op is defined once, over [`Real`]; its *params* hold shapes, flags and every semantic knob as
//! enums whose default is right. What the field does differently is either a [`Knob`]'s choice (a
//! legitimate convention) or a [`Fault`]. Both are edits of a [`Setup`]: of params, policy, or the
//! case's tensors. To add an op: one folder with a type that implements [`Op`], and one word in
//! [`ops!`](visit) below.

mod args;
mod basis;
mod erased;
mod fit;
mod lanes;
mod lens;
mod variant;

pub mod add;
pub mod add_rms_norm;
pub mod all_gather;
pub mod all_reduce;
pub mod argmax;
pub mod attention;
pub mod attention_paged;
pub mod awq_dequant;
pub mod ct_dequant;
pub mod embedding;
pub mod fp8_dequant;
pub mod gptq_dequant;
pub mod kv_store;
pub mod linear;
pub mod matmul;
pub mod moe_experts;
pub mod moe_route;
pub mod packed;
pub mod qk_norm_rope;
pub mod quant_gemm;
pub mod rms_norm;
pub mod rope;
pub mod silu_mul;
pub mod slip;
pub mod softmax;
pub mod sources;

pub use args::{Arg, ArgSpec, Inputs, Out, OutSpec, Tensors, Tile, need};
pub use basis::Basis;
pub use erased::{AnyParams, Erased};
pub use variant::{
    Choice, Edit, Fault, Knob, Residual, Scope, Setup, gain_at, gain_faults, store_faults,
    via_f16_fault,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::arith::Real;
use crate::dtype::Rounding;
use crate::error::Result;
use crate::policy::Policy;

/// A mathematical operation with its variants.
pub trait Op: Sized + Send + Sync + 'static {
    /// The op's name: `rms_norm`.
    const NAME: &'static str;
    /// One line for `assay list`.
    const SUMMARY: &'static str;
    /// Arguments by name.
    const ARGS: &'static [ArgSpec];
    /// Named points at which a policy can act.
    const POINTS: &'static [&'static str];
    /// Shapes, flags and semantic knobs.
    type Params: Clone + PartialEq + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync;

    /// Checks shapes and values against the contract and returns the outputs' shapes.
    ///
    /// # Errors
    /// Names the argument, the expectation and what was given.
    fn check(params: &Self::Params, tensors: &Tensors) -> Result<Vec<OutSpec>>;

    /// Whether some columns of the output cost as little as they are few: a product with a weight, which is read by
    /// column.
    const COLUMNS_APART: bool = false;

    /// [`Op::COLUMNS_APART`]; [`Erased`] stands for the op of its params.
    fn columns_apart(_params: &Self::Params) -> bool {
        Self::COLUMNS_APART
    }

    /// The op's name; [`Erased`] stands for the op of its params.
    fn name(_params: &Self::Params) -> &'static str {
        Self::NAME
    }

    /// Params of the op called `op`, which is this one, from JSON.
    ///
    /// # Errors
    /// When they are not the op's.
    fn parse(_op: &str, params: &serde_json::Value) -> Result<Self::Params> {
        serde_json::from_value(params.clone())
            .map_err(|e| crate::error::Error::arg(Self::NAME, "params", format!("{e} in {params}")))
    }

    /// The setup of a case under the default convention, and its outputs.
    ///
    /// # Errors
    /// When the case is not the op's.
    fn open(case: &crate::case::Case) -> Result<(Setup<Self>, Vec<OutSpec>)> {
        let outputs = case.check::<Self>()?;
        let params = case.params::<Self>()?;
        let (policy, tensors) = (Self::policy(case.dtype), case.tensors.clone());
        Ok((Setup { params, policy, tensors }, outputs))
    }

    /// Evaluates a setup in one of the arithmetics that ops are compiled for.
    fn evaluate<R: Basis>(setup: &Setup<Self>, tile: &Tile) -> Vec<Out<R>> {
        R::eval(Self::NAME, setup, tile)
    }

    /// Evaluates the tile's elements, before the rounding of the output. Call [`Op::check`] first.
    fn eval<R: Real>(
        params: &Self::Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>>;

    /// Legitimate conventions, the default choice first.
    fn knobs(params: &Self::Params) -> Vec<Knob<Self>>;

    /// The catalogue of faults.
    fn faults(params: &Self::Params, tensors: &Tensors) -> Vec<Fault<Self>>;

    /// Faults with a free parameter, solved from the residual.
    fn propose(_params: &Self::Params, _residual: &Residual<'_>) -> Vec<Fault<Self>> {
        Vec::new()
    }

    /// What else the residual tells about an output that is wrong, in a few words each: for the text of a
    /// finding.
    fn evidence(_params: &Self::Params, _residual: &Residual<'_>) -> Vec<String> {
        Vec::new()
    }

    /// The policy of an implementation that stores `dtype` and rounds nothing inside.
    fn policy(dtype: crate::Dtype) -> Policy {
        Policy::stored_as(dtype)
    }

    /// The rounding with which output `index` (in the order of [`Op::check`]) is stored. All outputs of
    /// an op have the same rows and columns, so that a tile means the same in each.
    fn rounding(_params: &Self::Params, policy: &Policy, _index: usize) -> Rounding {
        policy.output
    }
}

/// Code that works for every op; see [`visit`].
pub trait Visitor {
    /// Result of the visit.
    type Out;
    /// Called with the op's type.
    fn visit<O: Op>(self) -> Self::Out;
}

macro_rules! ops {
    ($($module:ident :: $ty:ident),* $(,)?) => {
        /// Names of all ops, in the order of the registration.
        pub const NAMES: &[&str] = &[$(<$module::$ty as Op>::NAME),*];

        /// Calls the visitor with the op named `name`; `None` when there is none.
        pub fn visit<V: Visitor>(name: &str, visitor: V) -> Option<V::Out> {
            $(if name == <$module::$ty as Op>::NAME {
                return Some(visitor.visit::<$module::$ty>());
            })*
            None
        }
    };
}

ops! {
    embedding::Embedding,
    rms_norm::RmsNorm,
    matmul::Matmul,
    gptq_dequant::GptqDequant,
    quant_gemm::GptqGemm,
    awq_dequant::AwqDequant,
    quant_gemm::AwqGemm,
    ct_dequant::CtDequant,
    quant_gemm::CtGemm,
    fp8_dequant::Fp8Dequant,
    quant_gemm::Fp8Gemm,
    rope::Rope,
    softmax::Softmax,
    attention::Attention,
    silu_mul::SiluMul,
    add::Add,
    argmax::Argmax,
    moe_route::MoeRoute,
    moe_experts::MoeExperts,
    all_reduce::AllReduce,
    all_gather::AllGather,
    add_rms_norm::AddRmsNorm,
    qk_norm_rope::QkNormRope,
    attention_paged::AttentionPaged,
    kv_store::KvStore,
}
