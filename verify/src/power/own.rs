//! The reference itself as the subject, over f32: for an op that has no native subject yet. It shares
//! every misreading with the oracle, so that it shows what the cases can see, and is no evidence of
//! what is right.

use assay_reference::ops::{Erased, Op, Out, Tile};
use assay_reference::policy::{Accumulator, At, Order as Known, Transform};
use assay_reference::{Case, Dtype, Error, Result};

use super::Stored;
use crate::subject::native::{Native, Order};

/// Runs `native` as an edit of the reference. Orders that the reference does not emulate are its own.
///
/// # Errors
/// When the case is not the op's, or the op has no such choice or fault.
pub fn run(native: &Native, case: &Case) -> Result<Stored> {
    let (mut setup, specs) = Erased::open(case)?;
    let none = |what: &str| Error::Request(format!("{} has no {what}", case.op));
    let knobs = Erased::knobs(&setup.params);
    let faults = Erased::faults(&setup.params, &setup.tensors);
    for (knob, value) in &native.conventions {
        // A knob that the case does not have changes nothing on it.
        let Some(known) = knobs.iter().find(|k| k.name == knob) else { continue };
        let choice = known.choices.iter().find(|c| c.value == value);
        let choice = choice.ok_or_else(|| none(&format!("choice {knob}={value}")))?;
        (choice.edit)(&mut setup);
    }
    let order = match native.chain.order {
        Order::Sequential => Some(Known::Sequential),
        Order::Lanes(n) if n != 64 => Some(Known::Lanes(n)),
        Order::Split(n) => Some(Known::Split(n)),
        _ => None,
    };
    if let Some(order) = order {
        setup.policy.acc = Accumulator { dtype: Dtype::F32, order, fma: native.chain.fma };
    }
    match &native.fault {
        None => {}
        Some((slug, by)) if slug == "gain" => {
            let by = by.parse().map_err(|_| none(&format!("gain {by}")))?;
            setup.policy.at("output", Transform::Scale { at: At::All, by });
        }
        Some((slug, key)) => {
            let fault = faults.iter().find(|f| f.slug == slug && f.key == *key);
            let fault = fault.ok_or_else(|| none(&format!("fault {slug} ({key})")))?;
            (fault.edit)(&mut setup);
        }
    }
    let narrow = |out: Vec<Out<f32>>| -> Vec<Vec<f64>> {
        out.into_iter().map(|o| o.data.into_iter().map(f64::from).collect()).collect()
    };
    let outputs: Vec<Vec<f64>> = if setup.policy.acc.is_exact() {
        setup.eval::<f64>(&Tile::ALL).into_iter().map(|o| o.data).collect()
    } else {
        narrow(setup.eval::<f32>(&Tile::ALL))
    };
    let stored = |(i, y): (usize, Vec<f64>)| {
        let store = Erased::rounding(&setup.params, &setup.policy, i);
        (specs[i].name, y.into_iter().map(|y| store.round(y)).collect())
    };
    Ok(outputs.into_iter().enumerate().map(stored).collect())
}
