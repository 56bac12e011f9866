//! `awq_dequant`: w\[k, n\] = (q - z) s, q and z packed along N in the order 0 2 4 6 1 3 5 7.

use assay_reference::{Dtype, Result, Tensor};

use super::gptq::last_partial;
use super::packed::{AWQ, AWQ_SLOT, Fields, Quantised, Slots, Source};
use super::run::Run;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] =
    &[("scale", &["f16", "stored"]), ("weight", &["direct", "via_f16"])];

const ORDERS: Keys = Keys::OneOf(&["identity", "inverse"]);

pub(super) const FAULTS: &[Known] = &[
    ("weight_order", ORDERS),
    ("zero_order", ORDERS),
    ("slot_order", ORDERS),
    ("packing_axis", Keys::None),
    ("zero_plus_one", Keys::None),
    ("zero_assumed_symmetric", Keys::None),
    ("scale_group_off_by_one", Keys::None),
    ("zero_group_off_by_one", Keys::None),
    ("negated", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("partial_group_scale", Keys::Any),
    ("zero_of_next_word", Keys::None),
    ("value_bit_flipped", Keys::None),
    ("one_zero_point_off", Keys::None),
    ("zero_point_prescaled", Keys::None),
    ("gain", Keys::Number),
];

/// `awq_dequant`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let it = read(&Source { run: *run, prefix: "", params: &run.case.params })?;
    run.output(&it.shape(), it.weight(run))
}

/// The slot of each of a word's eight values.
fn slots(run: &Run<'_>, slug: &str) -> Slots {
    match run.key(slug).or(run.key("slot_order")) {
        None => Slots::Of(AWQ_SLOT),
        Some("identity") => Slots::Low,
        // Slot i is taken for value 0 4 1 5 2 6 3 7, so value j comes from slot 0 2 4 6 1 3 5 7.
        Some(_) => Slots::Of(AWQ),
    }
}

/// Takes a weight apart.
pub(super) fn read(source: &Source<'_>) -> Result<Quantised> {
    let run = source.run;
    let (qweight, qzeros) = (source.words("qweight")?, source.words("qzeros")?);
    let &[groups, n] = source.arg("scales")?.shape() else {
        return run.refuse("scales must have two dimensions");
    };
    let scales = source.floats("scales")?;
    let (row, k) = (n / 8, qweight.len() / (n / 8).max(1));
    let size = source.group_size(k);
    let along_k = run.is("packing_axis");
    let fields = |slug: &str| Fields { bits: 4, slots: slots(&run, slug), torn: false };
    let (weights, zero_fields) = (fields("weight_order"), fields("zero_order"));
    let zero = |g: usize, c: usize| -> f32 {
        let c = if run.is("zero_of_next_word") && c + 8 < n { c + 8 } else { c };
        let stored = zero_fields.get(c, |w| qzeros[g * row + w]);
        let one = run.is("zero_plus_one")
            || (run.is("one_zero_point_off") && (g, c) == (groups / 2, n / 2));
        if run.is("zero_assumed_symmetric") { 8.0 } else { (stored + u32::from(one)) as f32 }
    };
    let zeros: Vec<f32> = (0..groups * n).map(|i| zero(i / n, i % n)).collect();
    let partial = last_partial(source, k);
    let [mut q, mut z, mut s] = [(); 3].map(|()| Vec::with_capacity(k * n));
    for i in 0..k {
        let own = if Some(i / size) == partial { i / size - 1 } else { i / size };
        let next = (own + 1).min(groups - 1);
        let sg = if run.is("scale_group_off_by_one") { next } else { own };
        let zg = if run.is("zero_group_off_by_one") { next } else { sg };
        for c in 0..n {
            let mut value = if along_k {
                weights.get(i, |w| qweight[w * n + c])
            } else {
                weights.get(c, |w| qweight[i * row + w])
            };
            if run.is("value_bit_flipped") && (i, c) == (k / 2, n / 2) {
                value ^= 1;
            }
            q.push(value as f32);
        }
        z.extend_from_slice(&zeros[zg * n..][..n]);
        s.extend_from_slice(&scales[sg * n..][..n]);
    }
    if run.chose("scale", "stored") || run.param("scales_stored") == true {
        s.iter_mut().for_each(|x| *x = run.stored(*x));
    }
    let via = run.chose("weight", "via_f16").then_some(Dtype::F16);
    Ok(Quantised { k, n, out_in: false, q, z, s, group_size: Some(size), via })
}
