//! The catalogue of faults of quantised linear layers, and how those of the parts become the composite's.

use std::sync::Arc;

use super::{Activations, Dequant, Params, QuantGemm, S, Unscaled};
use crate::dtype::Dtype;
use crate::ops::{Choice, Edit, Fault, Knob, Op, Setup, Tensors, matmul};
use crate::policy::Transform;

pub(super) fn catalogue<D: Dequant>(
    params: &Params<D::Params>,
    tensors: &Tensors,
) -> Vec<Fault<QuantGemm<D>>> {
    let mut faults: Vec<_> = D::faults(&params.dequant, tensors)
        .into_iter()
        .map(|f| weight_store(lift_fault(f, lift_dequant)))
        .collect();
    let (Ok(weight), Some(x)) = (D::check(&params.dequant, tensors), tensors.get("x")) else {
        return faults;
    };
    let [n, k] = QuantGemm::<D>::sizes(&weight);
    let bias = tensors.contains_key("bias");
    let product = matmul::faults::catalogue(&params.matmul, [k, n], x, bias);
    faults.extend(product.into_iter().map(|f| lift_fault(f, lift_matmul)));
    if D::activation_group(&params.dequant).is_some() {
        faults.extend(fp8_faults());
    } else {
        faults.extend(int8_faults());
    }
    match ["g_idx", "weight_g_idx"].iter().find_map(|name| tensors.get(*name)) {
        Some(g_idx) => faults.extend(unpermuted(&g_idx.to_f64())),
        None => faults.extend(unscaled::<D>(params, x.dtype(), k)),
    }
    faults
}

/// Sums over weights that are not scaled yet.
fn unscaled<D: Dequant>(
    params: &Params<D::Params>,
    x: Dtype,
    k: usize,
) -> Vec<Fault<QuantGemm<D>>> {
    let fault = |code, slug, detail: String, to: Unscaled| {
        Fault::new(code, slug, detail, move |s: &mut S<D>| s.params.unscaled = to)
    };
    let mut faults = Vec::new();
    let group = D::scale_group(&params.dequant, k);
    let integers = D::activation_group(&params.dequant).is_none();
    if x == Dtype::F16 && integers && group.is_multiple_of(8) && k.is_multiple_of(8) {
        faults.push(fault(
            "A236",
            "unscaled_f16_accumulation",
            "8 products of x and (q - z) are summed in f16 before they are scaled".into(),
            Unscaled::SummedInF16,
        ));
    }
    if [Dtype::F16, Dtype::Bf16].contains(&x) {
        let detail = format!("the sum of a group is rounded to {x} before it is scaled");
        faults.push(fault("A237", "scale_after_cast", detail, Unscaled::Cast(x)));
    }
    faults
}

/// Weights in the order of their groups, activations in their own.
fn unpermuted<D: Dequant>(g_idx: &[f64]) -> Option<Fault<QuantGemm<D>>> {
    let mut order: Vec<usize> = (0..g_idx.len()).collect();
    order.sort_by(|&a, &b| g_idx[a].total_cmp(&g_idx[b]));
    if order.is_sorted() {
        return None;
    }
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &k)| place[k] = i);
    let place: Arc<[usize]> = place.into();
    let detail = "weights are sorted by g_idx, activations are not";
    Some(Fault::new("A239", "activations_unpermuted", detail, move |s: &mut S<D>| {
        s.policy.at("x", Transform::Permute(place.clone()));
    }))
}

/// Activations that are quantised although the weights' format does not ask for it.
fn int8_faults<D: Dequant>() -> Vec<Fault<QuantGemm<D>>> {
    let fault = |to: Activations, key: &str, of: &str| {
        let detail = format!("activations are quantised to 8 bits with one scale for {of}");
        Fault::new("A238", "activations_int8", detail, move |s: &mut S<D>| {
            s.params.activations = to;
        })
        .keyed(key)
    };
    vec![
        fault(Activations::Int8Blocks, "block 32", "32 elements"),
        fault(Activations::Int8PerToken, "row", "a row"),
    ]
}

/// Activations that are quantised in another way than by groups.
fn fp8_faults<D: Dequant>() -> Vec<Fault<QuantGemm<D>>> {
    let edit = |to: Activations| {
        move |s: &mut S<D>| {
            s.params.activations = to;
            s.params.edge_f32 = true;
        }
    };
    vec![
        Fault::new(
            "A1FA",
            "activations_per_token",
            "activations are quantised to fp8 with one scale for a row instead of one for each group",
            edit(Activations::Fp8PerToken),
        ),
        Fault::new(
            "A1FB",
            "activations_unscaled",
            "activations are rounded to fp8 without a scale",
            edit(Activations::Fp8Unscaled),
        ),
    ]
}

/// An edit of the dequantisation as an edit of the composite.
pub(super) fn lift_dequant<D: Dequant>(edit: Edit<D>) -> Edit<QuantGemm<D>> {
    Arc::new(move |s| {
        let mut part = Setup {
            params: s.params.dequant.clone(),
            policy: s.policy.parts[0].clone(),
            tensors: std::mem::take(&mut s.tensors),
        };
        edit(&mut part);
        s.params.dequant = part.params;
        s.policy.parts[0] = part.policy;
        s.tensors = part.tensors;
    })
}

/// An edit of the product as an edit of the composite.
pub(super) fn lift_matmul<D: Dequant>(edit: Edit<matmul::Matmul>) -> Edit<QuantGemm<D>> {
    Arc::new(move |s| {
        let mut part = Setup {
            params: s.params.matmul.clone(),
            policy: s.policy.clone(),
            tensors: std::mem::take(&mut s.tensors),
        };
        edit(&mut part);
        s.params.matmul = part.params;
        s.policy = part.policy;
        s.tensors = part.tensors;
    })
}

/// The store of the dequantised weight is another than the product's, and has its own names.
fn weight_store<O: Op>(fault: Fault<O>) -> Fault<O> {
    let (code, slug) = match fault.slug {
        "truncating_store" => ("A1B1", "weight_truncating_store"),
        "ties_away_store" => ("A1B2", "weight_ties_away_store"),
        _ => (fault.code, fault.slug),
    };
    Fault { code, slug, ..fault }
}

pub(super) fn lift_knob<P: Op, O: Op>(knob: Knob<P>, lift: fn(Edit<P>) -> Edit<O>) -> Knob<O> {
    let choices = knob
        .choices
        .into_iter()
        .map(|c| Choice { value: c.value, framework_only: c.framework_only, edit: lift(c.edit) })
        .collect();
    Knob { name: knob.name, choices }
}

fn lift_fault<P: Op, O: Op>(fault: Fault<P>, lift: fn(Edit<P>) -> Edit<O>) -> Fault<O> {
    Fault {
        code: fault.code,
        slug: fault.slug,
        key: fault.key,
        detail: fault.detail,
        edit: lift(fault.edit),
    }
}
