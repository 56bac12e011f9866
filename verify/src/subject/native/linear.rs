//! y = x W^T + b with one thing or nothing wrong: `matmul`, and the product of the quantised linear
//! layers.

use std::ops::Range;

use assay_reference::{Dtype, Result, Tensor};
use serde_json::Value;

use super::chain::{Narrow, Rows};
use super::grouped::Grouped;
use super::run::Run;
use super::scalar::{Store, floats};
use super::{Chain, Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[
    ("bias", &["in_accumulator", "after_store"]),
    ("partials", &["1", "2", "4", "8", "4_stored", "8_stored"]),
];

pub(super) const FAULTS: &[Known] = &[
    ("k_tail_dropped", Keys::Number),
    ("k_limit", Keys::Number),
    ("k_range_repeated", Keys::Number),
    ("k_range_dropped", Keys::Number),
    ("k_strided", Keys::OneOf(&["even", "odd"])),
    ("accumulator_bf16", Keys::Number),
    ("accumulator_f16", Keys::Number),
    ("bias_dropped", Keys::None),
    ("bias_by_row", Keys::None),
    ("bias_times_ranks", Keys::Number),
    ("weight_transposed", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("inputs_via_bf16", Keys::OneOf(&["nearest", "toward zero"])),
    ("subnormals_flushed", Keys::None),
    ("alpha_ignored", Keys::Any),
    ("split_k_stored", Keys::Number),
    ("gain", Keys::Number),
];

/// `matmul`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let (x, weight) = (run.arg("x")?, run.arg("weight")?);
    let narrow = |t: &Tensor| matches!(t.dtype(), Dtype::Bf16 | Dtype::F16);
    let &[rows, cols] = weight.shape() else {
        return run.refuse("weight must have two dimensions");
    };
    let in_out = run.param("layout").as_str() == Some("in_out");
    let (n, k) = if in_out { (cols, rows) } else { (rows, cols) };
    let data = floats(weight, "weight")?;
    // Memory of [N, K] taken for [K, N] needs no transposition.
    let straight = in_out || run.is("weight_transposed");
    let weight = if straight { data } else { transposed(&data, n, k) };
    let exact = narrow(x) && narrow(run.arg("weight")?);
    Layer { run: *run, params: &run.case.params, n, k, weight, exact, grouped: None }.output()
}

/// [rows, cols] as [cols, rows].
pub(super) fn transposed(data: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; data.len()];
    for (r, row) in data.chunks_exact(cols.max(1)).enumerate() {
        row.iter().enumerate().for_each(|(c, x)| out[c * rows + r] = *x);
    }
    out
}

/// A linear layer whose weight is at hand.
pub(super) struct Layer<'a> {
    pub(super) run: Run<'a>,
    /// The params of the product.
    pub(super) params: &'a Value,
    pub(super) n: usize,
    pub(super) k: usize,
    /// [K, N].
    pub(super) weight: Vec<f32>,
    /// Whether products need no rounding in f32, so that fused and unfused are the same.
    pub(super) exact: bool,
    /// Sums by group with the scale applied to each, instead of a weight.
    pub(super) grouped: Option<Grouped>,
}

/// What does the sums.
#[derive(Clone, Copy)]
enum Summer {
    Chain(Chain),
    Narrow(Narrow),
}

impl Layer<'_> {
    /// The layer's output for the case's `x` and `bias`.
    pub(super) fn output(self) -> Result<Tensor> {
        let x = self.run.floats("x")?;
        self.output_of(x)
    }

    /// The same for an `x` that has been changed on the way.
    pub(super) fn output_of(mut self, mut x: Vec<f32>) -> Result<Tensor> {
        self.damage_inputs(&mut x);
        self.product(x)
    }

    /// The layer's output for an `x` that is at hand, [M, K].
    fn product(&self, x: Vec<f32>) -> Result<Tensor> {
        let run = self.run;
        let mut shape = run.arg("x")?.shape().to_vec();
        if shape.last() != Some(&self.k) {
            return run.refuse(format!("x must be [..., {}], is {shape:?}", self.k));
        }
        *shape.last_mut().expect("not empty") = self.n;
        let (parts, bias) = (self.parts(), self.bias()?);
        let mut out = Vec::with_capacity(x.len() / self.k * self.n);
        for (m, x) in x.chunks_exact(self.k).enumerate() {
            if run.is("bias_by_row") && !bias.is_empty() {
                out.extend(self.row(x, &parts, &vec![bias[m % self.n]; self.n]));
            } else {
                out.extend(self.row(x, &parts, &bias));
            }
        }
        run.output(&shape, out)
    }

    /// One row of the output, before it is stored.
    fn row(&self, x: &[f32], parts: &[Vec<u32>], bias: &[f32]) -> Vec<f32> {
        if let Some(grouped) = &self.grouped {
            let mut sums = grouped.row(self.run.chain(), x, self.n);
            self.finish(0, 1, bias, &mut sums);
            return sums;
        }
        let summer = self.summer();
        let rows = Rows { data: &self.weight, stride: self.n, first: 0 };
        let mut total = vec![0.0; self.n];
        let mut sums = vec![0.0; self.n];
        for (rank, index) in parts.iter().enumerate() {
            match summer {
                Summer::Chain(chain) => chain.weighted(index, x, rows, &mut sums),
                Summer::Narrow(narrow) => narrow.weighted(index, x, rows, &mut sums),
            }
            self.finish(rank, parts.len(), bias, &mut sums);
            let last = rank + 1 == parts.len();
            for (t, s) in total.iter_mut().zip(&sums) {
                *t = if rank == 0 { *s } else { *t + *s };
                if rank > 0 && !last && self.reduce_stored() {
                    *t = self.run.stored(*t);
                }
            }
        }
        total
    }

    /// What follows a rank's sums: factors, the bias, and its store if there are other ranks.
    fn finish(&self, rank: usize, ranks: usize, bias: &[f32], sums: &mut [f32]) {
        let run = self.run;
        run.amplify("accumulated", sums);
        if let Some(alpha) = self.params["alpha"].as_f64().filter(|a| *a != 1.0) {
            let scaled = match run.key("alpha_ignored") {
                None => self.n,
                Some(_) => run.count("alpha_ignored").unwrap_or(0).min(self.n),
            };
            sums[..scaled].iter_mut().for_each(|s| *s *= alpha as f32);
        }
        let times = match run.count("bias_times_ranks") {
            // Every rank adds it.
            Some(n) if n == ranks => 1.0,
            Some(n) if rank == 0 => n as f32,
            _ if rank == 0 => 1.0,
            _ => 0.0,
        };
        if !bias.is_empty() && times > 0.0 {
            let after_store = run.chose("bias", "after_store") && !run.is("split_k_stored");
            for (s, b) in sums.iter_mut().zip(bias) {
                *s = if after_store { run.stored(*s) } else { *s } + times * *b;
            }
        }
        if ranks > 1 {
            sums.iter_mut().for_each(|s| *s = run.stored(*s));
        }
    }

    fn reduce_stored(&self) -> bool {
        self.run.choice("partials").is_some_and(|p| p.ends_with("_stored"))
    }

    /// The indices of the terms, for each rank.
    fn parts(&self) -> Vec<Vec<u32>> {
        let run = self.run;
        let by_knob = run.choice("partials").and_then(|p| p.split('_').next()?.parse().ok());
        let n: usize = run.count("split_k_stored").or(by_knob).unwrap_or(1).max(1);
        let size = self.k.div_ceil(n).max(1);
        let terms = self.terms();
        let part = |r: Range<usize>| {
            terms.iter().copied().filter(|&i| r.contains(&(i as usize))).collect::<Vec<_>>()
        };
        let ordered = |index: Vec<u32>| match self.summer() {
            Summer::Chain(chain) => chain.arrange(index),
            Summer::Narrow(_) => index,
        };
        (0..n).map(|r| ordered(part(r * size..((r + 1) * size).min(self.k)))).collect()
    }

    /// The indices of the terms that enter the sum.
    fn terms(&self) -> Vec<u32> {
        let (run, k) = (self.run, self.k);
        let tile = |slug: &str| run.count(slug).unwrap_or(1).max(1);
        let end_tile = |slug: &str| match run.key(slug) {
            Some(key) if key.starts_with("first") => 0..tile(slug).min(k),
            _ => (k.max(1) - 1) / tile(slug) * tile(slug)..k,
        };
        let all = |r: Range<usize>| r.map(|i| i as u32);
        match &run.native.fault {
            Some((slug, key)) => match slug.as_str() {
                "k_tail_dropped" => all(0..k / tile(slug) * tile(slug)).collect(),
                "k_limit" => all(0..k.min(tile(slug))).collect(),
                "k_range_repeated" => all(0..k).chain(all(end_tile(slug))).collect(),
                "k_range_dropped" => {
                    let lost = end_tile(slug);
                    all(0..k).filter(|i| !lost.contains(&(*i as usize))).collect()
                }
                "k_strided" => {
                    let lost = u32::from(key == "odd");
                    all(0..k).filter(|i| i % 2 != lost).collect()
                }
                _ => all(0..k).collect(),
            },
            None => all(0..k).collect(),
        }
    }

    fn summer(&self) -> Summer {
        let run = self.run;
        for (slug, dtype) in [("accumulator_bf16", Dtype::Bf16), ("accumulator_f16", Dtype::F16)] {
            if let (Some(key), Some(every)) = (run.key(slug), run.count(slug)) {
                return Summer::Narrow(Narrow { dtype, every, fma: !key.contains("unfused") });
            }
        }
        let chain = *run.chain();
        Summer::Chain(Chain { fma: chain.fma && !self.exact, ..chain })
    }

    /// The bias; empty if there is none.
    fn bias(&self) -> Result<Vec<f32>> {
        let run = self.run;
        if !run.case.tensors.contains_key("bias") || run.is("bias_dropped") {
            return Ok(Vec::new());
        }
        run.floats("bias")
    }

    /// Conversions of x and the weight that should not be.
    fn damage_inputs(&mut self, x: &mut [f32]) {
        let run = self.run;
        let all = x.iter_mut().chain(&mut self.weight);
        if let Some(key) = run.key("inputs_via_bf16") {
            let store = if key == "nearest" { Store::Nearest } else { Store::Truncate };
            all.for_each(|v| *v = store.round(Dtype::Bf16, *v));
        } else if run.is("subnormals_flushed") {
            all.filter(|v| v.abs() < 6.103_515_6e-5).for_each(|v| *v = 0.0);
        }
    }
}
