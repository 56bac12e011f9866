//! Linear layers over quantised weights: the dequantised weight, stored or not, then the product.

use assay_reference::{Dtype, Result, Tensor};

use super::grouped::{Grouped, How, scale_of};
use super::linear::{Layer, transposed};
use super::packed::{Format, Quantised, Source};
use super::run::Run;
use super::scalar::e4m3;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[("edge", &["stored", "f32"])];

/// What only FP8's have.
pub(super) const FP8_KNOBS: &[(&str, &[&str])] = &[("activations", &["stored", "fp8"])];

pub(super) const FAULTS: &[Known] = &[
    ("weight_truncating_store", Keys::None),
    ("weight_ties_away_store", Keys::None),
    ("scale_after_cast", Keys::None),
];

/// What integer formats have.
pub(super) const INT_FAULTS: &[Known] = &[
    ("unscaled_f16_accumulation", Keys::None),
    ("activations_int8", Keys::OneOf(&["block 32", "row"])),
    ("activations_unpermuted", Keys::None),
];

/// What only FP8's have.
pub(super) const FP8_FAULTS: &[Known] =
    &[("activations_per_token", Keys::None), ("activations_unscaled", Keys::None)];

pub(super) fn gptq(run: &Run<'_>) -> Result<Tensor> {
    gemm(run, Format::Gptq)
}

pub(super) fn awq(run: &Run<'_>) -> Result<Tensor> {
    gemm(run, Format::Awq)
}

pub(super) fn compressed(run: &Run<'_>) -> Result<Tensor> {
    gemm(run, Format::CompressedTensors)
}

pub(super) fn fp8(run: &Run<'_>) -> Result<Tensor> {
    gemm(run, Format::Fp8)
}

fn gemm(run: &Run<'_>, format: Format) -> Result<Tensor> {
    let source = Source { run: *run, prefix: "", params: run.param("dequant") };
    let parts = format.read(&source)?;
    // Codes are multiplied with codes: there is no weight to be stored.
    let codes = format == Format::Fp8
        && (quantises(run) || run.is("activations_per_token") || run.is("activations_unscaled"));
    let stays = codes || run.chose("edge", "f32") || run.param("edge_f32") == true;
    let mut weight = parts.weight(run);
    if !stays {
        let store = run.store("weight_");
        weight.iter_mut().for_each(|w| *w = store.round(run.dtype(), *w));
    }
    let (n, k) = (parts.n, parts.k);
    if parts.out_in && !run.is("weight_transposed") {
        weight = transposed(&weight, n, k);
    }
    if run.is("activations_unpermuted") {
        weight = in_group_order(&source, format, &weight, n)?;
    }
    let mut x = run.floats("x")?;
    let grouped = grouped(run, format, &parts, stays)?;
    if grouped.is_none() {
        quantise_activations(run, format, &mut x, &parts);
    }
    let exact = !stays && run.dtype() != Dtype::F32 && run.arg("x")?.dtype() != Dtype::F32;
    let layer = Layer { run: *run, params: run.param("matmul"), n, k, weight, exact, grouped };
    layer.output_of(x)
}

/// Rows in the order of their groups, as kernels permute them at load.
fn in_group_order(
    source: &Source<'_>,
    format: Format,
    weight: &[f32],
    n: usize,
) -> Result<Vec<f32>> {
    let name = if format == Format::Gptq { "g_idx" } else { "weight_g_idx" };
    let index = source.words(name)?;
    let mut order: Vec<usize> = (0..index.len()).collect();
    order.sort_by_key(|i| index[*i]);
    Ok(order.iter().flat_map(|i| &weight[i * n..][..n]).copied().collect())
}

/// The way by sums of groups, if this implementation goes it.
fn grouped(
    run: &Run<'_>,
    format: Format,
    parts: &Quantised,
    stays: bool,
) -> Result<Option<Grouped>> {
    let x = run.arg("x")?.dtype();
    // A weight that is not stored cannot be stored wrongly.
    let idle = stays
        && run
            .native
            .fault
            .as_ref()
            .is_some_and(|f| f.0.starts_with("weight_") && f.0.ends_with("_store"));
    let sound =
        (run.native.fault.is_none() || idle) && run.choice("partials").is_none_or(|p| p == "1");
    let fp8 = quantises(run) && format == Format::Fp8;
    let how = match () {
        () if run.is("unscaled_f16_accumulation") => How::HalfLanes,
        () if run.is("scale_after_cast") => How::Cast(x),
        () if fp8 && stays && sound && run.chain().is_device_like() => How::Fp8,
        () => return Ok(None),
    };
    let Some(size) = parts.group_size else {
        return run.refuse("sums by group need groups in sequence");
    };
    let codes: Vec<f32> = parts.q.iter().zip(&parts.z).map(|(q, z)| q - z).collect();
    let turn = |v: &[f32]| match parts.out_in {
        true => transposed(v, parts.n, parts.k),
        false => v.to_vec(),
    };
    Ok(Some(Grouped { codes: turn(&codes), scales: turn(&parts.s), size, how }))
}

/// Whether activations go through e4m3 as they should.
fn quantises(run: &Run<'_>) -> bool {
    run.chose("activations", "fp8") || run.param("activations").as_str() == Some("fp8")
}

/// x as a layer with quantised activations sees it.
fn quantise_activations(run: &Run<'_>, format: Format, x: &mut [f32], parts: &Quantised) {
    let k = parts.k;
    if format != Format::Fp8 {
        let Some(key) = run.key("activations_int8") else { return };
        let block = if key == "row" { k } else { 32 };
        for part in x.chunks_exact_mut(k).flat_map(|row| row.chunks_mut(block)) {
            let s = scale_of(part, 127.0);
            let whole = |v: f32| (v.abs() + 0.5).floor().copysign(v);
            part.iter_mut().for_each(|v| *v = if s == 0.0 { 0.0 } else { s * whole(*v / s) });
        }
        return;
    }
    if run.is("activations_unscaled") {
        return x.iter_mut().for_each(|v| *v = e4m3(*v));
    }
    let block = match () {
        () if run.is("activations_per_token") => k,
        // The groups of x are the blocks of the weight, 128 in every released model.
        () if quantises(run) => parts.group_size.unwrap_or(k),
        () => return,
    };
    for part in x.chunks_exact_mut(k).flat_map(|row| row.chunks_mut(block)) {
        let s = scale_of(part, 448.0);
        part.iter_mut().for_each(|v| *v = if s == 0.0 { *v } else { s * e4m3(*v / s) });
    }
}
