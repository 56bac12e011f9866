//! What the launchers of dense products share: torch's Linear without further params.

use assay_reference::ops::matmul::{Layout, Params};
use assay_reference::{Dtype, Tensor};

use crate::contract::Contract;
use crate::error::Error;

/// M, N and K of x `[..., K]`, weight `[N, K]` and bias `[N]`, all bf16; the leading axes of x
/// make up M.
pub(crate) fn sizes(
    contract: Contract,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<[usize; 3], Error> {
    contract.dtype("x", x, Dtype::Bf16)?;
    contract.dtype("weight", weight, Dtype::Bf16)?;
    let [n, k] = contract.sizes("weight", weight, "[N, K]")?;
    let m = rows(contract, x, k)?;
    if let Some(bias) = bias {
        contract.dtype("bias", bias, Dtype::Bf16)?;
        contract.shape("bias", bias, &[n])?;
    }
    Ok([m, n, k])
}

/// M of x `[..., K]`.
pub(crate) fn rows(contract: Contract, x: &Tensor, k: usize) -> Result<usize, Error> {
    let m = x.shape().split_last().map_or(0, |(_, leading)| leading.iter().product());
    if m == 0 || x.shape().last() != Some(&k) {
        return Err(contract.refuse("x", format!("a shape [..., {k}] without zeros"), x.shape()));
    }
    Ok(m)
}

/// The shape of a product of x with a weight of N columns: `[..., N]`.
pub(crate) fn output_shape(x: &Tensor, n: usize) -> Vec<usize> {
    let leading = x.shape().split_last().map_or(&[][..], |(_, leading)| leading);
    [leading, &[n]].concat()
}

/// Refuses params of the product that change the result. `row_parallel` does not: it says what
/// frameworks may do over several devices.
pub(crate) fn plain(contract: Contract, params: &Params, layout: Layout) -> Result<(), Error> {
    if params.alpha != 1.0 {
        return Err(contract.refuse("alpha", "1", params.alpha));
    }
    let expected = Params { layout, row_parallel: params.row_parallel, ..Params::default() };
    if *params != expected {
        return Err(contract.refuse("params", "the defaults but for row_parallel", params));
    }
    Ok(())
}
