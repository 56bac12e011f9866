//! AWQ's description, as AutoAWQ, transformers and gptqmodel write it.

use super::{Exclusions, Part, check_pack_dtype, check_rest};
use crate::checkpoint::config::fields::Fields;
use crate::checkpoint::expected::Kind;
use crate::error::Result;
use crate::ops::awq_dequant::{self, AwqDequant, PER_WORD};
use crate::ops::linear::Linear;
use crate::ops::quant_gemm;

/// An AWQ quantisation of 4 bits in the GEMM layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Awq {
    /// Input rows that share a scale and a zero point; `None` (-1 in the file) is all of a layer's.
    pub group_size: Option<usize>,
    /// Whether zero points were fitted. They are stored, and read, either way.
    pub zero_point: bool,
    /// Layers left as floats.
    pub excluded: Exclusions,
}

const HARMLESS: &[&str] = &[
    "backend",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "modules_to_fuse",
];

const REFUSED: &[(&str, &str)] = &[
    ("adapter", "an adapter on top of the weights"),
    ("desc_act", "rows in the order of activations, which AWQ's files cannot state"),
    ("dynamic", "settings of single layers"),
    ("lm_head", "a quantised lm_head"),
    ("rotation", "rotated weights"),
];

pub(super) fn parse(fields: &Fields<'_>) -> Result<Awq> {
    super::bits(fields, "bits", &[4], "AWQ")?;
    let group_size = super::group_size(fields)?;
    let zero_point = fields.need("zero_point", fields.flag("zero_point")?, super::WHY)?;
    if fields.flag("sym")? == Some(zero_point) {
        let what =
            format!("is {zero_point}, and so is `zero_point`: symmetric is without zero points");
        return Err(fields.error("sym", what));
    }
    let mut layouts = 0;
    for name in ["version", "format", "checkpoint_format"] {
        let Some(layout) = fields.text(name)? else { continue };
        layouts += 1;
        if !layout.eq_ignore_ascii_case("gemm") {
            let layout = layout.escape_debug();
            return Err(fields
                .error(name, format!("is `{layout}`: of AWQ's layouts only gemm is supported")));
        }
    }
    if layouts == 0 {
        return fields.need("version", None, "expected `gemm`, the layout of the packed words");
    }
    check_pack_dtype(fields)?;
    let excluded = Exclusions::read(fields, &["modules_to_not_convert"])?;
    check_rest(fields, "AWQ", HARMLESS, REFUSED)?;
    Ok(Awq { group_size, zero_point, excluded })
}

impl Awq {
    pub(super) fn linear(&self) -> Linear {
        let params = awq_dequant::Params::new(self.group_size.map_or(-1, |n| n as i64));
        Linear::Awq(quant_gemm::Params::new::<AwqDequant>(params))
    }

    pub(super) fn parts(&self, n: usize, k: usize) -> Vec<Part> {
        let groups = self.group_size.map_or(1, |size| k.div_ceil(size));
        vec![
            ("qweight", Kind::Packed, vec![k, n / PER_WORD]),
            ("qzeros", Kind::Packed, vec![groups, n / PER_WORD]),
            ("scales", Kind::Scales, vec![groups, n]),
        ]
    }
}
