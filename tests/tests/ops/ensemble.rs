//! Every bound against an ensemble of legitimate implementations in plain f32: none is outside the hard
//! radius or the statistical limit, and the worst of them comes near enough to the limit that one that
//! is far too wide would show.

use assay_reference::arith::Ball;
use assay_reference::ops::attention::{Attention, Combine, Params as AttentionParams};
use assay_reference::ops::gptq_dequant::{Format, GptqDequant, Params as Gptq};
use assay_reference::ops::matmul::{Matmul, Params as MatmulParams};
use assay_reference::ops::quant_gemm::{GptqGemm, Params as GemmParams};
use assay_reference::ops::rms_norm::{Params as NormParams, RmsNorm};
use assay_reference::ops::rope::{Angle, Params as RopeParams, Rope};
use assay_reference::ops::silu_mul::SiluMul;
use assay_reference::ops::softmax::Softmax;
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};

use crate::harness::{Draw, setup, whole};
use crate::plain_f32::{Pass, styles};

/// Standard deviations of the statistical limit: 1e-6 false alarms in 2e7 comparisons.
#[expect(clippy::disallowed_methods, reason = "a constant")]
fn lambda() -> f64 {
    (2.0 * (2.0 * 2e7 / 1e-6f64).ln()).sqrt()
}

/// Errors of an op's implementations as fractions of its limits.
struct Tally {
    op: &'static str,
    implementations: usize,
    hard: f64,
    limit: Vec<f64>,
}

impl Tally {
    fn new(op: &'static str) -> Tally {
        Tally { op, implementations: 0, hard: 0.0, limit: Vec::new() }
    }

    /// One implementation's output against the bound.
    fn add(&mut self, balls: &[Ball<24>], got: &[f32], what: &str) {
        assert_eq!(balls.len(), got.len());
        self.implementations += 1;
        for (i, (b, got)) in balls.iter().zip(got).enumerate() {
            let error = (f64::from(*got) - b.v).abs();
            let (r, limit) = (b.r, b.radius(lambda()));
            assert!(
                error <= r,
                "{} {what} at {i}: {error:e} beyond the hard {r:e}, {b:?}",
                self.op
            );
            assert!(error <= limit, "{} {what} at {i}: {error:e} beyond {limit:e}, {b:?}", self.op);
            if limit > 0.0 {
                self.hard = self.hard.max(error / r);
                self.limit.push(error / limit);
            }
        }
    }

    /// `op | implementations | elements | median, 99.9 % and largest share of the limit | of the hard`.
    fn row(&mut self) -> String {
        self.limit.sort_by(f64::total_cmp);
        let n = self.limit.len();
        let at = |share: f64| self.limit[((n - 1) as f64 * share) as usize];
        format!(
            "| {} | {} | {n} | {:.4} | {:.3} | {:.3} | {:.3} |",
            self.op,
            self.implementations,
            at(0.5),
            at(0.999),
            at(1.0),
            self.hard
        )
    }

    fn finish(mut self) -> String {
        let row = self.row();
        let worst = self.limit.last().copied().unwrap_or(0.0);
        assert!(worst >= 0.04, "the limit is more than 25 times too wide: {row}");
        row
    }
}

fn f32s(t: &Tensor) -> Vec<f32> {
    t.to_f64().into_iter().map(|x| x as f32).collect()
}

/// The bound of outputs that are not yet rounded.
fn balls<O: Op>(mut s: Setup<O>) -> Vec<Ball<24>> {
    s.policy = O::policy(Dtype::F32);
    s.policy.lambda = lambda();
    whole::<O, Ball<24>>(&s)
}

/// Normal values; all positive; small; with one channel in fifty ten times as large.
fn draw(draw: &mut Draw, family: usize, shape: &[usize]) -> Tensor {
    let t = draw.tensor(Dtype::Bf16, shape, [1.0, 1.0, 0.02, 4.0][family % 4]);
    if family % 4 == 1 { t.map(|_, x| x.abs()) } else { t }
}

fn matmuls(seeds: u64, sizes: &[usize]) -> String {
    let mut tally = Tally::new("matmul");
    for (seed, &k) in (0..seeds).flat_map(|s| sizes.iter().map(move |k| (s, k))) {
        let (m, n) = (2, 4);
        let mut d = Draw::new(seed * 31 + k as u64);
        let x = draw(&mut d, seed as usize, &[m, k]);
        let w = draw(&mut d, seed as usize % 2, &[n, k]);
        let b = balls(setup::<Matmul, 2>(
            MatmulParams::default(),
            [("x", x.clone()), ("weight", w.clone())],
        ));
        let (x, w) = (f32s(&x), f32s(&w));
        for s in styles() {
            let one = |x: &[f32]| w.chunks(k).map(|w| s.dot(x, w)).collect::<Vec<_>>();
            let got: Vec<f32> = x.chunks(k).flat_map(one).collect();
            tally.add(&b, &got, &format!("K {k} seed {seed} {s:?}"));
        }
    }
    tally.finish()
}

fn softmaxes(seeds: u64, sizes: &[usize]) -> String {
    let mut tally = Tally::new("softmax");
    for (seed, &n) in (0..seeds).flat_map(|s| sizes.iter().map(move |n| (s, n))) {
        let x = draw(&mut Draw::new(seed * 77 + n as u64), seed as usize, &[3, n]);
        let b = balls(setup::<Softmax, 1>(Default::default(), [("x", x.clone())]));
        let x = f32s(&x);
        for s in styles() {
            for online in [None, Some(1), Some(16), Some(48), Some(128)] {
                let got: Vec<f32> = x.chunks(n).flat_map(|x| s.softmax(x, online)).collect();
                tally.add(&b, &got, &format!("{n} seed {seed} {s:?} {online:?}"));
            }
        }
    }
    tally.finish()
}

fn norms(seeds: u64, sizes: &[usize]) -> String {
    let mut tally = Tally::new("rms_norm");
    for (seed, &n) in (0..seeds).flat_map(|s| sizes.iter().map(move |n| (s, n))) {
        let mut d = Draw::new(seed * 13 + n as u64);
        let (x, w) = (draw(&mut d, seed as usize, &[2, n]), draw(&mut d, 0, &[n]));
        let params = NormParams::new(1e-6);
        let b = balls(setup::<RmsNorm, 2>(params, [("x", x.clone()), ("weight", w.clone())]));
        let (x, w) = (f32s(&x), f32s(&w));
        for s in styles() {
            let got: Vec<f32> = x.chunks(n).flat_map(|x| s.rms_norm(x, &w, 1e-6)).collect();
            tally.add(&b, &got, &format!("{n} seed {seed} {s:?}"));
        }
    }
    tally.finish()
}

fn gated(seeds: u64) -> String {
    let mut tally = Tally::new("silu_mul");
    for seed in 0..seeds {
        let mut d = Draw::new(seed + 900);
        let (g, u) = (draw(&mut d, 3 * seed as usize, &[2, 500]), draw(&mut d, 0, &[2, 500]));
        let b = balls(setup::<SiluMul, 2>(
            Default::default(),
            [("gate", g.clone()), ("up", u.clone())],
        ));
        let (g, u) = (f32s(&g), f32s(&u));
        for s in styles() {
            let got: Vec<f32> = g.iter().zip(&u).map(|(g, u)| s.silu(*g) * u).collect();
            tally.add(&b, &got, &format!("seed {seed} {s:?}"));
        }
    }
    tally.finish()
}

fn ropes(seeds: u64) -> String {
    let mut tally = Tally::new("rope");
    let (theta, d) = (1e6, 128);
    for seed in 0..seeds {
        let position = [1, 300, 32_767, 131_071][seed as usize % 4];
        let x = draw(&mut Draw::new(seed + 40), 0, &[1, 4, d]);
        let positions = Tensor::from_i32(&[1], &[position]);
        let params = RopeParams::new(theta, Angle::F32);
        let b = balls(setup::<Rope, 2>(params, [("x", x.clone()), ("positions", positions)]));
        for s in styles() {
            tally.add(&b, &s.rope(&f32s(&x), position, theta, d), &format!("at {position} {s:?}"));
        }
    }
    tally.finish()
}

const PASSES: [Pass; 9] = [
    Pass::Two,
    Pass::Online { block: 1, reversed: false, lazy: 0.0 },
    Pass::Online { block: 16, reversed: false, lazy: 0.0 },
    Pass::Online { block: 32, reversed: true, lazy: 0.0 },
    Pass::Online { block: 48, reversed: false, lazy: 5.545 },
    Pass::Online { block: 128, reversed: false, lazy: 0.0 },
    Pass::Split(2),
    Pass::Split(8),
    Pass::Merged(4),
];

/// (T = 1, S, q and k of this sd) and whether scores rise with the position.
fn attentions(seeds: u64, sizes: &[usize]) -> Vec<String> {
    let mut tallies = [Tally::new("attention"), Tally::new("attention combine=lse")];
    let d = 32;
    for (seed, &n) in (0..seeds).flat_map(|s| sizes.iter().map(move |n| (s, n))) {
        let mut r = Draw::new(seed * 5 + n as u64);
        let family = seed as usize;
        let sd = [1.0, 0.2, 2.5][family % 3];
        let q = r.tensor(Dtype::Bf16, &[1, 1, d], sd);
        let mut k = r.tensor(Dtype::Bf16, &[n, 1, d], sd);
        let mut v = r.tensor(Dtype::Bf16, &[n, 1, d], 1.0);
        if family % 4 == 2 {
            // Maxima that grow all the way, and values that lean to one side.
            let sign = q.to_f64();
            k = k.map(|i, x| x + sign[i % d].signum() * (i / d) as f64 / n as f64);
            v = v.map(|_, x| x + 4.0);
        }
        let scale = 1.0 / (d as f64).sqrt();
        let rows = |t: &Tensor| f32s(t).chunks(d).map(<[f32]>::to_vec).collect::<Vec<_>>();
        let (fq, fk, fv) = (f32s(&q), rows(&k), rows(&v));
        for combine in [Combine::Factor, Combine::Lse] {
            let params = AttentionParams { combine, ..AttentionParams::new(scale) };
            let tensors = [("q", q.clone()), ("k", k.clone()), ("v", v.clone())];
            let b = balls(setup::<Attention, 3>(params, tensors));
            let lse = combine == Combine::Lse;
            for pass in PASSES.into_iter().filter(|p| matches!(p, Pass::Merged(_)) == lse) {
                for s in styles() {
                    let got = s.attention(&fq, &fk, &fv, scale as f32, pass);
                    tallies[usize::from(lse)].add(
                        &b,
                        &got,
                        &format!("{n} seed {seed} {s:?} {pass:?}"),
                    );
                }
            }
        }
    }
    tallies.into_iter().map(Tally::finish).collect()
}

/// 4-bit weights with a scale and a zero point for each group of 32: scaled one by one, or a group's sum
/// scaled, its zero point taken from each weight or from the sum of the activations.
fn quantised(seeds: u64, sizes: &[usize]) -> String {
    let mut tally = Tally::new("gptq_gemm edge=f32");
    let (n, group) = (8, 32);
    for (seed, &k) in (0..seeds).flat_map(|s| sizes.iter().map(move |k| (s, k))) {
        let mut d = Draw::new(seed * 3 + k as u64);
        let groups = k / group;
        let nibbles =
            |d: &mut Draw, len: usize| -> Vec<u32> { (0..len).map(|_| d.word() as u32).collect() };
        let (qw, qz) = (nibbles(&mut d, k / 8 * n), nibbles(&mut d, groups * n / 8));
        let words = |w: &[u32], shape: &[usize]| {
            let values: Vec<i32> = w.iter().map(|w| *w as i32).collect();
            Tensor::from_i32(shape, &values)
        };
        let scales = d.tensor(Dtype::F16, &[groups, n], 0.01);
        let x = draw(&mut d, seed as usize, &[1, k]);
        let mut params =
            GemmParams::<Gptq>::new::<GptqDequant>(Gptq::new(Format::V2, group as i64));
        params.edge_f32 = true;
        let b = balls(setup::<GptqGemm, 4>(
            params,
            [
                ("x", x.clone()),
                ("qweight", words(&qw, &[k / 8, n])),
                ("qzeros", words(&qz, &[groups, n / 8])),
                ("scales", scales.clone()),
            ],
        ));
        let (x, scales) = (f32s(&x), f32s(&scales));
        let q = |i: usize, c: usize| (qw[i / 8 * n + c] >> (4 * (i % 8)) & 15) as f32;
        let z = |g: usize, c: usize| (qz[g * n / 8 + c / 8] >> (4 * (c % 8)) & 15) as f32;
        for s in styles() {
            for form in ["weight", "group", "group, zero apart"] {
                let column = |c: usize| -> f32 {
                    if form == "weight" {
                        let w: Vec<f32> = (0..k)
                            .map(|i| (q(i, c) - z(i / group, c)) * scales[i / group * n + c])
                            .collect();
                        return s.dot(&x, &w);
                    }
                    let sums: Vec<f32> = (0..groups)
                        .map(|g| {
                            let part = &x[g * group..(g + 1) * group];
                            let apart = form != "group";
                            let codes: Vec<f32> = (g * group..(g + 1) * group)
                                .map(|i| q(i, c) - if apart { 0.0 } else { z(g, c) })
                                .collect();
                            let sum = s.dot(part, &codes);
                            let sum = if apart { sum - z(g, c) * s.sum(part) } else { sum };
                            sum * scales[g * n + c]
                        })
                        .collect();
                    s.sum(&sums)
                };
                let got: Vec<f32> = (0..n).map(column).collect();
                tally.add(&b, &got, &format!("K {k} seed {seed} {s:?} by {form}"));
            }
        }
    }
    tally.finish()
}

/// All positive terms, then all negative ones: no kernel sums so, and the statistical limit does not
/// cover it. Returns the largest share of the limit and of the hard radius.
fn by_sign(k: usize) -> (f64, f64) {
    let mut d = Draw::new(k as u64);
    let (x, w) = (draw(&mut d, 0, &[1, k]), draw(&mut d, 0, &[16, k]));
    let tensors = [("x", x.clone()), ("weight", w.clone())];
    let b = balls(setup::<Matmul, 2>(MatmulParams::default(), tensors));
    let (x, w) = (f32s(&x), f32s(&w));
    let mut worst = (0.0f64, 0.0f64);
    for (w, b) in w.chunks(k).zip(b) {
        let products = || x.iter().zip(w).map(|(x, w)| x * w);
        let up: f32 = products().filter(|t| *t > 0.0).sum();
        let down: f32 = products().filter(|t| *t < 0.0).sum();
        let error = (f64::from(up + down) - b.v).abs();
        worst = (worst.0.max(error / b.radius(lambda())), worst.1.max(error / b.r));
    }
    worst
}

#[test]
fn legitimate_implementations_are_inside_their_limits() {
    matmuls(3, &[3, 64, 1000]);
    softmaxes(3, &[2, 50, 300]);
    norms(3, &[64, 896]);
    gated(2);
    ropes(4);
    attentions(4, &[2, 70]);
    quantised(3, &[256]);
}

#[test]
#[ignore = "half a minute: cargo test -p assay-tests --test ops at_length -- --ignored --nocapture"]
#[expect(clippy::print_stdout, reason = "the table is recorded in docs/runs")]
fn legitimate_implementations_are_inside_their_limits_at_length() {
    println!(
        "| op | implementations | elements | median | 99.9 % | largest | of the hard radius |"
    );
    println!("|---|---|---|---|---|---|---|");
    println!("{}", matmuls(8, &[5, 64, 1000, 4096, 18944]));
    println!("{}", quantised(8, &[256, 4096]));
    println!("{}", softmaxes(8, &[2, 50, 300, 4096]));
    println!("{}", norms(8, &[64, 128, 896, 5120]));
    println!("{}", gated(8));
    println!("{}", ropes(16));
    attentions(12, &[2, 17, 300, 1500]).iter().for_each(|row| println!("{row}"));
    let (limit, hard) = by_sign(18944);
    println!("\nBy sign at K = 18944: {limit:.1} of the limit, {hard:.4} of the hard radius.");
    assert!(hard <= 1.0);
}
