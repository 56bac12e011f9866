//! All 65,536 bf16 values through every op of one variable: the stored bits against an oracle of its own
//! (the host's f64 functions, rounded by a table of all values), native f32 inside the bound.

#![expect(
    clippy::disallowed_methods,
    reason = "the oracle must not share the reference's functions"
)]

use assay_reference::arith::Ball;
use assay_reference::dtype::e4m3;
use assay_reference::ops::add::Add;
use assay_reference::ops::embedding::Embedding;
use assay_reference::ops::rms_norm::{Params as NormParams, RmsNorm};
use assay_reference::ops::rope::{Angle, Params as RopeParams, Rope};
use assay_reference::ops::silu_mul::SiluMul;
use assay_reference::ops::softmax::Softmax;
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Rounding, Tensor};
use half::{bf16, f16};

use crate::harness::{setup, whole};

/// All finite values of a format in order, with their codes: rounding without arithmetic on bits.
pub(crate) struct Table {
    values: Vec<(f64, u32)>,
    /// From here on a value becomes infinite; infinite itself for a format that saturates.
    overflow: f64,
}

impl Table {
    pub(crate) fn of(dtype: Dtype) -> Table {
        let decode = |code: u32| match dtype {
            Dtype::Bf16 => bf16::from_bits(code as u16).to_f64(),
            Dtype::F16 => f16::from_bits(code as u16).to_f64(),
            _ => e4m3::decode(code as u8),
        };
        let codes = if dtype == Dtype::F8E4m3 { 0..=0xff } else { 0..=0xffff };
        let mut values: Vec<(f64, u32)> =
            codes.map(|c| (decode(c), c)).filter(|(v, _)| v.is_finite()).collect();
        values.retain(|(v, _)| !(*v == 0.0 && v.is_sign_negative()));
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [before, last] = [values.len() - 2, values.len() - 1].map(|i| values[i].0);
        let overflow =
            if dtype == Dtype::F8E4m3 { f64::INFINITY } else { last + (last - before) / 2.0 };
        Table { values, overflow }
    }

    /// The nearest value; of two the one with an even code.
    pub(crate) fn nearest(&self, x: f64) -> f64 {
        if x.is_nan() || x.abs() >= self.overflow {
            return if x.is_nan() { x } else { f64::INFINITY.copysign(x) };
        }
        let i = self.values.partition_point(|(v, _)| *v < x);
        let near = &self.values[i.saturating_sub(1)..(i + 1).min(self.values.len())];
        let by = |a: &&(f64, u32), b: &&(f64, u32)| {
            (a.0 - x).abs().total_cmp(&(b.0 - x).abs()).then((a.1 & 1).cmp(&(b.1 & 1)))
        };
        near.iter().min_by(by).expect("a value").0
    }
}

fn all_bf16() -> Vec<f64> {
    (0..=u16::MAX).map(|b| bf16::from_bits(b).to_f64()).collect()
}

fn column(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_f64(Dtype::Bf16, shape, values)
}

fn same(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// The op's stored bf16 values are the oracle's, and `native` is inside the bound.
#[track_caller]
fn held<O: Op>(s: Setup<O>, oracle: &[f64], native: &[f32]) {
    let table = Table::of(Dtype::Bf16);
    let values = whole::<O, f64>(&s);
    let mut kernel = s;
    kernel.policy = O::policy(Dtype::F32);
    let balls = whole::<O, Ball<24>>(&kernel);
    let stored = Rounding::nearest(Dtype::Bf16);
    assert!(values.len() == oracle.len() && native.len() == oracle.len() && oracle.len() > 60_000);
    for (i, want) in oracle.iter().enumerate() {
        let (want, got) = (table.nearest(*want), stored.round(values[i]));
        assert!(same(got, want), "{} at {i}: stored {got}, the oracle has {want}", O::NAME);
        let (b, x) = (balls[i], f64::from(native[i]));
        assert!(same(x, b.v) || (x - b.v).abs() <= b.r, "{} at {i}: {x} outside {b:?}", O::NAME);
    }
}

#[test]
fn every_bf16_gate_through_silu() {
    let g = all_bf16();
    let ones = vec![1.0; g.len()];
    let tensors = [("gate", column(&g, &[256, 256])), ("up", column(&ones, &[256, 256]))];
    let oracle: Vec<f64> = g.iter().map(|g| g / (1.0 + (-g).exp())).collect();
    let native: Vec<f32> = g.iter().map(|g| *g as f32).map(|g| g / (1.0 + (-g).exp())).collect();
    held(setup::<SiluMul, 2>(Default::default(), tensors), &oracle, &native);
}

/// Two scores, x and 0: the exponential of x and of -x, and their sum.
#[test]
fn every_bf16_score_through_softmax() {
    let x = all_bf16();
    let pairs: Vec<f64> = x.iter().flat_map(|x| [*x, 0.0]).collect();
    let mut oracle = Vec::new();
    let mut native = Vec::new();
    for x in &x {
        let top = if x.is_nan() { *x } else { x.max(0.0) };
        // A row whose maximum is not finite is NaN; -inf has no weight.
        let (p, q) = match top.is_finite() {
            true => ((x - top).exp(), (-top).exp()),
            false => (f64::NAN, f64::NAN),
        };
        oracle.extend([p / (p + q), q / (p + q)]);
        let (p, q) = match top.is_finite() {
            true => ((*x as f32 - top as f32).exp(), (-top as f32).exp()),
            false => (f32::NAN, f32::NAN),
        };
        native.extend([p / (p + q), q / (p + q)]);
    }
    let s = setup::<Softmax, 1>(Default::default(), [("x", column(&pairs, &[65536, 2]))]);
    held(s, &oracle, &native);
}

/// One element a row: x / sqrt(x^2 + eps), as far as x^2 is finite in f32.
#[test]
fn every_bf16_value_through_rms_norm() {
    let mut x = all_bf16();
    x.iter_mut().filter(|x| x.abs() > 1.8e19).for_each(|x| *x = 1.0);
    let eps = 1e-6;
    let oracle: Vec<f64> = x.iter().map(|x| x / (x * x + eps).sqrt()).collect();
    let scale = |x: f32| 1.0 / (x * x + eps as f32).sqrt();
    let native: Vec<f32> = x.iter().map(|x| *x as f32 * scale(*x as f32)).collect();
    let tensors = [("x", column(&x, &[65536, 1])), ("weight", column(&[1.0], &[1]))];
    held(setup::<RmsNorm, 2>(NormParams::new(eps), tensors), &oracle, &native);
}

#[test]
fn every_bf16_value_plus_nothing() {
    let x = all_bf16();
    let zeros = vec![0.0; x.len()];
    let tensors = [("a", column(&x, &[256, 256])), ("b", column(&zeros, &[256, 256]))];
    let native: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    held(setup::<Add, 2>(Default::default(), tensors), &x, &native);
}

#[test]
fn every_bf16_row_of_an_embedding() {
    let x = all_bf16();
    let ids: Vec<i32> = (0..=65535).rev().collect();
    let tensors = [("ids", Tensor::from_i32(&[65536], &ids)), ("weight", column(&x, &[65536, 1]))];
    let oracle: Vec<f64> = x.iter().rev().copied().collect();
    let native: Vec<f32> = oracle.iter().map(|x| *x as f32).collect();
    held(setup::<Embedding, 2>(Default::default(), tensors), &oracle, &native);
}

/// (x, 0) rotated by one radian a position, at positions where f32 angles are exact.
#[test]
fn every_bf16_value_rotated() {
    let mut x = all_bf16();
    // An infinity times the sine meets the other element's zero.
    x.iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = 1.0);
    for position in [0, 1, 32767] {
        let pairs: Vec<f64> = x.iter().flat_map(|x| [*x, 0.0]).collect();
        let (c, s) = (f64::from(position).cos(), f64::from(position).sin());
        let oracle: Vec<f64> = x.iter().flat_map(|x| [x * c, x * s]).collect();
        let native: Vec<f32> =
            x.iter().flat_map(|x| [*x as f32 * c as f32, *x as f32 * s as f32]).collect();
        let tensors = [
            ("x", column(&pairs, &[1, 65536, 2])),
            ("positions", Tensor::from_i32(&[1], &[position])),
        ];
        held(setup::<Rope, 2>(RopeParams::new(1e6, Angle::F64), tensors), &oracle, &native);
    }
}

/// Every value, every midpoint between neighbours and its two f64 neighbours.
#[test]
fn every_value_and_every_tie_is_rounded_as_the_table_says() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F8E4m3] {
        let (table, rounding) = (Table::of(dtype), Rounding::nearest(dtype));
        let check = |x: f64| {
            let (got, want) = (rounding.round(x), table.nearest(x));
            assert!(got == want, "{dtype} of {x:e}: {got:e}, the table has {want:e}");
        };
        for pair in table.values.windows(2) {
            let (a, b) = (pair[0].0, pair[1].0);
            let tie = a + (b - a) / 2.0;
            [a, tie, tie.next_up(), tie.next_down()].into_iter().for_each(check);
        }
        let last = table.values[table.values.len() - 1].0;
        [last, table.overflow.next_down(), -table.overflow.next_down()].into_iter().for_each(check);
        if table.overflow.is_finite() {
            [table.overflow, -table.overflow, f64::MAX, f64::INFINITY].into_iter().for_each(check);
        }
    }
}

/// What is stored and read again, for all codes: against crate half, and e4m3's definition elsewhere.
#[test]
fn every_code_is_read_as_its_value() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let t = Tensor::from_bytes(dtype, vec![65536], bytes.clone()).expect("all codes");
        for (code, got) in t.to_f64().into_iter().enumerate() {
            let want = match dtype {
                Dtype::Bf16 => bf16::from_bits(code as u16).to_f64(),
                _ => f16::from_bits(code as u16).to_f64(),
            };
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:#x}");
        }
        // Written again, all but the NaNs have their bits.
        let back = Tensor::from_f64(dtype, &[65536], &t.to_f64());
        let nan = |i: usize| t.get(i).is_nan();
        let words = back.bytes().chunks(2).zip(bytes.chunks(2)).enumerate();
        words.filter(|(i, _)| !nan(*i)).for_each(|(i, (a, b))| assert_eq!(a, b, "{dtype} {i:#x}"));
    }
}
