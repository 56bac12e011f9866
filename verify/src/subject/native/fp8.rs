//! `fp8_dequant`: w\[n, k\] = code s, with one scale for each block.

use assay_reference::{Result, Tensor};

use super::packed::{Quantised, Source};
use super::run::Run;
use super::scalar::Fp8;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[("scale", &["file", "stored"])];

pub(super) const FAULTS: &[Known] = &[
    ("scale_block_off_by_one", Keys::OneOf(&["N", "K"])),
    ("scale_transposed", Keys::None),
    ("block_size", Keys::None),
    ("scale_divided", Keys::None),
    ("scale_ignored", Keys::None),
    ("read_as_e5m2", Keys::None),
    ("nan_as_480", Keys::None),
    ("read_as_fnuz", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("partial_group_scale", Keys::OneOf(&["N", "K"])),
    ("code_subnormals_flushed", Keys::None),
    ("saturated_at_240", Keys::None),
    ("gain", Keys::Number),
];

/// `fp8_dequant`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let it = read(&Source { run: *run, prefix: "", params: &run.case.params })?;
    run.output(&it.shape(), it.weight(run))
}

/// The value of each byte.
fn codes(run: &Run<'_>) -> Vec<f32> {
    let reading = match () {
        () if run.is("read_as_e5m2") => Fp8::E5m2,
        () if run.is("nan_as_480") => Fp8::E4m3NoNan,
        () if run.is("read_as_fnuz") => Fp8::E4m3Fnuz,
        () => Fp8::E4m3,
    };
    let mut table = reading.table();
    for x in &mut table {
        if run.is("code_subnormals_flushed") && x.abs() < 0.015_625 {
            *x = 0.0;
        }
        if run.is("saturated_at_240") && !x.is_nan() {
            *x = x.clamp(-240.0, 240.0);
        }
    }
    table
}

/// Takes a weight apart.
pub(super) fn read(source: &Source<'_>) -> Result<Quantised> {
    let run = source.run;
    let weight = source.arg("weight")?;
    let (&[n, k], &[down, across]) = (weight.shape(), source.arg("weight_scale_inv")?.shape())
    else {
        return run.refuse("weight and weight_scale_inv must have two dimensions");
    };
    let block = |i: usize| source.params["block"][i].as_u64().unwrap_or(128) as usize;
    let sizes = [block(0), block(1)];
    let scales = source.floats("weight_scale_inv")?;
    let table = codes(&run);
    let q: Vec<f32> = weight.bytes().iter().map(|&b| table[usize::from(b)]).collect();
    // The block of an index along one axis.
    let place = |axis: usize, i: usize| {
        let (size, len, count, name) =
            if axis == 0 { (sizes[0], n, down, "N") } else { (sizes[1], k, across, "K") };
        let own = i / size;
        let last_is_partial = len % size != 0 && own + 1 == len.div_ceil(size);
        match () {
            () if run.key("scale_block_off_by_one") == Some(name) => (own + 1).min(count - 1),
            () if run.is("block_size") => (i / (size / 2).max(1)).min(count - 1),
            () if run.key("partial_group_scale") == Some(name) && last_is_partial && own > 0 => {
                own - 1
            }
            () => own,
        }
    };
    let columns: Vec<usize> = (0..k).map(|c| place(1, c)).collect();
    let mut s = Vec::with_capacity(n * k);
    for r in 0..n {
        let row = place(0, r);
        for &column in &columns {
            let at = if run.is("scale_transposed") {
                column * down + row
            } else {
                row * across + column
            };
            s.push(if run.is("scale_ignored") { 1.0 } else { scales[at] });
        }
    }
    if run.chose("scale", "stored") || run.param("scales_stored") == true {
        s.iter_mut().for_each(|x| *x = run.stored(*x));
    }
    let z = vec![0.0; n * k];
    Ok(Quantised { k, n, out_in: true, q, z, s, group_size: Some(sizes[1]), via: None })
}
