//! `rms_norm`: y = x / sqrt(mean(x^2) + eps) weight, row by row.

use assay_reference::{Dtype, Result, Tensor};

use super::chain::{Narrow, Rows};
use super::run::Run;
use super::scalar::Store;
use super::{Chain, Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[("normalised", &["f32", "stored"])];

pub(super) const FAULTS: &[Known] = &[
    ("wrong_eps", Keys::Number),
    ("skipped", Keys::None),
    ("weight_plus_one", Keys::None),
    ("weight_ignored", Keys::None),
    ("half_lanes", Keys::OneOf(&["lower", "upper", "lower, vectors of 8", "upper, vectors of 8"])),
    ("lanes_counted_twice", Keys::OneOf(&["lower", "upper"])),
    ("tail_dropped", Keys::Number),
    ("centred", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("row_stride_ignored", Keys::None),
    ("tail_overwrites_next_row", Keys::Number),
    ("mean_over_padded_width", Keys::Any),
    ("rsqrt_one_newton_step", Keys::None),
    ("weight_bf16", Keys::None),
    ("sum_bf16", Keys::Number),
    ("sum_f16", Keys::Number),
    ("gain", Keys::Number),
];

/// `rms_norm`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let shape = run.arg("x")?.shape();
    let d = run.arg("weight")?.len();
    let (rows, shape) = heads(run, shape)?;
    let norm = Norm::new(run, run.floats("weight")?, d)?;
    let out = norm.rows(&run.floats("x")?, &rows);
    run.output(&shape, out)
}

/// The memory row of each output row, and the output's shape: some kernels normalise only the first
/// heads of a fused buffer.
fn heads(run: &Run<'_>, shape: &[usize]) -> Result<(Vec<usize>, Vec<usize>)> {
    let (d, outer) = shape.split_last().map_or((&1, &[] as &[usize]), |(d, outer)| (d, outer));
    let all = outer.iter().product::<usize>();
    let Some(heads) = run.param("heads").as_u64().map(|h| h as usize) else {
        return Ok(((0..all).collect(), shape.to_vec()));
    };
    let &[tokens, hall] = outer else { return run.refuse("x must be [T, H, D] with `heads`") };
    let strided = |r: usize| r / heads * hall + r % heads;
    let row = |r: usize| if run.is("row_stride_ignored") { r } else { strided(r) };
    Ok(((0..tokens * heads).map(row).collect(), vec![tokens, heads, *d]))
}

/// A norm with its weight.
pub(super) struct Norm<'a> {
    run: Run<'a>,
    /// What the normalised value is multiplied by.
    weight: Vec<f32>,
    eps: f32,
    d: usize,
    /// Indices whose squares enter the mean.
    index: Vec<u32>,
    /// What the sum of squares is divided by.
    count: f32,
    chain: Chain,
}

impl<'a> Norm<'a> {
    pub(super) fn new(run: &Run<'a>, mut weight: Vec<f32>, d: usize) -> Result<Norm<'a>> {
        let eps = match run.number("wrong_eps") {
            Some(eps) => eps,
            None => run.required("eps")?,
        };
        weight.iter_mut().for_each(|w| {
            *w = match () {
                () if run.is("weight_plus_one") => 1.0 + *w,
                () if run.is("weight_ignored") => 1.0,
                () if run.is("weight_bf16") => Store::Nearest.round(Dtype::Bf16, *w),
                () => *w,
            }
        });
        let in_lanes = |key: Option<&str>, i: usize| {
            let Some(key) = key else { return false };
            let vectors = key.ends_with("vectors of 8") && d.is_multiple_of(8);
            let lane = if vectors { i / 8 % 64 } else { i % 64 };
            (lane < 32) == key.starts_with("lower")
        };
        let whole = run.count("tail_dropped").map_or(d, |tile| d / tile.max(1) * tile.max(1));
        let half = run.key("half_lanes");
        let twice = run.key("lanes_counted_twice");
        let mut index: Vec<u32> = Vec::with_capacity(d);
        for i in (0..whole).filter(|i| half.is_none() || in_lanes(half, *i)) {
            index.push(i as u32);
            if in_lanes(twice, i) {
                index.push(i as u32);
            }
        }
        let count = match run.key("mean_over_padded_width") {
            Some("power of two") => d.next_power_of_two(),
            Some(key) => match super::run::number(key) {
                Some(width) if width >= 1.0 => d.next_multiple_of(width as usize),
                _ => {
                    return run
                        .refuse(format!("fault mean_over_padded_width: no width in `{key}`"));
                }
            },
            None => d,
        };
        let chain = *run.chain();
        let index = chain.arrange(index);
        Ok(Norm { run: *run, weight, eps: eps as f32, d, index, count: count as f32, chain })
    }

    /// The normalised rows of x, before they are stored.
    pub(super) fn rows(&self, x: &[f32], rows: &[usize]) -> Vec<f32> {
        let (run, d) = (self.run, self.d);
        let mut out = Vec::with_capacity(rows.len() * d);
        let vector = run.count("tail_overwrites_next_row").unwrap_or(1).max(1);
        let spill = if d % vector == 0 { 0 } else { (vector - d % vector).min(d) };
        let mut before = 0.0;
        for (r, &at) in rows.iter().enumerate() {
            let x = &x[at * d..][..d];
            if run.is("skipped") {
                out.extend_from_slice(x);
                continue;
            }
            let mean = if run.is("centred") { self.mean(x) } else { 0.0 };
            let centred: Vec<f32> = x.iter().map(|v| v - mean).collect();
            let inverse = self.inverse(&centred);
            for (c, (v, w)) in centred.iter().zip(&self.weight).enumerate() {
                let factor = if r > 0 && c < spill { before } else { inverse };
                out.push(run.stored_if("normalised", "stored", v * factor) * w);
            }
            before = inverse;
        }
        out
    }

    fn mean(&self, x: &[f32]) -> f32 {
        self.chain.sum(x) / self.d as f32
    }

    /// 1 / sqrt(mean of squares + eps).
    fn inverse(&self, x: &[f32]) -> f32 {
        let run = self.run;
        let narrow = |slug, dtype| {
            run.count(slug).map(|every| {
                let rows = Rows { data: x, stride: 1, first: 0 };
                let index: Vec<u32> = (0..x.len() as u32).collect();
                let mut out = [0.0];
                Narrow { dtype, every, fma: true }.weighted(&index, x, rows, &mut out);
                out[0]
            })
        };
        let squares = narrow("sum_bf16", Dtype::Bf16)
            .or_else(|| narrow("sum_f16", Dtype::F16))
            .unwrap_or_else(|| self.chain.squares(&self.index, x));
        let m = squares / self.count + self.eps;
        if run.is("rsqrt_one_newton_step") {
            let y = f32::from_bits(0x5f37_59dfu32.wrapping_sub(m.to_bits() >> 1));
            return y * (1.5 - 0.5 * m * y * y);
        }
        self.chain.rsqrt(m)
    }
}
