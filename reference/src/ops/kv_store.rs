//! `kv_store`: writes the keys and values of T tokens into the slots of a paged cache.
//!
//! Shapes: k, v [T, Hkv, D], k_cache, v_cache [blocks, block_size, Hkv, D] as they are before,
//! slot_mapping \[T\]; outputs k_cache and v_cache after. Token t goes to row slot_mapping\[t\] of the
//! cache flattened to [blocks * block_size, Hkv, D]; a slot of -1 is padding, which is not written, and
//! all other rows keep their bits. With an FP8 cache x / scale is stored, saturated to the largest
//! finite value; with a cache of the dtype of k and v it is a copy.
//! Points: `written` (a row before it is stored). Conventions, with a scale other than 1: x is divided by
//! it (`scale=divided`: vLLM) or multiplied by the reciprocal in f32 (`scale=reciprocal`: aiter).
//!
//! Source: <https://arxiv.org/abs/2309.06180>,
//! <https://github.com/vllm-project/vllm/blob/main/csrc/cache_kernels.cu>

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_at, need,
    store_faults,
};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Where the elements of a token's row end up inside its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// [block_size, Hkv, D], the cache's.
    #[default]
    TokenMajor,
    /// [Hkv, block_size, D]: a fault.
    HeadMajor,
    /// [block_size, D, Hkv]: a fault.
    Transposed,
}

/// What happens to padding tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Not written.
    #[default]
    Skipped,
    /// Slot -1 counts from the end, as in an eager framework's indexing: a fault.
    WrittenToLast,
}

/// Use of a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// x / scale.
    #[default]
    Divided,
    /// x times 1 / scale, rounded to f32.
    Reciprocal,
    /// x: a fault.
    Ignored,
    /// x * scale: a fault.
    Multiplied,
}

/// Semantic knobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Scales of k and v.
    pub scales: [f64; 2],
    /// Use of the scales.
    pub scaling: Scaling,
    /// Element order.
    pub layout: Layout,
    /// Padding.
    pub padding: Padding,
    /// Added to every slot: a fault unless 0.
    pub slot_shift: i64,
    /// k goes to the cache of v and the reverse: a fault.
    pub swapped: bool,
    /// The last token is not written: a fault.
    pub last_dropped: bool,
    /// The other slots of a block that is written to become 0: a fault.
    pub others_cleared: bool,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            scales: [1.0; 2],
            scaling: Scaling::Divided,
            layout: Layout::TokenMajor,
            padding: Padding::Skipped,
            slot_shift: 0,
            swapped: false,
            last_dropped: false,
            others_cleared: false,
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct KvStore;

/// [blocks, block_size, Hkv, D].
type Shape = [usize; 4];

/// The token that writes each slot.
fn writers(params: &Params, slots: &[i64], total: usize) -> BTreeMap<usize, usize> {
    let tokens = slots.len() - usize::from(params.last_dropped);
    let mut out = BTreeMap::new();
    for (t, &slot) in slots[..tokens].iter().enumerate() {
        let slot = match slot {
            0.. => (slot + params.slot_shift).rem_euclid(total as i64),
            _ if params.padding == Padding::WrittenToLast => total as i64 - 1,
            _ => continue,
        };
        out.insert(slot as usize, t);
    }
    out
}

/// Row `r` of the cache (of D elements) as (slot, head) of the row that the layout puts there.
fn owner(layout: Layout, r: usize, [_, size, heads, _]: Shape) -> (usize, usize) {
    match layout {
        Layout::TokenMajor | Layout::Transposed => (r / heads, r % heads),
        Layout::HeadMajor => {
            let (block, within) = (r / (size * heads), r % (size * heads));
            (block * size + within % size, within / size)
        }
    }
}

fn slots<R: Real>(inputs: &Inputs<'_, R>) -> Vec<i64> {
    let mapping = inputs.req("slot_mapping");
    (0..mapping.shape()[0]).map(|t| mapping.int(t)).collect()
}

/// One cache after the writes.
fn store<R: Real>(
    params: &Params,
    inputs: &Inputs<'_, R>,
    policy: &Policy,
    tile: &Tile,
    index: usize,
) -> Out<R> {
    const NAMES: [&str; 2] = ["k_cache", "v_cache"];
    let cache = inputs.req(NAMES[index]);
    let source = inputs.req(["k", "v"][if params.swapped { 1 - index } else { index }]);
    let &[blocks, size, heads, d] = cache.shape() else { unreachable!("checked") };
    let shape = [blocks, size, heads, d];
    let by_slot = writers(params, &slots(inputs), blocks * size);
    // Scales, and their reciprocals, are f32 in memory.
    let f32_ = Rounding::nearest(Dtype::F32);
    let scale = f32_.round(params.scales[index]);
    let scaled = |x: R| match params.scaling {
        _ if scale == 1.0 => x,
        Scaling::Divided => x.div(R::lift(scale)),
        Scaling::Reciprocal => x.mul(R::lift(f32_.round(1.0 / scale))),
        Scaling::Ignored => x,
        Scaling::Multiplied => x.mul(R::lift(scale)),
    };
    let out = Out::by_rows(tile, blocks * size * heads, |r| {
        let (slot, head) = owner(params.layout, r, shape);
        let Some(&t) = by_slot.get(&slot) else {
            let block = slot / size * size;
            let touched = by_slot.range(block..block + size).next().is_some();
            let cleared = params.others_cleared && touched;
            return if cleared { vec![R::lift(0.0); d] } else { cache.row(r) };
        };
        let mut row: Vec<R> = match params.layout {
            // Element f of the token's [D, Hkv] memory is (head f mod Hkv, dimension f / Hkv).
            Layout::Transposed => (head * d..(head + 1) * d)
                .map(|f| source.at((t * heads + f % heads) * d + f / heads))
                .collect(),
            _ => source.row(t * heads + head),
        };
        row.iter_mut().for_each(|x| *x = scaled(*x));
        policy.apply("written", &mut row);
        row
    });
    Out { name: NAMES[index], ..out.into_iter().next().expect("one output") }
}

impl Op for KvStore {
    const NAME: &'static str = "kv_store";
    const SUMMARY: &'static str = "keys and values written into a paged cache";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("k", "[T, Hkv, D] keys"),
        ArgSpec::new("v", "[T, Hkv, D] values"),
        ArgSpec::new("k_cache", "[blocks, block_size, Hkv, D] keys before"),
        ArgSpec::new("v_cache", "[blocks, block_size, Hkv, D] values before"),
        ArgSpec::new("slot_mapping", "[T] slots, -1 for padding"),
    ];
    const POINTS: &'static [&'static str] = &["written"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let get = |name: &str| need(Self::NAME, tensors, name, true);
        let (k, v, k_cache, v_cache) = (get("k")?, get("v")?, get("k_cache")?, get("v_cache")?);
        let mapping = need(Self::NAME, tensors, "slot_mapping", false)?;
        let fail = |arg: &str, what: String| Err(Error::arg(Self::NAME, arg, what));
        let (&[t, heads, d], &[blocks, size, h, dc]) = (k.shape(), k_cache.shape()) else {
            let what = format!(
                "must be [T, Hkv, D] with a k_cache [blocks, block_size, Hkv, D], are {:?} and {:?}",
                k.shape(),
                k_cache.shape()
            );
            return fail("k", what);
        };
        if v.shape() != k.shape() {
            return fail("v", format!("must have k's shape {:?}, has {:?}", k.shape(), v.shape()));
        }
        if [h, dc] != [heads, d] || v_cache.shape() != k_cache.shape() {
            let what = format!(
                "and v_cache must be [blocks, block_size, {heads}, {d}], are {:?} and {:?}",
                k_cache.shape(),
                v_cache.shape()
            );
            return fail("k_cache", what);
        }
        if mapping.shape() != [t] {
            let what = format!("must have shape [{t}], has {:?}", mapping.shape());
            return fail("slot_mapping", what);
        }
        let mut seen = std::collections::BTreeSet::new();
        for slot in (0..t).map(|i| mapping.get_i64(i)) {
            if slot >= (blocks * size) as i64 || slot < -1 {
                return fail("slot_mapping", format!("{slot} is not in -1..{}", blocks * size));
            }
            if slot >= 0 && !seen.insert(slot) {
                return fail("slot_mapping", format!("slot {slot} is there twice"));
            }
        }
        if !params.scales.iter().all(|s| s.is_finite() && *s > 0.0) {
            return fail("scales", format!("must be > 0, are {:?}", params.scales));
        }
        let out = |name| OutSpec { name, shape: k_cache.shape().to_vec() };
        Ok(vec![out("k_cache"), out("v_cache")])
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        (0..2).map(|i| store(params, inputs, policy, tile, i)).collect()
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        if params.scales == [1.0; 2] {
            return Vec::new();
        }
        vec![Knob::new("scale", "divided").or("reciprocal", |s: &mut Setup<Self>| {
            s.params.scaling = Scaling::Reciprocal;
        })]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = Vec::new();
        let mut fault = |code, slug, key: &str, detail: &str, edit: fn(&mut Params)| {
            let edit = move |s: &mut Setup<Self>| edit(&mut s.params);
            faults.push(Fault::new(code, slug, detail, edit).keyed(key));
        };
        fault("A2D0", "slot_off_by_one", "+1", "every slot is one too high", |p| p.slot_shift = 1);
        fault("A2D0", "slot_off_by_one", "-1", "every slot is one too low", |p| p.slot_shift = -1);
        let &[_, size, heads, d] = tensors.get("k_cache").map_or(&[1; 4][..], crate::Tensor::shape)
        else {
            return Vec::new();
        };
        if heads > 1 && size > 1 {
            let detail =
                "a block is written as [Hkv, block_size, D] instead of [block_size, Hkv, D]";
            fault("A2D1", "heads_transposed", "in the block", detail, |p| {
                p.layout = Layout::HeadMajor;
            });
        }
        if heads > 1 && d > 1 {
            let detail = "a token is written as [D, Hkv] instead of [Hkv, D]";
            fault("A2D1", "heads_transposed", "in the token", detail, |p| {
                p.layout = Layout::Transposed;
            });
        }
        fault("A2D2", "k_and_v_swapped", "", "keys go to v_cache and values to k_cache", |p| {
            p.swapped = true;
        });
        if tensors.get("slot_mapping").is_some_and(|m| (0..m.len()).any(|i| m.get_i64(i) < 0)) {
            let detail = "padding tokens are written, to the last slot (index -1)";
            fault("A2D5", "padding_written", "", detail, |p| p.padding = Padding::WrittenToLast);
        }
        fault("A2D6", "last_token_dropped", "", "the last token is not written", |p| {
            p.last_dropped = true;
        });
        if params.scales != [1.0; 2] {
            fault("A2D7", "scale_ignored", "", "the cache's scale is not applied", |p| {
                p.scaling = Scaling::Ignored;
            });
            let detail = "values are multiplied by the cache's scale instead of divided";
            fault("A2D8", "scale_multiplied", "", detail, |p| p.scaling = Scaling::Multiplied);
        }
        fault("A2D9", "other_slots_cleared", "", "the other slots of a block become zero", |p| {
            p.others_cleared = true;
        });
        // A copy has nothing to round.
        let widths = ["k", "k_cache"].map(|n| tensors.get(n).map(crate::Tensor::dtype));
        if widths[0] != widths[1] || params.scales != [1.0; 2] {
            faults.extend(store_faults(["A2D3", "A2D4"]));
        }
        faults
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        let Some(&[blocks, size, heads, d]) =
            residual.tensors.get("k_cache").map(crate::Tensor::shape)
        else {
            return Vec::new();
        };
        // Rows that are not written keep their value, whatever the gain.
        let by_slot =
            writers(params, &slots(&Inputs::<f64>::stored(residual.tensors)), blocks * size);
        let written =
            (0..residual.expected.len()).filter(|i| by_slot.contains_key(&(i / (heads * d))));
        gain_at("A2DA", "written", residual.gain_interval(written))
    }
}
