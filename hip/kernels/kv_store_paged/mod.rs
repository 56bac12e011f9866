//! `kv_store_paged`: keys and values written into the slots of a paged cache, in place.
//!
//! A copy of bf16 or f16, or bf16 divided by a scale into a cache of e4m3, rounded once and
//! saturated. Slot -1 is padding; rows that no slot names keep their bits.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::kv_store::{KvStore, Params};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "kv_store";
const NAME: &str = "kv_store_paged";

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[T, Hkv, D]` keys, bf16 or f16.
    pub k: &'a Tensor,
    /// `[T, Hkv, D]` values, of the dtype of `k`.
    pub v: &'a Tensor,
    /// `[blocks, block_size, Hkv, D]` keys before, of the dtype of `k`; e4m3 with bf16 too.
    pub k_cache: &'a Tensor,
    /// The same of values.
    pub v_cache: &'a Tensor,
    /// `[T]` i32: each slot at most once, or -1 for padding.
    pub slot_mapping: &'a Tensor,
    /// Scales of k and v, positive; 1 unless the caches are e4m3.
    pub scales: [f32; 2],
}

type CopyLauncher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *mut u16,
    *mut u16,
    *const i32,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

type Fp8Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *mut u8,
    *mut u8,
    *const i32,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    f32,
    *mut c_void,
) -> c_int;

/// T, the block size, Hkv and D as the launchers take them, and whether the caches are e4m3.
fn check(args: &Args<'_>) -> Result<([c_int; 4], bool), Error> {
    let contract = Contract(NAME);
    let Args { k, v, k_cache, v_cache, slot_mapping, scales } = *args;
    if !matches!(k.dtype(), Dtype::Bf16 | Dtype::F16) {
        return Err(contract.refuse("k", "bf16 or f16", k.dtype()));
    }
    contract.dtype("v", v, k.dtype())?;
    let fp8 = k.dtype() == Dtype::Bf16 && k_cache.dtype() == Dtype::F8E4m3;
    if !fp8 {
        contract.dtype("k_cache", k_cache, k.dtype())?;
    }
    contract.dtype("v_cache", v_cache, k_cache.dtype())?;
    contract.dtype("slot_mapping", slot_mapping, Dtype::I32)?;
    if !scales.iter().all(|scale| scale.is_finite() && *scale > 0.0) {
        return Err(contract.refuse("scales", "positive numbers", scales));
    }
    if !fp8 && scales != [1.0; 2] {
        return Err(contract.refuse("scales", "1 for a cache of the dtype of k", scales));
    }

    let [t, heads, head_dim] = contract.sizes("k", k, "[T, Hkv, D]")?;
    contract.shape("v", v, k.shape())?;
    let [blocks, block_size, ..] =
        contract.sizes::<4>("k_cache", k_cache, "[blocks, block_size, Hkv, D]")?;
    contract.shape("k_cache", k_cache, &[blocks, block_size, heads, head_dim])?;
    contract.shape("v_cache", v_cache, k_cache.shape())?;
    contract.shape("slot_mapping", slot_mapping, &[t])?;
    let slots = blocks * block_size;
    let mut seen = BTreeSet::new();
    for slot in (0..t).map(|i| slot_mapping.get_i64(i)) {
        if !(-1..slots as i64).contains(&slot) {
            return Err(contract.refuse("slot_mapping", format!("values in [-1, {slots})"), slot));
        }
        if slot >= 0 && !seen.insert(slot) {
            return Err(contract.refuse("slot_mapping", "each slot at most once", slot));
        }
    }
    contract.int("k", heads * head_dim)?;
    let sizes = [
        contract.int("k", t)?,
        contract.int("k_cache", block_size)?,
        contract.int("k", heads)?,
        contract.int("k", head_dim)?,
    ];
    Ok((sizes, fp8))
}

/// Runs the kernel; the outputs are the caches after it.
///
/// # Errors
/// [`Error::Argument`] when an argument breaks the contract, and what keeps the backend
/// from launching.
pub fn launch(
    backend: &Backend,
    args: &Args<'_>,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let ([t, block_size, heads, head_dim], fp8) = check(args)?;
    let Args { k, v, k_cache, v_cache, slot_mapping, scales: [k_scale, v_scale] } = *args;
    let address =
        backend.launcher(if fp8 { "kv_store_paged_fp8" } else { "kv_store_paged_copy" })?;
    let mut call = Call::new(backend, options)?;
    let k = call.input("k", k)?;
    let v = call.input("v", v)?;
    let k_cache: *mut c_void = call.in_out("k_cache", k_cache)?;
    let v_cache: *mut c_void = call.in_out("v_cache", v_cache)?;
    let slots = call.input("slot_mapping", slot_mapping)?;
    let stream = ptr::null_mut();
    if fp8 {
        // SAFETY: kernel.hip defines the launcher with this signature.
        let launcher = unsafe { std::mem::transmute::<*const c_void, Fp8Launcher>(address) };
        let (k_cache, v_cache) = (k_cache.cast(), v_cache.cast());
        // SAFETY: buffers of the sizes that the contract states, on the backend that the
        // launcher belongs to; the null stream is the default one.
        call.run(|| unsafe {
            launcher(
                k, v, k_cache, v_cache, slots, t, block_size, heads, head_dim, k_scale, v_scale,
                stream,
            )
        })
    } else {
        // SAFETY: kernel.hip defines the launcher with this signature.
        let launcher = unsafe { std::mem::transmute::<*const c_void, CopyLauncher>(address) };
        let (k_cache, v_cache) = (k_cache.cast(), v_cache.cast());
        // SAFETY: as above.
        call.run(|| unsafe {
            launcher(k, v, k_cache, v_cache, slots, t, block_size, heads, head_dim, stream)
        })
    }
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<KvStore>()?;
    let expected = Params { scales: params.scales, ..Params::default() };
    if params != expected {
        return Err(Contract(NAME).refuse("params", "the defaults, but for scales", params));
    }
    let args = Args {
        k: super::tensor(NAME, case, "k")?,
        v: super::tensor(NAME, case, "v")?,
        k_cache: super::tensor(NAME, case, "k_cache")?,
        v_cache: super::tensor(NAME, case, "v_cache")?,
        slot_mapping: super::tensor(NAME, case, "slot_mapping")?,
        scales: params.scales.map(|scale| scale as f32),
    };
    if case.dtype != args.k_cache.dtype() {
        let expected = format!("{}, the dtype of k_cache", args.k_cache.dtype());
        return Err(Contract(NAME).refuse("output", expected, case.dtype));
    }
    launch(backend, &args, options)
}
