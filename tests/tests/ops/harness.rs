//! What every op is held to: f64 equals the naive value, f32 stays inside the ball, and a tile
//! equals the same elements of the whole.

use approx::abs_diff_eq;
use std::collections::BTreeMap;

use assay_reference::arith::{Ball, Real};
use assay_reference::ops::{Basis, Op, Setup, Tile};
use assay_reference::policy::{At, Transform};
use assay_reference::{Dtype, Rounding, Tensor};
use proptest::test_runner::{Config, FileFailurePersistence};

/// So many cases; failures are kept beside the source, to be committed.
pub(crate) fn config(cases: u32) -> Config {
    let failures = FileFailurePersistence::WithSource("proptest-regressions");
    let failure_persistence = Some(Box::new(failures) as Box<_>);
    Config { cases, failure_persistence, ..Config::default() }
}

/// Seeded values.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// The next word of a splitmix64 sequence.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// Roughly normal of standard deviation `sd`; one in fifty is ten times as large.
    pub(crate) fn value(&mut self, sd: f64) -> f64 {
        let uniform = |w: u64| (w >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        let sum: f64 = (0..4).map(|_| uniform(self.word())).sum();
        let outlier = if self.below(50) == 0 { 10.0 } else { 1.0 };
        sum * sd * 3f64.sqrt() * outlier
    }

    pub(crate) fn tensor(&mut self, dtype: Dtype, shape: &[usize], sd: f64) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| self.value(sd)).collect();
        Tensor::from_f64(dtype, shape, &values)
    }
}

pub(crate) const STORED: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

pub(crate) fn setup<O: Op, const N: usize>(
    params: O::Params,
    tensors: [(&str, Tensor); N],
) -> Setup<O> {
    let tensors = tensors.map(|(name, t)| (name.to_string(), t)).into();
    Setup { params, policy: O::policy(Dtype::F64), tensors }
}

/// The whole output over a basis.
pub(crate) fn whole<O: Op, R: Basis>(setup: &Setup<O>) -> Vec<R> {
    let spec = O::check(&setup.params, &setup.tensors).expect("checked").remove(0);
    let out = setup.eval::<R>(&Tile::ALL).remove(0).data;
    assert_eq!(out.len(), spec.shape.iter().product::<usize>());
    out
}

/// Bits that tell all values apart; every NaN is one.
pub(crate) fn bits(x: &[f64]) -> Vec<u64> {
    x.iter().map(|v| if v.is_nan() { u64::MAX } else { v.to_bits() }).collect()
}

fn near(got: f64, want: f64, scale: f64) -> bool {
    let same = got == want || (got.is_nan() && want.is_nan());
    same || abs_diff_eq!(got, want, epsilon = 1e-13 * scale)
}

/// Holds a setup to its naive values, given with the size of their terms: what cancels in a sum
/// leaves an error of the terms' size.
#[track_caller]
pub(crate) fn holds<O: Op>(setup: &Setup<O>, naive: &[(f64, f64)]) {
    holds_apart(setup, naive, &[]);
}

/// The same, but something at one of the points `apart` may change the order of a sum.
#[track_caller]
pub(crate) fn holds_apart<O: Op>(setup: &Setup<O>, naive: &[(f64, f64)], apart: &[&str]) {
    let oracle = whole::<O, f64>(setup);
    assert_eq!(oracle.len(), naive.len(), "{}", O::NAME);
    let mut kernel = setup.clone();
    kernel.policy.acc = O::policy(Dtype::F32).acc;
    let balls = whole::<O, Ball<24>>(&kernel);
    let fast = whole::<O, f32>(&kernel);
    for (i, &(want, scale)) in naive.iter().enumerate() {
        assert!(near(oracle[i], want, scale), "{} f64 at {i}: {} for {want}", O::NAME, oracle[i]);
        let (ball, got) = (balls[i], f64::from(fast[i]));
        assert!(near(ball.v, want, scale), "{} ball at {i}: {ball:?} for {want}", O::NAME);
        let inside =
            got == ball.v || (got.is_nan() && ball.v.is_nan()) || (got - ball.v).abs() <= ball.r;
        assert!(inside, "{} f32 at {i}: {got} outside {ball:?}", O::NAME);
    }
    tiles_equal_the_whole(setup);
    identities_add_nothing(setup, apart);
}

/// Picked rows and columns, in any order, have the bits of the whole.
#[track_caller]
fn tiles_equal_the_whole<O: Op>(setup: &Setup<O>) {
    let spec = O::check(&setup.params, &setup.tensors).expect("checked").remove(0);
    let (rows, cols) = (spec.rows(), spec.cols());
    let mut draw = Draw::new((rows * 31 + cols) as u64);
    let mut pick = |n: usize| (0..n.min(3)).map(|_| draw.below(n)).collect::<Vec<_>>();
    for (r, c) in [(true, true), (true, false), (false, true)] {
        let tile = Tile { rows: r.then(|| pick(rows)), cols: c.then(|| pick(cols)) };
        check_tile::<O, f32>(setup, &tile, cols);
        check_tile::<O, f64>(setup, &tile, cols);
    }
}

fn check_tile<O: Op, R: Basis>(setup: &Setup<O>, tile: &Tile, cols: usize) {
    let all: Vec<f64> = whole::<O, R>(setup).into_iter().map(Real::value).collect();
    let part: Vec<f64> =
        setup.eval::<R>(tile).remove(0).data.into_iter().map(Real::value).collect();
    let rows = tile.rows_of(all.len() / cols);
    let columns = tile.cols_of(cols);
    let want: Vec<f64> = rows
        .iter()
        .flat_map(|r| columns.iter().map(move |c| (r, c)))
        .map(|(r, c)| all[r * cols + c])
        .collect();
    assert_eq!(bits(&part), bits(&want), "{} tile {tile:?}", O::NAME);
}

/// A transform that does nothing at every point changes no bit.
#[track_caller]
fn identities_add_nothing<O: Op>(setup: &Setup<O>, apart: &[&str]) {
    let plain = whole::<O, f64>(setup);
    let mut busy = setup.clone();
    for point in O::POINTS.iter().filter(|p| !apart.contains(p)) {
        busy.policy.at(point, Transform::Round(Rounding::nearest(Dtype::F64)));
        busy.policy.at(point, Transform::Scale { at: At::Range(0..0), by: 0.0 });
    }
    assert_eq!(bits(&plain), bits(&whole::<O, f64>(&busy)), "{}", O::NAME);
}

/// The output over f64 and over the bound, both rounded as the policy stores them.
fn stored<O: Op>(setup: &Setup<O>) -> (Vec<f64>, Vec<Ball<24>>) {
    let (output, lambda) = (setup.policy.output, setup.policy.lambda);
    let exact = whole::<O, f64>(setup).into_iter().map(|v| output.round(v)).collect();
    let balls = whole::<O, Ball<24>>(setup).into_iter().map(|b| b.round(output, lambda)).collect();
    (exact, balls)
}

fn outside(got: f64, ball: &Ball<24>) -> bool {
    let inside = (got - ball.v).abs() <= ball.r;
    !(inside || got == ball.v || (got.is_nan() && ball.v.is_nan()))
}

/// Every fault of the cases' catalogues changes what is stored by more than the bound in some case:
/// one that never does could not be found, and would only be in the way.
#[track_caller]
pub(crate) fn every_fault_shows<O: Op>(cases: impl IntoIterator<Item = Setup<O>>) {
    let mut shown: BTreeMap<String, bool> = BTreeMap::new();
    for case in cases {
        O::check(&case.params, &case.tensors).expect("checked");
        let (_, balls) = stored(&case);
        for fault in O::faults(&case.params, &case.tensors) {
            let name = format!("{} {} {}", fault.code, fault.slug, fault.key);
            let mut wrong = case.clone();
            (fault.edit)(&mut wrong);
            let (got, _) = stored(&wrong);
            let differs = got.iter().zip(&balls).any(|(g, b)| outside(*g, b));
            *shown.entry(name).or_default() |= differs;
        }
    }
    let silent: Vec<_> = shown.iter().filter(|(_, s)| !**s).map(|(n, _)| n).collect();
    assert!(!shown.is_empty() && silent.is_empty(), "{}: {silent:?} change nothing", O::NAME);
}

/// Every choice of every knob but the defaults changes the setup, changes the stored bits of some
/// case over f32, and keeps its own f32 result inside its own bound.
#[track_caller]
pub(crate) fn every_choice_is_reachable<O: Op>(cases: impl IntoIterator<Item = Setup<O>>) {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    for case in cases {
        O::check(&case.params, &case.tensors).expect("checked");
        for knob in O::knobs(&case.params) {
            let mut plain = None;
            for (i, choice) in knob.choices.iter().enumerate() {
                let mut set = case.clone();
                (choice.edit)(&mut set);
                let output = set.policy.output;
                let fast = whole::<O, f32>(&set).into_iter();
                let fast: Vec<f64> = fast.map(|x| output.round(x.into())).collect();
                let (_, balls) = stored(&set);
                for (at, (got, ball)) in fast.iter().zip(&balls).enumerate() {
                    let what = format!("{} {}={}", O::NAME, knob.name, choice.value);
                    assert!(!outside(*got, ball), "{what} at {at}: {got} outside {ball:?}");
                }
                let default = plain.get_or_insert_with(|| fast.clone());
                let differs = i == 0 || bits(default) != bits(&fast);
                *reached.entry(format!("{}={}", knob.name, choice.value)).or_default() |= differs;
            }
        }
    }
    let idle: Vec<_> = reached.iter().filter(|(_, r)| !**r).map(|(n, _)| n).collect();
    assert!(!reached.is_empty() && idle.is_empty(), "{}: {idle:?} change nothing", O::NAME);
}
