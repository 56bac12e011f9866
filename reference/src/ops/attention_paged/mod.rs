//! `attention_paged`: attention over keys and values in a paged cache: a gather by the block table, then
//! `attention`.
//!
//! Shapes: q [T, Hq, D], k_cache and v_cache [blocks, block_size, Hkv, D], block_table \[n\] of block
//! ids, context_len \[1\]: S, the keys in use, with T <= S <= n block_size; output [T, Hq, D]. Key j is
//! row j mod block_size of block block_table[j / block_size]; what lies behind S in the last block is
//! stale. Points and conventions are those of `attention`, and `partials`: kernels that split the
//! context over workgroups keep each partition's output in f32 (`f32`, which is no rounding) or in the
//! stored dtype until they are combined, by partitions of 256 keys (`stored_256`: vLLM's ROCm kernel) or
//! 512 (`stored_512`: vLLM's paged attention v2).
//!
//! Source: <https://arxiv.org/abs/2309.06180>,
//! <https://github.com/vllm-project/vllm/tree/main/csrc/attention>,
//! <https://github.com/vllm-project/vllm/blob/main/csrc/rocm/attention.cu>

mod faults;
mod split;

use serde::{Deserialize, Serialize};

pub use self::split::{Combine, Split};
use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    attention::{self, Attention},
    lens::Lens,
    need,
};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// What is read for a block id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockId {
    /// The block of that id.
    #[default]
    Whole,
    /// The block of its low 16 bits: a fault.
    Unsigned16,
    /// Zeros where its low 16 bits are negative as a signed number: a fault.
    Signed16,
}

/// Where a key lies in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lookup {
    /// Width of ids.
    pub id: BlockId,
    /// Added to the index into the block table: a fault unless 0.
    pub entry_shift: i64,
    /// Added to the block id: a fault unless 0.
    pub id_shift: i64,
    /// Added to context_len: a fault unless 0.
    pub context_shift: i64,
    /// Rows of a block, where the kernel takes another number than the cache has: a fault.
    pub block_size: Option<usize>,
    /// A block is read as [Hkv, block_size, D]: a fault.
    pub head_major: bool,
    /// Keys come from v_cache and values from k_cache: a fault.
    pub swapped: bool,
}

/// The parts' params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Attention.
    pub attention: attention::Params,
    /// The gather.
    #[serde(default)]
    pub lookup: Lookup,
    /// Keys are attended to in partitions, whose outputs are combined; `None` where that is another
    /// order of the same sums.
    #[serde(default)]
    pub split: Option<Split>,
}

impl Params {
    /// The right op with `scale`.
    pub fn new(scale: f64) -> Params {
        Params { attention: attention::Params::new(scale), lookup: Lookup::default(), split: None }
    }
}

/// The op.
#[derive(Debug)]
pub struct AttentionPaged;

const ATTENTION: Lens<AttentionPaged, Attention> =
    Lens { params: |p| &mut p.attention, policy: |p| p };

/// Rows (of D elements) of a cache, in the order of keys and heads; `None` is zeros.
fn rows(lookup: &Lookup, cache: [usize; 3], table: &[i64], context: usize) -> Vec<Option<usize>> {
    let [blocks, size, heads] = cache;
    let rows = lookup.block_size.unwrap_or(size);
    let mut out = Vec::with_capacity(context * heads);
    for j in 0..context {
        // What lies beyond a buffer is memory of nobody: the nearest of it stands for that.
        let entry = (j / rows) as i64 + lookup.entry_shift;
        let id = table[entry.clamp(0, table.len() as i64 - 1) as usize] + lookup.id_shift;
        let id = match lookup.id {
            BlockId::Whole => Some(id),
            BlockId::Unsigned16 => Some(id & 0xffff),
            BlockId::Signed16 => (id & 0x8000 == 0).then_some(id & 0xffff),
        };
        let slot = j % rows;
        for h in 0..heads {
            let row = |id: i64| {
                let id = id.clamp(0, blocks as i64 - 1) as usize;
                if lookup.head_major {
                    (id * heads + h) * size + slot
                } else {
                    (id * rows + slot) * heads + h
                }
            };
            out.push(id.map(row));
        }
    }
    out
}

/// Keys in use as the lookup counts them.
fn context(lookup: &Lookup, context_len: i64) -> usize {
    (context_len + lookup.context_shift).max(0) as usize
}

/// The keys and values that the lookup finds.
fn gather<'a, R: Real>(params: &Params, inputs: &Inputs<'a, R>) -> [Arg<'a, R>; 2] {
    let lookup = &params.lookup;
    let table = inputs.req("block_table");
    let table: Vec<i64> = (0..table.shape()[0]).map(|i| table.int(i)).collect();
    let &[blocks, size, heads, d] = inputs.req("k_cache").shape() else { unreachable!("checked") };
    let s = context(lookup, inputs.req("context_len").int(0));
    let rows = rows(lookup, [blocks, size, heads], &table, s);
    let names = if lookup.swapped { ["v_cache", "k_cache"] } else { ["k_cache", "v_cache"] };
    names.map(|name| {
        let cache = inputs.req(name);
        let mut data = vec![R::lift(0.0); rows.len() * d];
        for (row, out) in rows.iter().zip(data.chunks_mut(d)) {
            if let Some(row) = row {
                cache.read(row * d, out);
            }
        }
        Arg::made(vec![s, heads, d], data)
    })
}

impl Op for AttentionPaged {
    const NAME: &'static str = "attention_paged";
    const SUMMARY: &'static str = "attention over a paged cache";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("q", "[T, Hq, D] queries"),
        ArgSpec::new("k_cache", "[blocks, block_size, Hkv, D] keys"),
        ArgSpec::new("v_cache", "[blocks, block_size, Hkv, D] values"),
        ArgSpec::new("block_table", "[n] ids of the sequence's blocks"),
        ArgSpec::new("context_len", "[1] keys in use"),
    ];
    const POINTS: &'static [&'static str] = &["qk", "scores", "probs", "partial", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let get = |name: &str| need(Self::NAME, tensors, name, true);
        let (q, k, v) = (get("q")?, get("k_cache")?, get("v_cache")?);
        let table = need(Self::NAME, tensors, "block_table", false)?;
        let len = need(Self::NAME, tensors, "context_len", false)?;
        let fail = |arg: &str, what: String| Err(Error::arg(Self::NAME, arg, what));
        let (&[t, hq, d], &[blocks, size, hkv, dk]) = (q.shape(), k.shape()) else {
            let what = format!(
                "must be [T, Hq, D] with a k_cache [blocks, block_size, Hkv, D], are {:?} and {:?}",
                q.shape(),
                k.shape()
            );
            return fail("q", what);
        };
        if v.shape() != k.shape() {
            let what = format!("must have k_cache's shape {:?}, has {:?}", k.shape(), v.shape());
            return fail("v_cache", what);
        }
        if dk != d || hq % hkv != 0 {
            let what =
                format!("must have head_dim {d} and a divisor of {hq} heads, has {:?}", k.shape());
            return fail("k_cache", what);
        }
        let &[n] = table.shape() else {
            return fail("block_table", format!("must be [n], is {:?}", table.shape()));
        };
        if len.shape() != [1] {
            return fail("context_len", format!("must have shape [1], has {:?}", len.shape()));
        }
        let s = len.get_i64(0);
        if s < t as i64 || s > (n * size) as i64 {
            let what = format!("must lie in {t}..={} ({n} blocks of {size}), is {s}", n * size);
            return fail("context_len", what);
        }
        for id in (0..n).map(|i| table.get_i64(i)) {
            if !(0..blocks as i64).contains(&id) {
                return fail("block_table", format!("block {id} is not in 0..{blocks}"));
            }
        }
        let p = &params.attention;
        if !p.scale.is_finite() || p.window == Some(0) {
            let what =
                format!("must be finite, with a window above 0: {} and {:?}", p.scale, p.window);
            return fail("attention.scale", what);
        }
        if params.split.is_some_and(|split| split.keys == 0) {
            return fail("split.keys", "must be above 0".into());
        }
        Ok(OutSpec::output(q.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let [k, v] = gather(params, inputs);
        let edges = inputs.clone().with("k", k).with("v", v);
        match &params.split {
            Some(split) if edges.req("k").shape()[0] > split.keys => {
                split.eval(&params.attention, &edges, policy, tile)
            }
            _ => Attention::eval(&params.attention, &edges, policy, tile),
        }
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let mut partials = Knob::new("partials", "f32");
        for (name, keys) in [("stored_256", 256), ("stored_512", 512)] {
            partials = partials.or(name, move |s: &mut Setup<Self>| {
                s.params.split = Some(Split { keys, combine: Combine::Rescaled });
                s.policy.round_at("partial", s.policy.output.dtype);
            });
        }
        let parts = Attention::knobs(&params.attention).into_iter().map(|k| ATTENTION.knob(k));
        parts.chain(std::iter::once(partials)).collect()
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        ATTENTION.faults(Attention::propose(&params.attention, residual), &[]).collect()
    }
}
