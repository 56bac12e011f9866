//! `attention_decode_paged_d128`: attention of one or a few queries over a paged cache, all bf16.
//!
//! Causal grouped-query attention with head_dim 128 over blocks of 16 or 32. Each partition of 256
//! keys is attended to apart; outputs, maxima and sums stay in f32 and are combined in the order
//! of the keys. One division, one rounding. Slots beyond the context are never read.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::attention_paged::{AttentionPaged, Lookup, Params};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "attention_paged";
const NAME: &str = "attention_decode_paged_d128";
const HEAD_DIM: usize = 128;
const BLOCK_SIZES: [usize; 2] = [16, 32];
/// Keys that one workgroup attends to.
const PARTITION: usize = 256;

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[T, Hq, 128]` bf16 queries, the last T tokens of the sequence.
    pub q: &'a Tensor,
    /// `[blocks, block_size, Hkv, 128]` bf16 keys; block_size is 16 or 32, Hq a multiple of Hkv.
    pub k_cache: &'a Tensor,
    /// The values, of the same shape.
    pub v_cache: &'a Tensor,
    /// `[n]` i32 ids of the sequence's blocks.
    pub block_table: &'a Tensor,
    /// `[1]` i32: the keys in use, from T to n block_size.
    pub context_len: &'a Tensor,
    /// Factor of the raw scores, finite.
    pub scale: f32,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const u16,
    *const i32,
    *const i32,
    *mut u16,
    *mut f32,
    *mut f32,
    *mut f32,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *mut c_void,
) -> c_int;

/// T, Hq, Hkv, the table's entries and the block size.
fn check(args: &Args<'_>) -> Result<[usize; 5], Error> {
    let contract = Contract(NAME);
    let Args { q, k_cache, v_cache, block_table, context_len, scale } = *args;
    for (name, tensor) in [("q", q), ("k_cache", k_cache), ("v_cache", v_cache)] {
        contract.dtype(name, tensor, Dtype::Bf16)?;
    }
    for (name, tensor) in [("block_table", block_table), ("context_len", context_len)] {
        contract.dtype(name, tensor, Dtype::I32)?;
    }
    let [t, q_heads, q_dim] = contract.sizes("q", q, "[T, Hq, 128]")?;
    let axes = "[blocks, block_size, Hkv, 128]";
    let [blocks, size, kv_heads, k_dim] = contract.sizes("k_cache", k_cache, axes)?;
    if q_dim != HEAD_DIM {
        return Err(contract.refuse("q", "[T, Hq, 128]", q.shape()));
    }
    if k_dim != HEAD_DIM || !BLOCK_SIZES.contains(&size) {
        let expected = format!("{axes} with a block_size of 16 or 32");
        return Err(contract.refuse("k_cache", expected, k_cache.shape()));
    }
    if q_heads % kv_heads != 0 {
        let expected = format!("[T, Hq, 128] with Hq a multiple of {kv_heads}");
        return Err(contract.refuse("q", expected, q.shape()));
    }
    contract.shape("v_cache", v_cache, k_cache.shape())?;
    let [entries] = contract.sizes("block_table", block_table, "[n]")?;
    let outside = |id: &i64| !(0..blocks as i64).contains(id);
    if let Some(id) = (0..entries).map(|i| block_table.get_i64(i)).find(outside) {
        return Err(contract.refuse("block_table", format!("ids in [0, {blocks})"), id));
    }
    contract.shape("context_len", context_len, &[1])?;
    let (context, most) = (context_len.get_i64(0), entries * size);
    if context < t as i64 || context > most as i64 {
        return Err(contract.refuse("context_len", format!("{t} to {most} keys"), context));
    }
    if !scale.is_finite() {
        return Err(contract.refuse("scale", "a finite number", scale));
    }
    contract.int("block_table", most + PARTITION)?;
    Ok([t, q_heads, kv_heads, entries, size])
}

/// Runs the kernel; the output is `[T, Hq, 128]` bf16.
///
/// # Errors
/// [`Error::Argument`] when an argument breaks the contract, and what keeps the backend
/// from launching.
pub fn launch(
    backend: &Backend,
    args: &Args<'_>,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let contract = Contract(NAME);
    let [t, q_heads, kv_heads, entries, size] = check(args)?;
    let rows = t * q_heads * (entries * size).div_ceil(PARTITION);
    let sizes = [
        contract.int("q", t)?,
        contract.int("q", q_heads)?,
        contract.int("k_cache", kv_heads)?,
        contract.int("block_table", entries)?,
        contract.int("k_cache", size)?,
    ];

    let address = backend.launcher(NAME)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let q = call.input("q", args.q)?;
    let k_cache = call.input("k_cache", args.k_cache)?;
    let v_cache = call.input("v_cache", args.v_cache)?;
    let block_table = call.input("block_table", args.block_table)?;
    let context_len = call.input("context_len", args.context_len)?;
    let partial_out = call.workspace("partial_out", rows * HEAD_DIM * size_of::<f32>())?;
    let partial_max = call.workspace("partial_max", rows * size_of::<f32>())?;
    let partial_sum = call.workspace("partial_sum", rows * size_of::<f32>())?;
    let output = call.output("output", Dtype::Bf16, args.q.shape())?;
    let scale = args.scale;
    let [t, q_heads, kv_heads, entries, size] = sizes;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        launcher(
            q,
            k_cache,
            v_cache,
            block_table,
            context_len,
            output,
            partial_out,
            partial_max,
            partial_sum,
            t,
            q_heads,
            kv_heads,
            entries,
            size,
            scale,
            ptr::null_mut(),
        )
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let contract = Contract(NAME);
    if case.dtype != Dtype::Bf16 {
        return Err(contract.refuse("output", "bf16", case.dtype));
    }
    let params = case.params::<AttentionPaged>()?;
    let scale = params.attention.scale;
    if let Some(window) = params.attention.window {
        return Err(contract.refuse("window", "none", window));
    }
    if let Some(split) = params.split {
        return Err(contract.refuse("split", "none: the partitions are the kernel's", split));
    }
    if params.lookup != Lookup::default() {
        return Err(contract.refuse("lookup", "the default", params.lookup));
    }
    if params != Params::new(scale) {
        return Err(contract.refuse("attention", "a scale only", params.attention));
    }
    let args = Args {
        q: super::tensor(NAME, case, "q")?,
        k_cache: super::tensor(NAME, case, "k_cache")?,
        v_cache: super::tensor(NAME, case, "v_cache")?,
        block_table: super::tensor(NAME, case, "block_table")?,
        context_len: super::tensor(NAME, case, "context_len")?,
        scale: scale as f32,
    };
    launch(backend, &args, options)
}
