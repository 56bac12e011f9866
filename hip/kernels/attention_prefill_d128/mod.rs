//! `attention_prefill_d128`: causal grouped-query attention with head_dim 128, all bf16.
//!
//! Query t sees the keys up to S - T + t and head h reads kv head h / (Hq / Hkv). Online
//! softmax in f32 over tiles of 32 keys with expf, P in f32, one rounding at the end. A NaN
//! in a masked key or value does not reach the output.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::attention::{Attention, Params};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "attention";
const NAME: &str = "attention_prefill_d128";
const HEAD_DIM: usize = 128;

/// The arguments, all bf16.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[T, Hq, 128]` queries.
    pub q: &'a Tensor,
    /// `[S, Hkv, 128]` keys; T <= S, and Hq is a multiple of Hkv.
    pub k: &'a Tensor,
    /// `[S, Hkv, 128]` values.
    pub v: &'a Tensor,
    /// Factor of the raw scores, finite.
    pub scale: f32,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const u16,
    *mut u16,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *mut c_void,
) -> c_int;

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
    let Args { q, k, v, scale } = *args;
    for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
        contract.dtype(name, tensor, Dtype::Bf16)?;
    }
    let [t, q_heads, q_dim] = contract.sizes("q", q, "[T, Hq, 128]")?;
    let [s, kv_heads, k_dim] = contract.sizes("k", k, "[S, Hkv, 128]")?;
    if q_dim != HEAD_DIM || q_heads % kv_heads != 0 {
        let expected = format!("[T, Hq, 128] with Hq a multiple of {kv_heads}");
        return Err(contract.refuse("q", expected, q.shape()));
    }
    if k_dim != HEAD_DIM || s < t {
        return Err(contract.refuse("k", format!("[S, Hkv, 128] with S at least {t}"), k.shape()));
    }
    contract.shape("v", v, k.shape())?;
    if !scale.is_finite() {
        return Err(contract.refuse("scale", "a finite number", scale));
    }
    let sizes = [
        contract.int("q", t)?,
        contract.int("k", s)?,
        contract.int("q", q_heads)?,
        contract.int("k", kv_heads)?,
    ];

    let address = backend.launcher(NAME)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let q_pointer = call.input("q", q)?;
    let k_pointer = call.input("k", k)?;
    let v_pointer = call.input("v", v)?;
    let o_pointer = call.output("o", Dtype::Bf16, q.shape())?;
    let [t, s, q_heads, kv_heads] = sizes;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        launcher(
            q_pointer,
            k_pointer,
            v_pointer,
            o_pointer,
            t,
            s,
            q_heads,
            kv_heads,
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
    let params = case.params::<Attention>()?;
    let scale = params.scale;
    if params != Params::new(scale) {
        return Err(Contract(NAME).refuse("params", "the defaults, but for scale", params));
    }
    let args = Args {
        q: super::tensor(NAME, case, "q")?,
        k: super::tensor(NAME, case, "k")?,
        v: super::tensor(NAME, case, "v")?,
        scale: scale as f32,
    };
    launch(backend, &args, options)
}
