//! All 4-bit codes, zero points and finite f16 scales through the dequantisations, against integer
//! arithmetic: a scale is m 2^e with an integer m, so (q - z) m 2^e is rounded once, from integers.

use assay_reference::ops::awq_dequant::{AwqDequant, Params as Awq};
use assay_reference::ops::ct_dequant::{CtDequant, Params as Ct};
use assay_reference::ops::gptq_dequant::{Format, GptqDequant, Params as Gptq};
use assay_reference::ops::{Op, Setup, Tile};
use assay_reference::{Dtype, Rounding, Tensor};

use crate::harness::setup;

/// Codes of the finite f16 values, in order.
fn finite_f16() -> Vec<u16> {
    (0..=u16::MAX).filter(|c| c & 0x7c00 != 0x7c00).collect()
}

/// m and e of m 2^e.
fn parts(code: u16) -> (i64, i32) {
    let (exp, fraction) = (i32::from(code >> 10 & 31), i64::from(code & 0x3ff));
    let (m, e) = if exp == 0 { (fraction, -24) } else { (fraction + 0x400, exp - 25) };
    (if code & 0x8000 != 0 { -m } else { m }, e)
}

/// m 2^e rounded to nearest even in a format of `bits` bits and exponents from `min` to `max`, by
/// integers.
fn rounded(m: i64, e: i32, (bits, min, max): (i32, i32, i32)) -> f64 {
    if m == 0 {
        return 0.0;
    }
    let size = m.unsigned_abs();
    let top = 63 - size.leading_zeros() as i32 + e;
    let drop = (top.max(min) - bits + 1 - e).max(0);
    let (mut kept, rest) = (size >> drop, size & ((1u64 << drop) - 1));
    let half = if drop > 0 { 1u64 << (drop - 1) } else { 0 };
    if drop > 0 && (rest > half || rest == half && kept & 1 == 1) {
        kept += 1;
    }
    // Exact: at most 12 bits times a power of two.
    let y = kept as f64 * 2f64.powi(e + drop);
    let y = if y >= 2f64.powi(max + 1) { f64::INFINITY } else { y };
    if m < 0 { -y } else { y }
}

const BF16: (i32, i32, i32) = (8, -126, 127);
const F16: (i32, i32, i32) = (11, -14, 15);

/// (q - z) s for all differences from -16 to 15 and all scales, stored as bf16, as f16, and as bf16 by
/// way of f16.
struct Expected {
    codes: Vec<u16>,
    by_difference: Vec<Vec<[f64; 3]>>,
}

impl Expected {
    fn new() -> Expected {
        let codes = finite_f16();
        let one = |d: i64, code: u16| {
            let (m, e) = parts(code);
            let half = rounded(d * m, e, F16);
            // What f16 holds is again an integer times 2^-24.
            let via = if half.is_finite() {
                rounded((half * 2f64.powi(24)) as i64, -24, BF16)
            } else {
                half
            };
            [rounded(d * m, e, BF16), half, via]
        };
        let row = |d: i64| codes.iter().map(|c| one(d, *c)).collect();
        Expected { by_difference: (-16..16).map(row).collect(), codes }
    }

    fn at(&self, difference: i64, scale: usize) -> [f64; 3] {
        self.by_difference[(difference + 16) as usize][scale]
    }
}

/// Holds rows `rows` of a layer to `difference(row, column)` and `scale(row, column)`.
#[track_caller]
fn held<O: Op>(
    s: &Setup<O>,
    rows: std::ops::Range<usize>,
    expected: &Expected,
    difference: impl Fn(usize, usize) -> i64,
    scale: impl Fn(usize, usize) -> usize,
) -> usize {
    O::check(&s.params, &s.tensors).expect("a layer");
    let (bf, half) = (Rounding::nearest(Dtype::Bf16), Rounding::nearest(Dtype::F16));
    let tile = Tile { rows: Some(rows.clone().collect()), cols: None };
    let exact = s.eval::<f64>(&tile).remove(0).data;
    let fast = s.eval::<f32>(&tile).remove(0).data;
    let cols = exact.len() / rows.len();
    for (i, (y, f)) in exact.iter().zip(&fast).enumerate() {
        let (r, c) = (rows.start + i / cols, i % cols);
        let want = expected.at(difference(r, c), scale(r, c));
        let got = [bf.round(*y), half.round(*y), bf.round(half.round(*y))];
        assert!(got == want && f64::from(*f) == *y, "{} [{r}, {c}]: {y} {f} {want:?}", O::NAME);
    }
    exact.len()
}

/// Words of codes 0..16 one after the other.
const RAMP: [i32; 2] = [0x7654_3210, 0xfedc_ba98_u32 as i32];

fn repeated(g: usize) -> i32 {
    (g as u32 * 0x1111_1111) as i32
}

/// K of `groups` times 16 rows, each group with every code, over a column for each scale; the zero
/// point stored in group g is `zero(g)`.
fn gptq(format: Format, groups: usize, zero: impl Fn(usize) -> usize) -> Setup<GptqDequant> {
    let codes = finite_f16();
    let n = codes.len();
    let weights: Vec<i32> = (0..2 * groups).flat_map(|w| vec![RAMP[w % 2]; n]).collect();
    let zeros: Vec<i32> = (0..groups).flat_map(|g| vec![repeated(zero(g)); n / 8]).collect();
    setup(
        Gptq::new(format, 16),
        [
            ("qweight", Tensor::from_i32(&[2 * groups, n], &weights)),
            ("qzeros", Tensor::from_i32(&[groups, n / 8], &zeros)),
            ("scales", scales(&codes, groups)),
        ],
    )
}

fn scales(codes: &[u16], groups: usize) -> Tensor {
    let bytes: Vec<u8> =
        (0..groups).flat_map(|_| codes.iter().flat_map(|c| c.to_le_bytes())).collect();
    Tensor::from_bytes(Dtype::F16, vec![groups, codes.len()], bytes).expect("scales")
}

/// Zero points 0 and 15 (1 and 16 as v1 reads them) meet every code: every difference, every scale.
#[test]
fn every_difference_times_every_scale_is_rounded_from_integers() {
    let expected = Expected::new();
    let s = gptq(Format::V2, 2, |g| 15 * g);
    let difference = |r: usize, _: usize| (r % 16) as i64 - 15 * (r / 16) as i64;
    assert_eq!(held(&s, 0..32, &expected, difference, |_, c| c), 32 * 63_488);
}

#[test]
#[ignore = "half a minute: cargo test -p assay-tests --test ops all_codes -- --ignored"]
fn all_codes_zero_points_and_scales_of_every_format() {
    let expected = Expected::new();
    let n = expected.codes.len();
    let mut compared = 0;
    for (format, more) in [(Format::V2, 0), (Format::V1, 1)] {
        let s = gptq(format, 16, |g| g);
        let difference = |r: usize, _: usize| (r % 16) as i64 - (r / 16) as i64 - more;
        for from in (0..256).step_by(16) {
            compared += held(&s, from..from + 16, &expected, difference, |_, c| c);
        }
    }
    // AWQ packs along N: a row of one code; interleaving equal codes changes nothing.
    let weights: Vec<i32> = (0..256).flat_map(|r| vec![repeated(r % 16); n / 8]).collect();
    let zeros: Vec<i32> = (0..16).flat_map(|g| vec![repeated(g); n / 8]).collect();
    let s: Setup<AwqDequant> = setup(
        Awq::new(16),
        [
            ("qweight", Tensor::from_i32(&[256, n / 8], &weights)),
            ("qzeros", Tensor::from_i32(&[16, n / 8], &zeros)),
            ("scales", scales(&expected.codes, 16)),
        ],
    );
    let difference = |r: usize, _: usize| (r % 16) as i64 - (r / 16) as i64;
    for from in (0..256).step_by(16) {
        compared += held(&s, from..from + 16, &expected, difference, |_, c| c);
    }
    // compressed-tensors: a row for each scale, 16 groups of all codes.
    let weights: Vec<i32> = (0..n * 32).map(|w| RAMP[w % 2]).collect();
    let zeros: Vec<i32> = (0..n / 8 * 16).map(|i| repeated(i % 16)).collect();
    let bytes: Vec<u8> = expected.codes.iter().flat_map(|c| c.to_le_bytes().repeat(16)).collect();
    let s: Setup<CtDequant> = setup(
        Ct::new(4, 16),
        [
            ("weight_packed", Tensor::from_i32(&[n, 32], &weights)),
            ("weight_scale", Tensor::from_bytes(Dtype::F16, vec![n, 16], bytes).expect("scales")),
            ("weight_zero_point", Tensor::from_i32(&[n / 8, 16], &zeros)),
            ("weight_shape", Tensor::from_i32(&[2], &[n as i32, 256])),
        ],
    );
    let difference = |_: usize, c: usize| (c % 16) as i64 - (c / 16) as i64;
    for from in (0..n).step_by(n / 16) {
        compared += held(&s, from..from + n / 16, &expected, difference, |r, _| r);
    }
    assert_eq!(compared, 4 * 256 * 63_488);
}
