//! `gptq_dequant`: w[k, n] = (q[k, n] - z[g, n]) * scale[g, n] with g = g_idx\[k\], of 2, 3, 4 or 8 bits.
//!
//! Shapes at b bits: qweight i32 [K b/32, N] (the words of a column are one little-endian bit stream
//! along K: at 4 bits nibble j of word r is row 8r + j), qzeros i32 [G, N b/32] (the same along N),
//! scales f16 or bf16 [G, N], g_idx i32 \[K\] or absent (then k / group_size); output [K, N].
//! group_size -1 is one group of K. At 3 bits 32 values fill 3 words, and values 10 and 21 lie in two.
//! With a g_idx any number of groups is right that covers its entries: a shard of a tensor-parallel
//! layer keeps the groups of the whole.
//! The format `v1` stores z - 1, `v2` stores z. A stored 2^b - 1 in v1 is ambiguous: 2^b
//! (`wrap=none`, as vLLM reads it), 0 (`wrap=modulo`, as AutoGPTQ does), or 0 with a carry into the
//! next column (`wrap=word`: gptqmodel subtracts and adds 0x11111111 as whole words, 0x55555555 at 2
//! bits and 0x01010101 at 8; at 3 bits it decodes first, which is `modulo`). A kernel must read 2^b.
//! The product is exact in f32. Points: `scale`, `weight` (the product), `output`.
//! Conventions: the f16 scale as it is (`scale=f16`) or rounded to the stored dtype first, as
//! gptqmodel does for bf16 models (`scale=stored`); the product rounded once (`weight=direct`) or to
//! f16 first (`weight=via_f16`), or q s - z s by one f16 fma with z s rounded to f16 before
//! (`weight=fma_f16`: TurboMind and TensorRT-LLM keep the scaled zero point beside the scale).
//!
//! Source: <https://arxiv.org/abs/2210.17323> and the files that gptqmodel writes

mod faults;

use serde::{Deserialize, Serialize};

use super::args::{in_parallel, run_of};
use super::packed::{self, Group, Packing, Reading};
pub use super::packed::{Nibbles, Straddle};
use super::slip::Slip;
use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    gain_faults, need,
};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::Policy;

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
    /// The symmetric 2^(bits - 1), whatever is stored: a fault.
    Symmetric,
}

/// The largest stored value plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrap {
    /// 2^bits.
    #[default]
    None,
    /// 0.
    Modulo,
    /// A 1 for each value is added to the whole word, so that a largest value carries into the next
    /// column's: what undoes gptqmodel's word-wise subtraction, which borrows there. At 3 bits
    /// gptqmodel works on decoded values, and this is [`Wrap::Modulo`].
    Word,
}

/// Format, group size and semantic knobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Zero-point format.
    pub format: Format,
    /// Bits of a value: 2, 3, 4 (where the field is missing) or 8.
    #[serde(default = "four")]
    pub bits: u32,
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
    /// Order of the values in qweight's words.
    #[serde(default)]
    pub nibbles: Nibbles,
    /// Order of the values in qzeros' words.
    #[serde(default)]
    pub zero_nibbles: Nibbles,
    /// Packing axis.
    #[serde(default)]
    pub packing: Packing,
    /// Values of qweight in two words.
    #[serde(default)]
    pub straddle: Straddle,
    /// Values of qzeros in two words.
    #[serde(default)]
    pub zero_straddle: Straddle,
    /// The width at which the words are read, if it is another: a fault.
    #[serde(default)]
    pub misread_bits: Option<u32>,
    /// (z - q) * s: a fault.
    #[serde(default)]
    pub negated: bool,
    /// q s - z s in f16, the second product rounded first.
    #[serde(default)]
    pub fused_zero: bool,
    /// A single slip.
    #[serde(default)]
    pub slip: Slip,
}

fn four() -> u32 {
    4
}

impl Params {
    /// The right op at 4 bits.
    pub fn new(format: Format, group_size: i64) -> Params {
        Params {
            format,
            bits: four(),
            group_size,
            zero: ZeroPoint::ByFormat,
            wrap: Wrap::None,
            group: Group::ByIndex,
            nibbles: Nibbles::LowFirst,
            zero_nibbles: Nibbles::LowFirst,
            packing: Packing::AlongK,
            straddle: Straddle::Joined,
            zero_straddle: Straddle::Joined,
            misread_bits: None,
            negated: false,
            fused_zero: false,
            slip: Slip::None,
        }
    }

    /// The same at another width.
    pub fn with_bits(self, bits: u32) -> Params {
        Params { bits, ..self }
    }

    fn weights(&self) -> Reading {
        let bits = self.misread_bits.unwrap_or(self.bits);
        Reading { bits, order: self.nibbles, straddle: self.straddle }
    }

    fn zeros(&self) -> Reading {
        let bits = self.misread_bits.unwrap_or(self.bits);
        Reading { bits, order: self.zero_nibbles, straddle: self.zero_straddle }
    }

    /// The words of qweight, if each weight is (q - z) s of a value in one word and its own row's group.
    fn plain_words<'t, R: Real>(&self, qweight: &'t Arg<'_, R>) -> Option<&'t [[u8; 4]]> {
        let plain = Params {
            format: self.format,
            zero: self.zero,
            wrap: self.wrap,
            zero_nibbles: self.zero_nibbles,
            zero_straddle: self.zero_straddle,
            ..Params::new(self.format, self.group_size).with_bits(self.bits)
        };
        match qweight {
            Arg::Stored(t) if *self == plain && self.bits != 3 && t.dtype() == Dtype::I32 => {
                Some(t.bytes().as_chunks::<4>().0)
            }
            _ => None,
        }
    }

    /// Zero point `n` of the stream of stored words that `word` gives.
    fn zero_point(&self, n: usize, word: impl Fn(usize) -> i64) -> i64 {
        let reading = self.zeros();
        let plus_one = match self.zero {
            ZeroPoint::ByFormat => self.format == Format::V1,
            ZeroPoint::StoredPlusOne => true,
            ZeroPoint::AsStored => false,
            ZeroPoint::Symmetric => return 1 << (reading.bits - 1),
        };
        if !plus_one {
            return reading.value(n, word);
        }
        match self.wrap {
            Wrap::None => reading.value(n, word) + 1,
            Wrap::Word if reading.bits != 3 => {
                let ones = u32::MAX / packed::mask(reading.bits);
                reading.value(n, |w| i64::from((word(w) as u32).wrapping_add(ones)))
            }
            Wrap::Modulo | Wrap::Word => {
                (reading.value(n, word) + 1) & i64::from(packed::mask(reading.bits))
            }
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct GptqDequant;

impl Op for GptqDequant {
    const NAME: &'static str = "gptq_dequant";
    const SUMMARY: &'static str = "GPTQ weights of 2, 3, 4 or 8 bits to floating point";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("qweight", "[K b/32, N] i32, packed along K"),
        ArgSpec::new("qzeros", "[G, N b/32] i32, packed along N"),
        ArgSpec::new("scales", "[G, N]"),
        ArgSpec::optional("g_idx", "[K] i32"),
    ];
    const POINTS: &'static [&'static str] = &["scale", "weight", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let bits = params.bits;
        packed::check_width(Self::NAME, bits)?;
        packed::check_misread(Self::NAME, bits, params.misread_bits)?;
        let qweight = need(Self::NAME, tensors, "qweight", false)?;
        let qzeros = need(Self::NAME, tensors, "qzeros", false)?;
        let scales = need(Self::NAME, tensors, "scales", true)?;
        let (&[words, n], &[groups, sn]) = (qweight.shape(), scales.shape()) else {
            let what = format!("must be [K {bits}/32, N], is {:?}", qweight.shape());
            return Err(Error::arg(Self::NAME, "qweight", what));
        };
        let Some(k) = packed::values(words, bits) else {
            let what = format!("must have 3 words for 32 rows, has {words} rows of words");
            return Err(Error::arg(Self::NAME, "qweight", what));
        };
        if !packed::fills_words(n, bits) || sn != n {
            let what = format!(
                "must be [G, {n}] with N a multiple of {}, is {:?}",
                packed::per_run(bits),
                scales.shape()
            );
            return Err(Error::arg(Self::NAME, "scales", what));
        }
        let zeros = packed::words(n, bits);
        if qzeros.shape() != [groups, zeros] {
            let what = format!("must be [{groups}, {zeros}], is {:?}", qzeros.shape());
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
        let k = qweight.shape()[0] * 32 / params.bits as usize;
        let (row_words, weights) = (packed::words(n, params.bits), params.weights());
        let cols = tile.cols_of(n);
        let scale_cols = |row| -> Vec<usize> {
            cols.iter().map(|&c| params.slip.scale_column(c, row, n)).collect()
        };
        let zeros_of = |group: usize| -> Vec<i64> {
            let one = |&c: &usize| {
                let column = params.slip.zero_column(c, n, packed::per_run(params.bits));
                let z = params.zero_point(column, |w| qzeros.int(group * row_words + w));
                params.slip.zero(z, [group, c], [groups, n])
            };
            cols.iter().map(one).collect()
        };
        let rows_only = Tile { rows: tile.rows.clone(), cols: None };
        if let (Some(words), Some(run)) = (params.plain_words(qweight), run_of(&cols)) {
            let zeros = in_parallel(groups, &|group| -> Vec<R> {
                zeros_of(group).into_iter().map(|z| R::lift(z as f64)).collect()
            });
            let scales = in_parallel(groups, &|group| {
                let mut row = vec![R::lift(0.0); run.len()];
                scales.read(group * n + run.start, &mut row);
                policy.apply("scale", &mut row);
                row
            });
            let mask = packed::mask(params.bits);
            return Out::by_rows(&rows_only, k, |row| {
                let in_sequence = || packed::group_of(row, k, params.group_size, groups);
                let group = g_idx.map_or_else(in_sequence, |g| g.int(row) as usize);
                let place = weights.place(row);
                let words = &words[place.word * n..][run.clone()];
                let of = |((word, z), s): ((&[u8; 4], &R), &R)| {
                    let q = u32::from_le_bytes(*word) >> place.shift & mask;
                    R::lift(f64::from(q as i32)).sub(*z).mul(*s)
                };
                let terms = words.iter().zip(&zeros[group]).zip(&scales[group]);
                let mut out: Vec<R> = terms.map(of).collect();
                policy.apply("weight", &mut out);
                policy.apply("output", &mut out);
                out
            });
        }
        // Those of all groups at once where many rows share them.
        let many = rows_only.rows_of(k).len() >= groups;
        let zeros: Vec<Vec<i64>> = (0..if many { groups } else { 0 }).map(zeros_of).collect();
        Out::by_rows(&rows_only, k, |row| {
            let in_sequence = || packed::group_of(row, k, params.group_size, groups);
            let own = g_idx.map_or_else(in_sequence, |g| g.int(row) as usize);
            let own = params.slip.group(own, k, params.group_size);
            let next = (own + 1).min(groups - 1);
            let scale_group = if params.group == Group::Next { next } else { own };
            let zero_group = if params.group == Group::NextZero { next } else { scale_group };
            let mut s: Vec<R> = scales.gather(scale_group * n, &scale_cols(row));
            policy.apply("scale", &mut s);
            let alone = if many { Vec::new() } else { zeros_of(zero_group) };
            let zeros = if many { &zeros[zero_group] } else { &alone };
            let quants: Vec<i64> = match params.packing {
                Packing::AlongK => {
                    let place = weights.place(row);
                    let words = qweight.ints(place.word * n, &cols);
                    let next = match place.straddles {
                        true => qweight.ints((place.word + 1) * n, &cols),
                        false => Vec::new(),
                    };
                    let cut = |i: usize| weights.cut(place, words[i], || next[i]);
                    (0..cols.len()).map(cut).collect()
                }
                Packing::AlongN => {
                    let word = |w: usize| qweight.int(row * row_words + w);
                    cols.iter().map(|&c| weights.value(c, word)).collect()
                }
            };
            for (i, (w, &c)) in s.iter_mut().zip(&cols).enumerate() {
                let q = params.slip.value(quants[i], [row, c], [k, n]);
                let z = zeros[i];
                *w = match (params.fused_zero, params.negated) {
                    (true, false) => packed::fused_zero(q, z, *w, policy.lambda),
                    (true, true) => packed::fused_zero(z, q, *w, policy.lambda),
                    (false, negated) => params.slip.weight([q, z], *w, negated, policy),
                };
            }
            policy.apply("weight", &mut s);
            policy.apply("output", &mut s);
            s
        })
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let modulo = Knob::new("wrap", "none")
            .or_eager("modulo", |s: &mut Setup<Self>| s.params.wrap = Wrap::Modulo);
        // At 3 bits it is no choice of its own.
        let wrap = match params.bits {
            3 => modulo,
            _ => modulo.or_eager("word", |s: &mut Setup<Self>| s.params.wrap = Wrap::Word),
        };
        vec![
            Knob::new("scale", "f16").or("stored", |s: &mut Setup<Self>| {
                s.policy.round_at("scale", s.policy.output.dtype);
            }),
            Knob::new("weight", "direct")
                .or("via_f16", |s: &mut Setup<Self>| s.policy.round_at("weight", Dtype::F16))
                .or_rarely("fma_f16", |s: &mut Setup<Self>| s.params.fused_zero = true),
            wrap,
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
    let expect = packed::groups(OP, k, params.group_size)?;
    if !tensors.contains_key("g_idx") {
        if groups != expect {
            let size = params.group_size;
            let what = format!("must have {expect} groups of {size} for K = {k}, has {groups}");
            return Err(Error::arg(OP, "scales", what));
        }
        return Ok(());
    }
    let g_idx = need(OP, tensors, "g_idx", false)?;
    if g_idx.shape() != [k] {
        let what = format!("must have shape [{k}], has {:?}", g_idx.shape());
        return Err(Error::arg(OP, "g_idx", what));
    }
    if let Some(i) = (0..k).find(|&i| !(0..groups as i64).contains(&g_idx.get_i64(i))) {
        let what = format!("entry {i} is {}, outside 0..{groups}", g_idx.get_i64(i));
        return Err(Error::arg(OP, "g_idx", what));
    }
    Ok(())
}
