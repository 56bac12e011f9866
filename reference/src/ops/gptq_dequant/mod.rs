//! `gptq_dequant`: w[k, n] = (q[k, n] - z[g, n]) * scale[g, n] with g = g_idx\[k\], 4 bits.
//!
//! Shapes: qweight i32 [K/8, N] (nibble j of word r is row 8r + j), qzeros i32 [G, N/8] (nibble j of
//! word c is column 8c + j), scales f16 or bf16 [G, N], g_idx i32 \[K\] or absent (then k /
//! group_size); output [K, N]. group_size -1 is one group of K.
//! The format `v1` stores z - 1, `v2` stores z. A stored 15 in v1 is ambiguous: 16 (`wrap=none`, as
//! vLLM reads it), 0 (`wrap=modulo`, as AutoGPTQ does), or 0 with a carry into the next column
//! (`wrap=word`: gptqmodel subtracts and adds 0x11111111 as whole words). A kernel must read 16.
//! The product is exact in f32. Points: `scale`, `weight` (the product), `output`.
//! Conventions: the f16 scale as it is (`scale=f16`) or rounded to the stored dtype first, as
//! gptqmodel does for bf16 models (`scale=stored`); the product rounded once (`weight=direct`) or to
//! f16 first (`weight=via_f16`).
//!
//! Source: <https://arxiv.org/abs/2210.17323> and the files that gptqmodel writes

mod faults;

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Values in a 32-bit word at 4 bits.
pub const PER_WORD: usize = 8;

/// How the checkpoint stores zero points (`checkpoint_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `gptq`: z - 1.
    V1,
    /// `gptq_v2`: z.
    V2,
}

/// What is done with a stored zero point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroPoint {
    /// As the format says.
    #[default]
    ByFormat,
    /// stored + 1 in any format.
    StoredPlusOne,
    /// As stored in any format.
    AsStored,
    /// The symmetric 8, whatever is stored: a fault.
    Symmetric,
}

/// A stored 15 plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrap {
    /// 16.
    #[default]
    None,
    /// 0.
    Modulo,
    /// 0x11111111 is added to the whole word, so that a 15 carries into the next column's value:
    /// what undoes gptqmodel's word-wise subtraction, which borrows there.
    Word,
}

/// How k finds its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// g_idx\[k\], or k / group_size without one.
    #[default]
    ByIndex,
    /// k / group_size although there is a g_idx: a fault.
    Sequential,
    /// The next group, clamped to the last: a fault.
    Next,
    /// The next group for the zero point only: a fault.
    NextZero,
}

/// The order of the nibbles in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nibbles {
    /// Value j in bits 4j..4j+4.
    #[default]
    LowFirst,
    /// Value j in bits 28-4j..32-4j: a fault.
    HighFirst,
    /// AWQ's interleave 0 2 4 6 1 3 5 7: a fault for GPTQ.
    Awq,
}

impl Nibbles {
    /// The slot of value j.
    fn slot(self, j: usize) -> usize {
        match self {
            Nibbles::LowFirst => j,
            Nibbles::HighFirst => PER_WORD - 1 - j,
            Nibbles::Awq => [0, 4, 1, 5, 2, 6, 3, 7][j],
        }
    }
}

/// The axis along which qweight is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Along K, GPTQ's.
    #[default]
    AlongK,
    /// The same memory read as packed along N: a fault.
    AlongN,
}

/// Format, group size and semantic knobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Zero-point format.
    pub format: Format,
    /// Rows of a group, or -1 for one group.
    pub group_size: i64,
    /// Use of the zero point.
    #[serde(default)]
    pub zero: ZeroPoint,
    /// Wrapping of the zero point.
    #[serde(default)]
    pub wrap: Wrap,
    /// Group lookup.
    #[serde(default)]
    pub group: Group,
    /// Nibble order of qweight.
    #[serde(default)]
    pub nibbles: Nibbles,
    /// Nibble order of qzeros.
    #[serde(default)]
    pub zero_nibbles: Nibbles,
    /// Packing axis.
    #[serde(default)]
    pub packing: Packing,
    /// (z - q) * s: a fault.
    #[serde(default)]
    pub negated: bool,
}

impl Params {
    /// The right op.
    pub fn new(format: Format, group_size: i64) -> Params {
        Params {
            format,
            group_size,
            zero: ZeroPoint::ByFormat,
            wrap: Wrap::None,
            group: Group::ByIndex,
            nibbles: Nibbles::LowFirst,
            zero_nibbles: Nibbles::LowFirst,
            packing: Packing::AlongK,
            negated: false,
        }
    }

    /// The zero point in `slot` of a stored word.
    fn zero_point(&self, word: i64, slot: usize) -> i64 {
        let plus_one = match self.zero {
            ZeroPoint::ByFormat => self.format == Format::V1,
            ZeroPoint::StoredPlusOne => true,
            ZeroPoint::AsStored => false,
            ZeroPoint::Symmetric => return 8,
        };
        if !plus_one {
            return nibble(word, slot);
        }
        match self.wrap {
            Wrap::None => nibble(word, slot) + 1,
            Wrap::Modulo => (nibble(word, slot) + 1) & 15,
            Wrap::Word => nibble(i64::from((word as u32).wrapping_add(0x1111_1111)), slot),
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct GptqDequant;

fn nibble(word: i64, slot: usize) -> i64 {
    ((word as u32) >> (4 * slot) & 15).into()
}

impl Op for GptqDequant {
    const NAME: &'static str = "gptq_dequant";
    const SUMMARY: &'static str = "4-bit GPTQ weights to floating point";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("qweight", "[K/8, N] i32, packed along K"),
        ArgSpec::new("qzeros", "[G, N/8] i32, packed along N"),
        ArgSpec::new("scales", "[G, N]"),
        ArgSpec::optional("g_idx", "[K] i32"),
    ];
    const POINTS: &'static [&'static str] = &["scale", "weight", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let qweight = need(Self::NAME, tensors, "qweight", false)?;
        let qzeros = need(Self::NAME, tensors, "qzeros", false)?;
        let scales = need(Self::NAME, tensors, "scales", true)?;
        let (&[words, n], &[groups, sn]) = (qweight.shape(), scales.shape()) else {
            let what = format!("must be [K/8, N], is {:?}", qweight.shape());
            return Err(Error::arg(Self::NAME, "qweight", what));
        };
        let k = words * PER_WORD;
        if n % PER_WORD != 0 || sn != n {
            let what = format!("must be [G, {n}] with N a multiple of 8, is {:?}", scales.shape());
            return Err(Error::arg(Self::NAME, "scales", what));
        }
        if qzeros.shape() != [groups, n / PER_WORD] {
            let what = format!("must be [{groups}, {}], is {:?}", n / PER_WORD, qzeros.shape());
            return Err(Error::arg(Self::NAME, "qzeros", what));
        }
        check_groups(params, tensors, k, groups)?;
        Ok(OutSpec::output([k, n]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let [qweight, qzeros, scales] =
            ["qweight", "qzeros", "scales"].map(|name| inputs.req(name));
        let g_idx = inputs.get("g_idx").filter(|_| params.group != Group::Sequential);
        let (n, groups) = (qweight.cols(), scales.shape()[0]);
        let k = qweight.shape()[0] * PER_WORD;
        let cols = tile.cols_of(n);
        let rows_only = Tile { rows: tile.rows.clone(), cols: None };
        Out::by_rows(&rows_only, k, |row| {
            let size = if params.group_size < 0 { k } else { params.group_size as usize };
            let own = g_idx.map_or_else(|| (row / size).min(groups - 1), |g| g.int(row) as usize);
            let next = (own + 1).min(groups - 1);
            let scale_group = if params.group == Group::Next { next } else { own };
            let zero_group = if params.group == Group::NextZero { next } else { scale_group };
            let mut s: Vec<R> = cols.iter().map(|&c| scales.at(scale_group * n + c)).collect();
            policy.apply("scale", &mut s);
            for (w, &c) in s.iter_mut().zip(&cols) {
                let q = match params.packing {
                    Packing::AlongK => {
                        let word = qweight.int(row / PER_WORD * n + c);
                        nibble(word, params.nibbles.slot(row % PER_WORD))
                    }
                    Packing::AlongN => {
                        let word = qweight.int(row * (n / PER_WORD) + c / PER_WORD);
                        nibble(word, params.nibbles.slot(c % PER_WORD))
                    }
                };
                let zeros = qzeros.int(zero_group * (n / PER_WORD) + c / PER_WORD);
                let z = params.zero_point(zeros, params.zero_nibbles.slot(c % PER_WORD));
                let d = if params.negated { z - q } else { q - z };
                *w = R::lift(d as f64).mul(*w);
            }
            policy.apply("weight", &mut s);
            policy.apply("output", &mut s);
            s
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![
            Knob::new("scale", "f16").or("stored", |s: &mut Setup<Self>| {
                s.policy.round_at("scale", s.policy.output.dtype);
            }),
            Knob::new("weight", "direct").or("via_f16", |s: &mut Setup<Self>| {
                s.policy.round_at("weight", Dtype::F16);
            }),
            Knob::new("wrap", "none")
                .or_eager("modulo", |s: &mut Setup<Self>| s.params.wrap = Wrap::Modulo)
                .or_eager("word", |s: &mut Setup<Self>| s.params.wrap = Wrap::Word),
        ]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1AE", residual)
    }
}

fn check_groups(params: &Params, tensors: &Tensors, k: usize, groups: usize) -> Result<()> {
    const OP: &str = GptqDequant::NAME;
    let size = match params.group_size {
        -1 => k,
        n if n > 0 => n as usize,
        n => return Err(Error::arg(OP, "group_size", format!("must be -1 or positive, is {n}"))),
    };
    let expect = k.div_ceil(size);
    if groups != expect {
        let what = format!("must have {expect} groups of {size} for K = {k}, has {groups}");
        return Err(Error::arg(OP, "scales", what));
    }
    if tensors.contains_key("g_idx") {
        let g_idx = need(OP, tensors, "g_idx", false)?;
        if g_idx.shape() != [k] {
            let what = format!("must have shape [{k}], has {:?}", g_idx.shape());
            return Err(Error::arg(OP, "g_idx", what));
        }
        if let Some(i) = (0..k).find(|&i| !(0..groups as i64).contains(&g_idx.get_i64(i))) {
            let what = format!("entry {i} is {}, outside 0..{groups}", g_idx.get_i64(i));
            return Err(Error::arg(OP, "g_idx", what));
        }
    }
    Ok(())
}
