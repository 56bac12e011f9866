//! `gptq_gemm`: `y[m, n] = sum_k x[m, k] (q[k, n] - z[g, n]) scale[g, n] + bias[n]`, 4-bit GPTQ
//! weights under f16 or bf16 activations.
//!
//! g = `g_idx[k]`, or k / group_size without one. Version 1 stores z - 1, and a stored 15 then
//! means 16; version 2 stores z. Weights are rounded to the activations' dtype once; products
//! accumulate in f32 by fused multiply-add in the order of k; the bias joins in f32; one
//! rounding. Up to 50 rows take another path than more, with the same bits. Non-finite values
//! follow IEEE.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::gptq_dequant::{self, Format};
use assay_reference::ops::matmul::Layout;
use assay_reference::ops::quant_gemm::{GptqGemm, Params};
use assay_reference::{Case, Dtype, Tensor};

use super::linear;
use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "gptq_gemm";
const NAME: &str = "gptq_gemm";
/// The kernel reads 4-bit values only.
const BITS: u32 = 4;
const PER_WORD: usize = 8;

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., K]` activations, bf16 or f16; the leading axes make up M.
    pub x: &'a Tensor,
    /// `[K/8, N]` i32, packed along K; N is a multiple of 8.
    pub qweight: &'a Tensor,
    /// `[G, N/8]` i32, packed along N.
    pub qzeros: &'a Tensor,
    /// `[G, N]` f16.
    pub scales: &'a Tensor,
    /// `[K]` i32 in 0..G, or none for groups of consecutive rows.
    pub g_idx: Option<&'a Tensor>,
    /// `[N]` of x's dtype, or none.
    pub bias: Option<&'a Tensor>,
    /// Rows of a group, or -1 for one group of all; G = ceil(K / group_size) without a `g_idx`.
    pub group_size: i64,
    /// How zero points are stored.
    pub format: Format,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const i32,
    *const i32,
    *const u16,
    *const i32,
    *const u16,
    *mut u16,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// M, N, K, G and the group size as the launchers take them.
fn check(args: &Args<'_>) -> Result<[c_int; 5], Error> {
    let contract = Contract(NAME);
    let Args { x, qweight, qzeros, scales, bias, .. } = *args;
    if ![Dtype::Bf16, Dtype::F16].contains(&x.dtype()) {
        return Err(contract.refuse("x", "bf16 or f16", x.dtype()));
    }
    contract.dtype("qweight", qweight, Dtype::I32)?;
    contract.dtype("qzeros", qzeros, Dtype::I32)?;
    contract.dtype("scales", scales, Dtype::F16)?;
    let [words, n] = contract.sizes("qweight", qweight, "[K/8, N]")?;
    if n % PER_WORD != 0 {
        return Err(contract.refuse("qweight", "[K/8, N] with N a multiple of 8", qweight.shape()));
    }
    let k = words * PER_WORD;
    let m = linear::rows(contract, x, k)?;
    let groups = check_groups(contract, args, k)?;
    contract.shape("scales", scales, &[groups, n])?;
    contract.shape("qzeros", qzeros, &[groups, n / PER_WORD])?;
    if let Some(bias) = bias {
        contract.dtype("bias", bias, x.dtype())?;
        contract.shape("bias", bias, &[n])?;
    }
    let group_size = match usize::try_from(args.group_size) {
        Ok(rows) => contract.int("group_size", rows)?,
        Err(_) => -1,
    };
    Ok([
        contract.int("x", m)?,
        contract.int("qweight", n)?,
        contract.int("qweight", k)?,
        contract.int("scales", groups)?,
        group_size,
    ])
}

/// The number of groups: what the group size gives, or with a `g_idx`, whose values must lie
/// below it, as many as there are scales.
fn check_groups(contract: Contract, args: &Args<'_>, k: usize) -> Result<usize, Error> {
    let rows = match usize::try_from(args.group_size) {
        Ok(rows) if rows > 0 => rows,
        _ if args.group_size == -1 => k,
        _ => return Err(contract.refuse("group_size", "-1 or a positive number", args.group_size)),
    };
    let Some(g_idx) = args.g_idx else {
        return Ok(k.div_ceil(rows));
    };
    let [groups, _] = contract.sizes("scales", args.scales, "[G, N]")?;
    contract.dtype("g_idx", g_idx, Dtype::I32)?;
    contract.shape("g_idx", g_idx, &[k])?;
    let outside = (0..k).map(|i| g_idx.get_i64(i)).find(|g| !(0..groups as i64).contains(g));
    match outside {
        Some(group) => Err(contract.refuse("g_idx", format!("values in [0, {groups})"), group)),
        None => Ok(groups),
    }
}

/// Runs the kernel; the output is `[..., N]` in x's dtype.
///
/// # Errors
/// [`Error::Argument`] when an argument breaks the contract, and what keeps the backend
/// from launching.
pub fn launch(
    backend: &Backend,
    args: &Args<'_>,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let [m, n, k, groups, group_size] = check(args)?;
    let version = match args.format {
        Format::V1 => 1,
        Format::V2 => 2,
    };
    let dtype = args.x.dtype();
    let address = match dtype {
        Dtype::F16 => backend.launcher("gptq_gemm_f16")?,
        _ => backend.launcher("gptq_gemm_bf16")?,
    };
    // SAFETY: kernel.hip defines both launchers with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x = call.input("x", args.x)?;
    let qweight = call.input("qweight", args.qweight)?;
    let qzeros = call.input("qzeros", args.qzeros)?;
    let scales = call.input("scales", args.scales)?;
    let g_idx = call.optional_input("g_idx", args.g_idx)?;
    let bias = call.optional_input("bias", args.bias)?;
    let y = call.output("y", dtype, &linear::output_shape(args.x, n as usize))?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        let stream = ptr::null_mut();
        launcher(
            x, qweight, qzeros, scales, g_idx, bias, y, m, n, k, groups, group_size, version,
            stream,
        )
    })
}

/// The params of the dequantisation, if nothing else changes the result.
fn plain(params: Params<gptq_dequant::Params>) -> Result<gptq_dequant::Params, Error> {
    let contract = Contract(NAME);
    linear::plain(contract, &params.matmul, Layout::InOut)?;
    let dequant = params.dequant.clone();
    if dequant.bits != BITS {
        return Err(contract.refuse("bits", BITS.to_string(), dequant.bits));
    }
    let mut expected = Params::new::<gptq_dequant::GptqDequant>(gptq_dequant::Params::new(
        dequant.format,
        dequant.group_size,
    ));
    expected.matmul.clone_from(&params.matmul);
    if params != expected {
        let what = "the defaults but for format and group_size";
        return Err(contract.refuse("params", what, params));
    }
    Ok(dequant)
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let dequant = plain(case.params::<GptqGemm>()?)?;
    let args = Args {
        x: super::tensor(NAME, case, "x")?,
        qweight: super::tensor(NAME, case, "qweight")?,
        qzeros: super::tensor(NAME, case, "qzeros")?,
        scales: super::tensor(NAME, case, "scales")?,
        g_idx: case.tensors.get("g_idx"),
        bias: case.tensors.get("bias"),
        group_size: dequant.group_size,
        format: dequant.format,
    };
    if case.dtype != args.x.dtype() {
        let expected = format!("{}, as x", args.x.dtype());
        return Err(Contract(NAME).refuse("output", expected, case.dtype));
    }
    launch(backend, &args, options)
}
