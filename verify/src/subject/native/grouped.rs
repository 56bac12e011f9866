//! Linear layers that apply the scale to the sum of a group: what int4 and block-scaled FP8 kernels do,
//! right or with a step too early.

use assay_reference::Dtype;

use super::Chain;
use super::chain::Rows;
use super::scalar::{Store, e4m3};

/// What happens to x and to the sum of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    /// x goes to e4m3 with a scale for the group; sums are f32.
    Fp8,
    /// The sum is cast before it is scaled.
    Cast(Dtype),
    /// Sums of eight in two f16 lanes.
    HalfLanes,
}

/// A weight as codes and scales, [K, N] both.
pub(super) struct Grouped {
    pub(super) codes: Vec<f32>,
    pub(super) scales: Vec<f32>,
    /// Inputs of a group.
    pub(super) size: usize,
    pub(super) how: How,
}

impl Grouped {
    /// The sums of one row of x, before the bias.
    pub(super) fn row(&self, chain: &Chain, x: &[f32], n: usize) -> Vec<f32> {
        let (mut total, mut sums) = (vec![0.0; n], vec![0.0; n]);
        let rows = Rows { data: &self.codes, stride: n, first: 0 };
        // Products of short codes with 16-bit values are exact: there is nothing to fuse.
        let chain = Chain { fma: false, ..*chain };
        for from in (0..x.len()).step_by(self.size) {
            let range = from..(from + self.size).min(x.len());
            let scales = &self.scales[from * n..][..n];
            let index = || chain.arrange(range.clone().map(|i| i as u32).collect());
            match self.how {
                How::HalfLanes => self.half_lanes(x, range, n, &mut total),
                How::Fp8 => {
                    let (codes, s) = quantised(x, range.clone());
                    chain.weighted(&index(), &codes, rows, &mut sums);
                    let parts = total.iter_mut().zip(&sums).zip(scales);
                    parts.for_each(|((t, sum), w)| *t += sum * (s * w));
                }
                How::Cast(dtype) => {
                    chain.weighted(&index(), x, rows, &mut sums);
                    let cast = |sum: &f32| Store::Nearest.round(dtype, *sum);
                    let parts = total.iter_mut().zip(&sums).zip(scales);
                    parts.for_each(|((t, sum), s)| *t += cast(sum) * s);
                }
            }
        }
        total
    }

    fn half_lanes(&self, x: &[f32], range: std::ops::Range<usize>, n: usize, total: &mut [f32]) {
        for from in range.clone().step_by(8) {
            for (c, t) in total.iter_mut().enumerate() {
                let mut lanes = [0.0f32; 2];
                for k in from..(from + 8).min(range.end) {
                    let lane = &mut lanes[k % 2];
                    let exact = f64::from(self.codes[k * n + c]) * f64::from(x[k]);
                    *lane = Store::Nearest.round(Dtype::F16, to_odd(exact + f64::from(*lane)));
                }
                *t += (lanes[0] + lanes[1]) * self.scales[from * n + c];
            }
        }
    }
}

/// e4m3 codes of a range of x, zero elsewhere, and their scale.
fn quantised(x: &[f32], range: std::ops::Range<usize>) -> (Vec<f32>, f32) {
    let s = scale_of(&x[range.clone()], 448.0);
    let mut codes = vec![0.0; x.len()];
    for i in range {
        codes[i] = if s == 0.0 { x[i] } else { e4m3(x[i] / s) };
    }
    (codes, s)
}

/// The largest magnitude over `largest`; NaN if there is one.
pub(super) fn scale_of(x: &[f32], largest: f32) -> f32 {
    let larger = |m: f32, v: &f32| if v.abs() > m || v.is_nan() { v.abs() } else { m };
    x.iter().fold(0.0, larger) / largest
}

/// To f32 so that a further rounding to nearest is right: cut, with the last bit set if it was inexact.
fn to_odd(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) == x || !y.is_finite() {
        return y;
    }
    let cut = if f64::from(y).abs() > x.abs() { y.to_bits() - 1 } else { y.to_bits() };
    f32::from_bits(cut | 1)
}
