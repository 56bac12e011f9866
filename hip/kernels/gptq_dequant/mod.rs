//! `gptq_dequant`: `w[k, n] = (q[k, n] - z[g, n]) * scale[g, n]`, 4-bit GPTQ to bf16 or f16.
//!
//! g = `g_idx[k]`, or k / group_size without one. Version 1 stores z - 1, and a stored 15 then
//! means 16 (no wrap); version 2 stores z. The f16 scale is widened to f32, where the product
//! is exact, and the result is rounded once.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::gptq_dequant::{Format, GptqDequant};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "gptq_dequant";
const NAME: &str = "gptq_dequant";
/// The kernel reads 4-bit values only.
const BITS: u32 = 4;
const PER_WORD: usize = 8;

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[K/8, N]` i32, packed along K; N is a multiple of 8.
    pub qweight: &'a Tensor,
    /// `[G, N/8]` i32, packed along N.
    pub qzeros: &'a Tensor,
    /// `[G, N]` f16.
    pub scales: &'a Tensor,
    /// `[K]` i32 in 0..G, or none for groups of consecutive rows.
    pub g_idx: Option<&'a Tensor>,
    /// Rows of a group, or -1 for one group of all; G = ceil(K / group_size).
    pub group_size: i64,
    /// How zero points are stored.
    pub format: Format,
    /// Output dtype, bf16 or f16.
    pub output: Dtype,
}

type Launcher = unsafe extern "C" fn(
    *const i32,
    *const i32,
    *const u16,
    *const i32,
    *mut u16,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// K, N, G and the group size as the launcher takes them.
fn check(args: &Args<'_>) -> Result<[c_int; 4], Error> {
    let contract = Contract(NAME);
    let Args { qweight, qzeros, scales, g_idx, group_size, .. } = *args;
    contract.dtype("qweight", qweight, Dtype::I32)?;
    contract.dtype("qzeros", qzeros, Dtype::I32)?;
    contract.dtype("scales", scales, Dtype::F16)?;
    let [words, n] = contract.sizes("qweight", qweight, "[K/8, N]")?;
    if n % PER_WORD != 0 {
        return Err(contract.refuse("qweight", "[K/8, N] with N a multiple of 8", qweight.shape()));
    }
    let k = words * PER_WORD;
    let rows = match usize::try_from(group_size) {
        Ok(rows) if rows > 0 => rows,
        _ if group_size == -1 => k,
        _ => return Err(contract.refuse("group_size", "-1 or a positive number", group_size)),
    };
    let groups = k.div_ceil(rows);
    contract.shape("scales", scales, &[groups, n])?;
    contract.shape("qzeros", qzeros, &[groups, n / PER_WORD])?;
    if let Some(g_idx) = g_idx {
        contract.dtype("g_idx", g_idx, Dtype::I32)?;
        contract.shape("g_idx", g_idx, &[k])?;
        let outside = (0..k).map(|i| g_idx.get_i64(i)).find(|g| !(0..groups as i64).contains(g));
        if let Some(group) = outside {
            return Err(contract.refuse("g_idx", format!("values in [0, {groups})"), group));
        }
    }
    let group_size = if group_size == -1 { -1 } else { contract.int("group_size", rows)? };
    Ok([
        contract.int("qweight", k)?,
        contract.int("qweight", n)?,
        contract.int("scales", groups)?,
        group_size,
    ])
}

/// Runs the kernel; the output is `[K, N]` in `args.output`.
///
/// # Errors
/// [`Error::Argument`] when an argument breaks the contract, and what keeps the backend
/// from launching.
pub fn launch(
    backend: &Backend,
    args: &Args<'_>,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let [k, n, groups, group_size] = check(args)?;
    let version = match args.format {
        Format::V1 => 1,
        Format::V2 => 2,
    };
    let address = match args.output {
        Dtype::Bf16 => backend.launcher("gptq_dequant_bf16")?,
        Dtype::F16 => backend.launcher("gptq_dequant_f16")?,
        other => return Err(Contract(NAME).refuse("output", "bf16 or f16", other)),
    };
    // SAFETY: kernel.hip defines both launchers with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let qweight = call.input("qweight", args.qweight)?;
    let qzeros = call.input("qzeros", args.qzeros)?;
    let scales = call.input("scales", args.scales)?;
    let g_idx = call.optional_input("g_idx", args.g_idx)?;
    let weight = call.output("weight", args.output, &[k as usize, n as usize])?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        let stream = ptr::null_mut();
        launcher(qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size, version, stream)
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<GptqDequant>()?;
    if params.bits != BITS {
        return Err(Contract(NAME).refuse("bits", BITS.to_string(), params.bits));
    }
    let args = Args {
        qweight: super::tensor(NAME, case, "qweight")?,
        qzeros: super::tensor(NAME, case, "qzeros")?,
        scales: super::tensor(NAME, case, "scales")?,
        g_idx: case.tensors.get("g_idx"),
        group_size: params.group_size,
        format: params.format,
        output: case.dtype,
    };
    launch(backend, &args, options)
}
