//! `ct_dequant`: w\[n, k\] = (q - z) s, both signed and stored with 2^(bits - 1) added; q packed along K,
//! z along N.

use assay_reference::{Result, Tensor};

use super::gptq::{ORDERS, last_partial};
use super::packed::{Fields, Quantised, Slots, Source};
use super::run::Run;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] =
    &[("scale", &["file", "stored"]), ("weight", &["direct", "via_scale"])];

pub(super) const FAULTS: &[Known] = &[
    ("offset_missing", Keys::None),
    ("twos_complement", Keys::None),
    ("zero_point_ignored", Keys::None),
    ("zero_offset_missing", Keys::None),
    ("value_order", ORDERS),
    ("zero_value_order", ORDERS),
    ("packing_axis", Keys::None),
    ("width_misread", Keys::Number),
    ("scale_group_off_by_one", Keys::None),
    ("zero_group_off_by_one", Keys::None),
    ("scale_transposed", Keys::None),
    ("g_idx_ignored", Keys::None),
    ("negated", Keys::None),
    ("straddle", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("partial_group_scale", Keys::Any),
    ("value_bit_flipped", Keys::None),
    ("zero_point_prescaled", Keys::None),
    ("gain", Keys::Number),
];

/// `ct_dequant`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let it = read(&Source { run: *run, prefix: "", params: &run.case.params })?;
    run.output(&it.shape(), it.weight(run))
}

/// Takes a weight apart.
pub(super) fn read(source: &Source<'_>) -> Result<Quantised> {
    let run = source.run;
    let stored_bits = source.params["bits"].as_u64().unwrap_or(4) as usize;
    let bits = run.count("width_misread").unwrap_or(stored_bits);
    let shape = source.arg("weight_shape")?;
    let [n, k] = [0, 1].map(|i| shape.get_i64(i) as usize);
    let packed = source.words("weight_packed")?;
    let row = packed.len() / n.max(1);
    let scale = source.arg("weight_scale")?;
    let (groups, scale_dtype) = (scale.cols(), scale.dtype());
    let scales = source.floats("weight_scale")?;
    let group = source.groups(k, "weight_g_idx")?;
    let torn = run.is("straddle");
    let fields = |slug: &str| Fields { bits, slots: Slots::misread(run.key(slug)), torn };
    let (weights, zero_fields) = (fields("value_order"), fields("zero_value_order"));
    let half = 1i32 << (bits - 1);
    let value = |at: usize, word: &dyn Fn(usize) -> u32| -> i32 {
        let field = weights.get(at, word) as i32;
        match () {
            () if run.is("offset_missing") => field,
            () if run.is("twos_complement") => (field ^ half) - half,
            () => field - half,
        }
    };
    let zeros = match source.has("weight_zero_point") && !run.is("zero_point_ignored") {
        true => source.words("weight_zero_point")?,
        false => Vec::new(),
    };
    let zero_half = if run.is("zero_offset_missing") { 0 } else { half };
    let zero = |g: usize, r: usize| match zeros.is_empty() {
        true => 0.0,
        false => (zero_fields.get(r, |w| zeros[w * groups + g]) as i32 - zero_half) as f32,
    };
    let partial = last_partial(source, k);
    let [mut q, mut z, mut s] = [(); 3].map(|()| Vec::with_capacity(k * n));
    for r in 0..n {
        let row_zeros: Vec<f32> = (0..groups).map(|g| zero(g, r)).collect();
        for c in 0..k {
            let own = if Some(group[c]) == partial { group[c] - 1 } else { group[c] };
            let next = (own + 1).min(groups - 1);
            let sg = if run.is("scale_group_off_by_one") { next } else { own };
            let zg = if run.is("zero_group_off_by_one") { next } else { sg };
            let mut v = match run.is("packing_axis") {
                true => value(r, &|w| packed[w * k + c]),
                false => value(c, &|w| packed[r * row + w]),
            };
            if run.is("value_bit_flipped") && (c, r) == (k / 2, n / 2) {
                // The lowest bit of the stored value, which the offset leaves alone.
                v ^= 1;
            }
            q.push(v as f32);
            z.push(row_zeros[zg]);
            let transposed = run.is("scale_transposed");
            s.push(scales[if transposed { sg * n + r } else { r * groups + sg }]);
        }
    }
    if run.chose("scale", "stored") || run.param("scales_stored") == true {
        s.iter_mut().for_each(|x| *x = run.stored(*x));
    }
    let via = run.chose("weight", "via_scale").then_some(scale_dtype);
    let indexed = source.has("weight_g_idx");
    let group_size = (!indexed).then(|| source.group_size(k));
    Ok(Quantised { k, n, out_in: true, q, z, s, group_size, via })
}
