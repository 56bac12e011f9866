//! `ct_dequant`: w[n, k] = (q[n, k] - z[n, g]) * scale[n, g], compressed-tensors' `pack-quantized`
//! integers of 2, 3, 4 or 8 bits (W4A16 and its kin), in torch's Linear layout.
//!
//! Shapes at b bits: weight_packed i32 [N, ceil(K b / 32)] (a row is one little-endian bit stream along
//! K), weight_scale [N, G], weight_zero_point i32 [ceil(N b / 32), G] or absent (a column is one bit
//! stream along N), weight_g_idx i32 \[K\] or absent (then g = k / group_size), weight_shape i64 or i32
//! \[2\] = [N, K]; output [N, K]. group_size -1 is one group of K (`strategy: channel`).
//! q and z are signed, stored with 2^(b - 1) added. So the offset drops out of q - z, and a symmetric
//! layer, which stores no zero point, has z = 0.
//! The product is exact in f32. Points: `scale`, `weight` (the product), `output`.
//! Conventions: the scale as it is (`scale=file`) or rounded to the stored dtype first
//! (`scale=stored`: transformers casts it when loading, and the library computes in its dtype, where
//! q - z is exact); the product rounded once (`weight=direct`) or to the scale's dtype first, as when
//! a decompressed weight is cast to another model dtype (`weight=via_scale`).
//!
//! Source: <https://github.com/vllm-project/compressed-tensors>, `compressors/pack_quantized`

mod faults;

use serde::{Deserialize, Serialize};

use super::packed::{self, Group, Nibbles, Packing, Reading, Straddle};
use super::slip::Slip;
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// How a packed field becomes a signed integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// 2^(bits - 1) is subtracted: the library's.
    #[default]
    Offset,
    /// The field is taken as it is: a fault.
    Unsigned,
    /// The field is taken as two's complement: a fault.
    TwosComplement,
}

impl Sign {
    fn signed(self, field: i64, bits: u32) -> i64 {
        let half = 1i64 << (bits - 1);
        match self {
            Sign::Offset => field - half,
            Sign::Unsigned => field,
            Sign::TwosComplement => (field ^ half) - half,
        }
    }
}

/// Width, group size and semantic knobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Bits of a value.
    pub bits: u32,
    /// Inputs of a group, or -1 for one group.
    pub group_size: i64,
    /// Signs of the weights.
    #[serde(default)]
    pub sign: Sign,
    /// Signs of the zero points.
    #[serde(default)]
    pub zero_sign: Sign,
    /// The stored zero points are not subtracted: a fault.
    #[serde(default)]
    pub zero_ignored: bool,
    /// Group lookup.
    #[serde(default)]
    pub group: Group,
    /// Order of the values in weight_packed's words.
    #[serde(default)]
    pub order: Nibbles,
    /// Order of the values in weight_zero_point's words.
    #[serde(default)]
    pub zero_order: Nibbles,
    /// Values in two words.
    #[serde(default)]
    pub straddle: Straddle,
    /// The width at which weight_packed is read, if it is another: a fault.
    #[serde(default)]
    pub misread_bits: Option<u32>,
    /// Packing axis.
    #[serde(default)]
    pub packing: Packing,
    /// The memory of weight_scale [N, G] is read as [G, N]: a fault.
    #[serde(default)]
    pub scale_transposed: bool,
    /// (z - q) * s: a fault.
    #[serde(default)]
    pub negated: bool,
    /// A single slip.
    #[serde(default)]
    pub slip: Slip,
}

impl Params {
    /// The right op.
    pub fn new(bits: u32, group_size: i64) -> Params {
        Params {
            bits,
            group_size,
            sign: Sign::Offset,
            zero_sign: Sign::Offset,
            zero_ignored: false,
            group: Group::ByIndex,
            order: Nibbles::LowFirst,
            zero_order: Nibbles::LowFirst,
            straddle: Straddle::Joined,
            misread_bits: None,
            packing: Packing::AlongK,
            scale_transposed: false,
            negated: false,
            slip: Slip::None,
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct CtDequant;

impl Op for CtDequant {
    const NAME: &'static str = "ct_dequant";
    const SUMMARY: &'static str = "compressed-tensors' packed integer weights to floating point";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("weight_packed", "[N, K b/32] i32, packed along K"),
        ArgSpec::new("weight_scale", "[N, G]"),
        ArgSpec::optional("weight_zero_point", "[N b/32, G] i32, packed along N"),
        ArgSpec::optional("weight_g_idx", "[K] i32"),
        ArgSpec::new("weight_shape", "[2]: N and K"),
    ];
    const POINTS: &'static [&'static str] = &["scale", "weight", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let bits = params.bits;
        packed::check_width(Self::NAME, bits)?;
        packed::check_misread(Self::NAME, bits, params.misread_bits)?;
        let [n, k] = shape_of(tensors)?;
        let weight = need(Self::NAME, tensors, "weight_packed", false)?;
        let scale = need(Self::NAME, tensors, "weight_scale", true)?;
        let fail = |arg: &str, expected: [usize; 2], found: &[usize]| {
            let what = format!("must be {expected:?} for N = {n} and K = {k}, is {found:?}");
            Err(Error::arg(Self::NAME, arg, what))
        };
        let expected = [n, packed::words(k, bits)];
        if weight.shape() != expected {
            return fail("weight_packed", expected, weight.shape());
        }
        let groups = match (tensors.get("weight_g_idx"), scale.shape()) {
            // As in `gptq_dequant`, a shard keeps the groups of the whole.
            (Some(_), &[rows, groups]) if rows == n => groups,
            _ => packed::groups(Self::NAME, k, params.group_size)?,
        };
        if scale.shape() != [n, groups] {
            return fail("weight_scale", [n, groups], scale.shape());
        }
        if tensors.contains_key("weight_zero_point") {
            let zero = need(Self::NAME, tensors, "weight_zero_point", false)?;
            let expected = [packed::words(n, bits), groups];
            if zero.shape() != expected {
                return fail("weight_zero_point", expected, zero.shape());
            }
        }
        check_index(tensors, k, groups)?;
        Ok(OutSpec::output([n, k]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let [weight, scale, shape] =
            ["weight_packed", "weight_scale", "weight_shape"].map(|name| inputs.req(name));
        let zeros = inputs.get("weight_zero_point").filter(|_| !params.zero_ignored);
        let g_idx = inputs.get("weight_g_idx").filter(|_| params.group != Group::Sequential);
        let [n, k] = [0, 1].map(|i| shape.int(i) as usize);
        let (groups, row_words) = (scale.cols(), weight.cols());
        let bits = params.misread_bits.unwrap_or(params.bits);
        let reading = Reading { bits, order: params.order, straddle: params.straddle };
        let zero_reading = Reading { bits, order: params.zero_order, straddle: params.straddle };
        let cols = tile.cols_of(k);
        let own = |&c: &usize| {
            let own = match g_idx {
                Some(g) => g.int(c) as usize,
                None => packed::group_of(c, k, params.group_size, groups),
            };
            params.slip.group(own, k, params.group_size)
        };
        let next = |&g: &usize| (g + 1).min(groups - 1);
        let owns: Vec<usize> = cols.iter().map(own).collect();
        let nexts: Vec<usize> = owns.iter().map(next).collect();
        let scale_groups = if params.group == Group::Next { &nexts } else { &owns };
        let zero_groups = match params.group {
            Group::Next | Group::NextZero => &nexts,
            Group::ByIndex | Group::Sequential => &owns,
        };
        let row_offsets: Vec<usize> = (0..row_words).collect();
        let rows_only = Tile { rows: tile.rows.clone(), cols: None };
        Out::by_rows(&rows_only, n, |row| {
            let scale_at = |&g: &usize| match params.scale_transposed {
                false => scale.at(row * groups + g),
                true => scale.at(g * n + row),
            };
            let mut s: Vec<R> = scale_groups.iter().map(scale_at).collect();
            policy.apply("scale", &mut s);
            // One zero point a group.
            let zeros: Option<Vec<i64>> = zeros.map(|z| {
                let one = |g: usize| {
                    let field = zero_reading.value(row, |w| z.int(w * groups + g));
                    params.zero_sign.signed(field, bits)
                };
                (0..groups).map(one).collect()
            });
            let words = match params.packing {
                Packing::AlongK => weight.ints(row * row_words, &row_offsets),
                Packing::AlongN => Vec::new(),
            };
            for (i, (w, &c)) in s.iter_mut().zip(&cols).enumerate() {
                let field = match params.packing {
                    Packing::AlongK => reading.value(c, |w| words[w]),
                    Packing::AlongN => reading.value(row, |w| weight.int(w * k + c)),
                };
                let field = params.slip.value(field, [c, row], [k, n]);
                let q = params.sign.signed(field, bits);
                let z = zeros.as_ref().map_or(0, |z| z[zero_groups[i]]);
                *w = params.slip.weight([q, z], *w, params.negated, policy);
            }
            policy.apply("weight", &mut s);
            policy.apply("output", &mut s);
            s
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![
            Knob::new("scale", "file").or("stored", |s: &mut Setup<Self>| {
                s.policy.round_at("scale", s.policy.output.dtype);
            }),
            Knob::new("weight", "direct").or("via_scale", |s: &mut Setup<Self>| {
                if let Some(scale) = s.tensors.get("weight_scale") {
                    s.policy.round_at("weight", scale.dtype());
                }
            }),
        ]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1EE", residual)
    }
}

/// [N, K] as weight_shape states it.
fn shape_of(tensors: &Tensors) -> Result<[usize; 2]> {
    const OP: &str = CtDequant::NAME;
    let shape = need(OP, tensors, "weight_shape", false)?;
    let sizes = (shape.shape() == [2]).then(|| [shape.get_i64(0), shape.get_i64(1)]);
    let plain = |d: i64| usize::try_from(d).ok().filter(|d| (1..=1 << 24).contains(d));
    match sizes.map(|s| s.map(plain)) {
        Some([Some(n), Some(k)]) => Ok([n, k]),
        _ => {
            let what = format!("must hold two positive sizes, is {:?}", shape.to_f64());
            Err(Error::arg(OP, "weight_shape", what))
        }
    }
}

fn check_index(tensors: &Tensors, k: usize, groups: usize) -> Result<()> {
    const OP: &str = CtDequant::NAME;
    if !tensors.contains_key("weight_g_idx") {
        return Ok(());
    }
    let g_idx = need(OP, tensors, "weight_g_idx", false)?;
    if g_idx.shape() != [k] {
        let what = format!("must have shape [{k}], has {:?}", g_idx.shape());
        return Err(Error::arg(OP, "weight_g_idx", what));
    }
    if let Some(i) = (0..k).find(|&i| !(0..groups as i64).contains(&g_idx.get_i64(i))) {
        let what = format!("entry {i} is {}, outside 0..{groups}", g_idx.get_i64(i));
        return Err(Error::arg(OP, "weight_g_idx", what));
    }
    Ok(())
}
