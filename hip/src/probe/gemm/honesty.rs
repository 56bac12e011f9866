//! Whether an f32 product multiplies f32 numbers.

use assay_reference::Tensor;
use assay_reference::dtype::pow2;

use super::super::exact::{Exact, F32, Round, same};
use super::super::{Reading, findings};
use super::Subject;
use crate::error::Error;

/// Rows of x, rows of w and terms of a product that a library gives to its tiled kernels.
const LARGE: [usize; 3] = [256, 256, 256];

/// Odd integers of 24 bits: a linear congruential generator's upper bits.
fn significands() -> impl FnMut() -> f64 {
    let mut state = 0x2545_f491_u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(0x80_0001 | state >> 8)
    }
}

/// Integers of alternating bits: no sum of two narrower numbers holds them.
fn alternating(bits: u32) -> f64 {
    f64::from(
        (0..bits).filter(|i| (bits - 1 - i).is_multiple_of(2)).fold(0_u32, |x, i| x | 1 << i) | 1,
    )
}

/// Of single products, in matrices of a few rows.
pub(super) fn small(name: &str, subject: &Subject<'_>) -> Result<Reading, Error> {
    let single = |x: f64| vec![x, 0.0, 0.0, 0.0];
    let sizes: Vec<u32> = (2..=24).collect();
    let given =
        subject.rows(&sizes.iter().map(|&b| single(alternating(b))).collect::<Vec<_>>(), 0)?;
    let exact = sizes.iter().zip(&given).take_while(|&(&b, &[y, _])| y == alternating(b));
    let bits = 1 + exact.count() as u32;
    // 4097 * 4095 = 2^24 - 1 in f32; without the product of the low parts it is 2^24.
    let pair =
        Tensor::from_f64(subject.dtype, &[2, 4], &[4095.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    let probes = subject.with(&[single(4097.0), single(4099.0), single(pow2(17))], &pair)?;
    let whole_product = probes[0][0] == 16_777_215.0;
    let to_nearest = probes[1][1] == 4100.0;
    let in_range = probes[2][1] == pow2(17);
    let rounded = correctly_rounded(subject)?;
    let reads = match (bits, in_range) {
        (24, _) if whole_product && rounded => "f32",
        (24, _) if whole_product => "bf16x3",
        (16.., _) => "bf16x2",
        (11, true) => "tf32",
        (11, false) => "f16",
        (8 | 9, _) => "bf16",
        _ => "unknown",
    };
    let rounding = if to_nearest { "nearest" } else { "toward zero" };
    let meaning = match reads {
        "f32" => "operands keep 24 bits and each product is rounded once".to_owned(),
        "bf16x3" => "operands keep 24 bits, as three bf16 numbers: close to f32, not equal".into(),
        "tf32" => format!(
            "operands keep 11 of 24 bits (rounded {rounding}), about 5e-4 relative: no oracle, and not \
             f32"
        ),
        _ => format!("operands keep {bits} of 24 bits: not f32"),
    };
    let what = format!("{name}.f32");
    let words: Vec<u32> =
        given.iter().chain(&probes).flatten().map(|&y| (y as f32).to_bits()).collect();
    let reading = Reading::new(&what, reads, meaning).over(&words);
    Ok(if reads == "f32" { reading } else { reading.found(findings::F32_GEMM) })
}

/// Whether products of full significands are the nearest f32.
fn correctly_rounded(subject: &Subject<'_>) -> Result<bool, Error> {
    let mut next = significands();
    let rows: Vec<Vec<f64>> = (0..64).map(|_| vec![next(), 0.0, 0.0, 0.0]).collect();
    let (a, b) = (next(), next());
    let w = Tensor::from_f64(subject.dtype, &[2, 4], &[a, 0.0, 0.0, 0.0, b, 0.0, 0.0, 0.0]);
    let given = subject.with(&rows, &w)?;
    Ok(rows.iter().zip(&given).all(|(row, y)| {
        let right = |w: f64| Exact::of(row[0]).mul(Exact::of(w)).round(F32, Round::NearestEven);
        *y == [right(a), right(b)]
    }))
}

/// Of a size at which a library takes other kernels than for a few rows. Every row of x holds one number
/// beside zeros, so that the nearest f32 to each result is known whatever the order.
pub(super) fn large(name: &str, subject: &Subject<'_>) -> Result<Reading, Error> {
    let what = format!("{name}.f32 large");
    let [m, n, k] = LARGE;
    let term = |row: usize| (37 * row + 5) % k;
    let mut next = significands();
    let single: Vec<f64> = (0..m).map(|_| next()).collect();
    let mut x = vec![0.0; m * k];
    for (row, a) in single.iter().enumerate() {
        x[row * k + term(row)] = *a;
    }
    let w: Vec<f64> = (0..n * k).map(|_| next()).collect();
    let of = |rows: usize, values: &[f64]| Tensor::from_f64(subject.dtype, &[rows, k], values);
    let given = match subject.multiply(&of(m, &x), &of(n, &w)) {
        Ok(y) => y.to_f64(),
        Err(e @ Error::Argument { .. }) => {
            return Ok(Reading::new(&what, "not measured", e.to_string()));
        }
        Err(e) => return Err(e),
    };
    let (mut wrong, mut worst) = (0, 0.0_f64);
    for (i, &y) in given.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let exact = Exact::of(single[row]).mul(Exact::of(w[column * k + term(row)]));
        let right = exact.round(F32, Round::NearestEven);
        if !same(right, y) {
            wrong += 1;
            let error = ((y - right) / right).abs();
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
        }
    }
    let words: Vec<u32> = given.iter().map(|&y| (y as f32).to_bits()).collect();
    if wrong == 0 {
        let meaning = format!("at {m} x {n} x {k} too each product is rounded once");
        return Ok(Reading::new(&what, "f32", meaning).over(&words));
    }
    let meaning = format!(
        "at {m} x {n} x {k} {wrong} of {} results are not the nearest f32, the worst off by {worst:.1e} \
         relative: no oracle at this size",
        m * n
    );
    Ok(Reading::new(&what, "not f32", meaning).over(&words).found(findings::F32_GEMM))
}
