//! `gptq_dequant`: `w[k, n] = (q[k, n] - z[g, n]) * scale[g, n]`, GPTQ of 2, 3, 4 or 8 bits to
//! bf16 or f16.
//!
//! g = `g_idx[k]`, or k / group_size without one. Version 1 stores z - 1, and a stored 2^b - 1
//! then means 2^b (no wrap); version 2 stores z. The f16 scale is widened to f32, where the product
//! is exact, and the result is rounded once.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::gptq_dequant::{Format, GptqDequant, Params};
use assay_reference::ops::packed;
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "gptq_dequant";
const NAME: &str = "gptq_dequant";

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[K bits/32, N]` i32, packed along K; K and N fill whole words.
    pub qweight: &'a Tensor,
    /// `[G, N bits/32]` i32, packed along N.
    pub qzeros: &'a Tensor,
    /// `[G, N]` f16.
    pub scales: &'a Tensor,
    /// `[K]` i32 in 0..G, or none for groups of consecutive rows.
    pub g_idx: Option<&'a Tensor>,
    /// Rows of a group, or -1 for one group of all; G = ceil(K / group_size).
    pub group_size: i64,
    /// Bits of a value: 2, 3, 4 or 8.
    pub bits: u32,
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
    c_int,
    *mut c_void,
) -> c_int;

/// K, N, G and the group size as the launcher takes them.
fn check(args: &Args<'_>) -> Result<[c_int; 4], Error> {
    let contract = Contract(NAME);
    let Args { qweight, qzeros, scales, g_idx, group_size, bits, .. } = *args;
    contract.dtype("qweight", qweight, Dtype::I32)?;
    contract.dtype("qzeros", qzeros, Dtype::I32)?;
    contract.dtype("scales", scales, Dtype::F16)?;
    if !packed::WIDTHS.contains(&bits) {
        return Err(contract.refuse("bits", "2, 3, 4 or 8", bits));
    }
    let axes = format!("[K {bits}/32, N]");
    let [words, n] = contract.sizes("qweight", qweight, &axes)?;
    let run = packed::per_run(bits);
    let Some(k) = packed::values(words, bits).filter(|_| n % run == 0) else {
        let expected = format!("{axes} with K and N multiples of {run}");
        return Err(contract.refuse("qweight", expected, qweight.shape()));
    };
    let rows = match usize::try_from(group_size) {
        Ok(rows) if rows > 0 => rows,
        _ if group_size == -1 => k,
        _ => return Err(contract.refuse("group_size", "-1 or a positive number", group_size)),
    };
    let groups = k.div_ceil(rows);
    contract.shape("scales", scales, &[groups, n])?;
    contract.shape("qzeros", qzeros, &[groups, packed::words(n, bits)])?;
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
    let bits = args.bits as c_int;
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
        launcher(
            qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size, bits, version, stream,
        )
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<GptqDequant>()?;
    let right = Params::new(params.format, params.group_size).with_bits(params.bits);
    if params != right {
        let expected = "a format, bits and a group_size only";
        return Err(Contract(NAME).refuse("params", expected, params));
    }
    let args = Args {
        qweight: super::tensor(NAME, case, "qweight")?,
        qzeros: super::tensor(NAME, case, "qzeros")?,
        scales: super::tensor(NAME, case, "scales")?,
        g_idx: case.tensors.get("g_idx"),
        group_size: params.group_size,
        bits: params.bits,
        format: params.format,
        output: case.dtype,
    };
    launch(backend, &args, options)
}
