//! The description of block-scaled FP8 weights, as transformers writes it.

use super::{Exclusions, Part, check_rest};
use crate::checkpoint::config::fields::Fields;
use crate::checkpoint::expected::Kind;
use crate::checkpoint::json::describe;
use crate::error::Result;
use crate::ops::fp8_dequant::{self, Fp8Dequant};
use crate::ops::linear::Linear;
use crate::ops::quant_gemm;

/// FP8 weights with a scale for each block.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8 {
    /// Outputs and inputs of a block.
    pub block: [usize; 2],
    /// Layers left as floats.
    pub excluded: Exclusions,
}

const REFUSED: &[(&str, &str)] = &[
    ("dequantize", "a conversion at load, which is not how the weights are stored"),
    ("modules_to_convert", "quantised modules other than linear layers"),
];

pub(super) fn parse(fields: &Fields<'_>) -> Result<Fp8> {
    let block = block(fields)?;
    for (name, only, needed) in [
        ("fmt", "e4m3", false),
        ("activation_scheme", "dynamic", true),
        ("scale_fmt", "float", false),
        ("expert_dtype", "fp8", false),
    ] {
        match fields.text(name)? {
            Some(value) if value != only => {
                let value = value.escape_debug();
                return Err(fields.error(name, format!("is `{value}`: only {only} is supported")));
            }
            None if needed => {
                return fields.need(name, None, &format!("expected `{only}`"));
            }
            _ => {}
        }
    }
    let excluded = Exclusions::read(fields, &["modules_to_not_convert", "ignored_layers"])?;
    check_rest(fields, "FP8", &[], REFUSED)?;
    Ok(Fp8 { block, excluded })
}

/// `weight_block_size`; without one there would be a scale for a whole tensor.
fn block(fields: &Fields<'_>) -> Result<[usize; 2]> {
    const NAME: &str = "weight_block_size";
    let why = "FP8 weights with one scale for a tensor are not supported";
    let value = fields.need(NAME, fields.value(NAME), why)?;
    let sizes = value.as_array().map(|a| a.iter().map(serde_json::Value::as_u64).collect());
    let sizes: Option<Vec<u64>> = sizes.flatten();
    match sizes.as_deref() {
        Some(&[n, k]) if (1..=1 << 20).contains(&n) && (1..=1 << 20).contains(&k) => {
            Ok([n as usize, k as usize])
        }
        _ => {
            let what = format!("must be two positive sizes, but is {}", describe(value));
            Err(fields.error(NAME, what))
        }
    }
}

impl Fp8 {
    pub(super) fn linear(&self) -> Linear {
        Linear::Fp8(quant_gemm::Params::new::<Fp8Dequant>(fp8_dequant::Params::new(self.block)))
    }

    pub(super) fn parts(&self, n: usize, k: usize) -> Vec<Part> {
        let scales = vec![n.div_ceil(self.block[0]), k.div_ceil(self.block[1])];
        vec![("weight", Kind::Fp8, vec![n, k]), ("weight_scale_inv", Kind::FloatScales, scales)]
    }
}
