//! Layers in the quantised formats, and the cases of their dequantisations and products.

pub(super) mod dequant;
pub(super) mod gemm;
mod layer;

pub(super) use layer::{Awq, Codes, Ct, Fp8, Gptq, Scales, Spec};
