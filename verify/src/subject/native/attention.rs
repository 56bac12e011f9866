//! `attention`: o = softmax(q k^T scale + mask) v for each query head, in two passes or online.

use assay_reference::{Dtype, Result, Tensor};

use super::chain::{Narrow, Rows};
use super::run::Run;
use super::scalar::Store;
use super::{Chain, Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[
    (
        "probs",
        &[
            "f32",
            "normalised",
            "stored",
            "online_16",
            "online_32",
            "online_64",
            "online_128",
            "online_32_reversed",
            "online_64_reversed",
            "online_128_reversed",
            "online_48",
            "online_96",
            "lazy_32",
            "lazy_64",
            "lazy_128",
        ],
    ),
    ("sum", &["f32", "rounded_probs"]),
    ("scores", &["f32", "stored"]),
    ("combine", &["factor", "lse"]),
];

const SCORES: Keys = Keys::OneOf(&["scores", "qk", "qk and scores"]);

pub(super) const FAULTS: &[Known] = &[
    ("mask_upper_left", Keys::None),
    ("future_key_visible", Keys::None),
    ("mask_missing", Keys::None),
    ("newest_key_dropped", Keys::None),
    ("diagonal_key_dropped", Keys::None),
    ("first_key_dropped", Keys::None),
    ("window_honoured", Keys::Number),
    ("window_ignored", Keys::None),
    ("window_one_wider", Keys::None),
    ("window_one_narrower", Keys::None),
    ("masked_nan", Keys::None),
    ("finite_mask", Keys::Number),
    ("kv_head_modulo", Keys::None),
    ("last_group_previous_head", Keys::None),
    ("wrong_scale", Keys::Any),
    ("tile_not_rescaled", Keys::Number),
    ("denominator_not_rescaled", Keys::Number),
    ("scores_bf16", SCORES),
    ("scores_f16", SCORES),
    ("probs_truncated", Keys::Any),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("maximum_not_subtracted", Keys::None),
    ("exponent_clamped", Keys::None),
    ("log2e_bf16", Keys::None),
    ("padded_keys_counted", Keys::Number),
    ("value_position_off_by_one", Keys::None),
    ("newest_value_missing", Keys::None),
    ("q_scaled_stored", Keys::OneOf(&["scale", "scale log2e"])),
    ("denominator_bf16", Keys::None),
    ("splits_averaged", Keys::Number),
    ("maximum_floor", Keys::Number),
    ("gain", Keys::Number),
];

/// `attention`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let shapes = (run.arg("q")?.shape(), run.arg("k")?.shape());
    let (&[t, hq, d], &[s, hkv, _]) = shapes else {
        return run.refuse("q and k must have three dimensions");
    };
    let [q, k, v] = ["q", "k", "v"].map(|name| run.floats(name));
    let heads = Heads { run: *run, t, s, hq, hkv, d, q: q?, k: k?, v: v?, end: s };
    run.output(&[t, hq, d], heads.output()?)
}

/// The shapes and values of a case.
pub(super) struct Heads<'a> {
    pub(super) run: Run<'a>,
    /// Queries.
    pub(super) t: usize,
    /// Keys.
    pub(super) s: usize,
    pub(super) hq: usize,
    pub(super) hkv: usize,
    pub(super) d: usize,
    /// [T, Hq, D].
    pub(super) q: Vec<f32>,
    /// [S, Hkv, D].
    pub(super) k: Vec<f32>,
    /// [S, Hkv, D].
    pub(super) v: Vec<f32>,
    /// Keys from here on are not looked at.
    pub(super) end: usize,
}

impl Heads<'_> {
    /// [T, Hq, D], before it is stored.
    pub(super) fn output(&self) -> Result<Vec<f32>> {
        let (d, hq) = (self.d, self.hq);
        let mut out = vec![0.0; self.t * hq * d];
        let steps = Steps::new(&self.run)?;
        let visit = self.run.chain().visit(d);
        for kv in 0..self.hkv {
            let heads: Vec<usize> = (0..hq).filter(|h| self.kv_head(*h) == kv).collect();
            if heads.is_empty() {
                continue;
            }
            let (keys, values) = (self.keys(kv), self.values(kv));
            for t in 0..self.t {
                let mask = self.mask(t);
                for &h in &heads {
                    let row = (t * hq + h) * d;
                    let q = &self.q[row..row + d];
                    let scores = steps.scores(q, &visit, &keys, self.s);
                    let query =
                        Query { steps: &steps, scores, mask: &mask, values: &values, d, s: self.s };
                    query.output(&mut out[row..row + d]);
                }
            }
        }
        Ok(out)
    }

    fn kv_head(&self, h: usize) -> usize {
        let kv = h / (self.hq / self.hkv);
        match () {
            () if self.run.is("kv_head_modulo") => h % self.hkv,
            () if self.run.is("last_group_previous_head") && kv + 1 == self.hkv && kv > 0 => kv - 1,
            () => kv,
        }
    }

    /// [D, S] of one head.
    fn keys(&self, kv: usize) -> Vec<f32> {
        let (d, s) = (self.d, self.s);
        let mut out = vec![0.0; d * s];
        for j in 0..s {
            let row = &self.k[(j * self.hkv + kv) * d..][..d];
            row.iter().enumerate().for_each(|(i, x)| out[i * s + j] = *x);
        }
        out
    }

    /// [S, D] of one head.
    fn values(&self, kv: usize) -> Vec<f32> {
        let (d, s) = (self.d, self.s);
        let mut out = Vec::with_capacity(d * s);
        for j in 0..s {
            let from =
                if self.run.is("value_position_off_by_one") { j.saturating_sub(1) } else { j };
            out.extend_from_slice(&self.v[(from * self.hkv + kv) * d..][..d]);
        }
        if self.run.is("newest_value_missing") {
            out[(s - 1) * d..].fill(0.0);
        }
        out
    }

    /// Which keys query t sees.
    fn mask(&self, t: usize) -> Vec<bool> {
        let run = self.run;
        let own = self.s - self.t + t;
        let last = match () {
            () if run.is("mask_upper_left") => t,
            () if run.is("future_key_visible") => own + 1,
            () if run.is("mask_missing") => self.s - 1,
            () => own,
        };
        let window = run.param("window").as_u64().map(|w| w as usize);
        let window = match window {
            Some(_) if run.is("window_ignored") => None,
            Some(w) if run.is("window_one_wider") => Some(w + 1),
            Some(w) if run.is("window_one_narrower") => Some(w - 1),
            w => run.count("window_honoured").or(w),
        };
        // A window of w has the query's own key and the w - 1 before it.
        let first = window.map_or(0, |w| (own + 1).saturating_sub(w));
        let lost = match () {
            () if run.is("newest_key_dropped") => Some(self.s - 1),
            () if run.is("diagonal_key_dropped") => Some(own),
            () if run.is("first_key_dropped") => Some(0),
            () => None,
        };
        let end = self.end;
        (0..self.s).map(|j| j < end && j <= last && j >= first && Some(j) != lost).collect()
    }
}

/// How P is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Probs {
    /// In f32; online or in two passes.
    Full { block: Option<usize> },
    /// Rounded after the division.
    Normalised,
    /// Rounded before it, relative to the final maximum.
    Stored,
    /// Rounded relative to the running maximum of blocks; if lazy, to one that is raised only when it
    /// grew by a factor of 2^8.
    Online { block: usize, reversed: bool, lazy: bool },
}

/// Where a rescaling is missing: at one block, counted as the loop visits them, or everywhere.
#[derive(Clone, Copy)]
struct Missing {
    at: Option<usize>,
    numerator: bool,
}

/// An implementation's choices.
struct Steps<'a> {
    run: Run<'a>,
    chain: Chain,
    /// The chain of q k^T: products of 16-bit values are exact, so that nothing is to be fused.
    products: Chain,
    scale: f32,
    probs: Probs,
    /// How P is rounded, if it is.
    rounding: Option<(Store, Dtype)>,
    sum_rounded: bool,
    missing: Option<Missing>,
    /// What masked keys score, if they are not skipped.
    sentinel: Option<f32>,
    split: Option<Split>,
}

/// Keys in partitions, each with a softmax of its own, combined in the end.
#[derive(Clone, Copy)]
struct Split {
    /// Keys of a partition, by absolute position.
    keys: usize,
    stored: bool,
}

impl Split {
    fn of(run: &Run<'_>) -> Option<Split> {
        let faults = ["partition_not_rescaled", "partition_dropped", "partitions_weighted_equally"];
        let knob = run.choice("partials").and_then(|p| p.strip_prefix("stored_")?.parse().ok());
        let keys = faults.iter().find_map(|slug| run.count(slug)).or(knob)?;
        Some(Split { keys, stored: knob == Some(keys) })
    }
}

impl<'a> Steps<'a> {
    fn new(run: &Run<'a>) -> Result<Steps<'a>> {
        let chain = *run.chain();
        let wide = run.arg("q")?.dtype() == Dtype::F32;
        let products = Chain { fma: chain.fma && wide, ..chain };
        let scale = scale(run, run.required("scale")?)?;
        let (mut probs, mut rounding) = match run.choice("probs").unwrap_or("f32") {
            "f32" => (Probs::Full { block: chain.online }, None),
            name => (named(name), Some((Store::Nearest, run.dtype()))),
        };
        let mut missing = None;
        for (slug, numerator) in [("tile_not_rescaled", true), ("denominator_not_rescaled", false)]
        {
            let Some(key) = run.key(slug) else { continue };
            let Some((tile, block)) = tile(key) else {
                return run.refuse(format!("fault {slug}: the key `{key}` names no key tile"));
            };
            missing = Some(Missing { at: tile, numerator });
            // A convention that is online already keeps its rounding, with the fault's blocks.
            probs = match probs {
                Probs::Online { reversed, lazy, .. } => Probs::Online { block, reversed, lazy },
                _ => Probs::Full { block: Some(block) },
            };
        }
        if let Some(key) = run.key("probs_truncated") {
            rounding = Some((Store::Truncate, Dtype::Bf16));
            probs = match run.count("probs_truncated") {
                Some(block) => Probs::Online { block, reversed: false, lazy: false },
                None if key == "the final maximum" => Probs::Stored,
                None => return run.refuse(format!("fault probs_truncated has no key `{key}`")),
            };
        }
        let (run, sum_rounded) = (*run, run.chose("sum", "rounded_probs"));
        let sentinel = run.number("finite_mask").map(|x| x as f32);
        let split = Split::of(&run);
        Ok(Steps {
            run,
            chain,
            products,
            scale,
            probs,
            rounding,
            sum_rounded,
            missing,
            sentinel,
            split,
        })
    }

    /// Scaled scores of one query with all keys, masked ones too.
    fn scores(&self, q: &[f32], visit: &[u32], keys: &[f32], s: usize) -> Vec<f32> {
        let run = &self.run;
        let mut out = vec![0.0; s];
        let scaled_q: Vec<f32> = match run.key("q_scaled_stored") {
            Some("scale") => q.iter().map(|x| run.stored(x * self.scale)).collect(),
            Some(_) => {
                let scale = self.scale * std::f32::consts::LOG2_E;
                q.iter().map(|x| run.stored(x * scale)).collect()
            }
            None => Vec::new(),
        };
        let coefficients = if scaled_q.is_empty() { q } else { &scaled_q };
        let rows = Rows { data: keys, stride: s, first: 0 };
        self.products.weighted(visit, coefficients, rows, &mut out);
        let factor = match run.key("q_scaled_stored") {
            Some("scale") => 1.0,
            Some(_) => std::f32::consts::LN_2,
            None => self.scale,
        };
        let narrow = |point: &str, x: f32| {
            let x = run.stored_if("scores", "stored", x);
            [("scores_bf16", Dtype::Bf16), ("scores_f16", Dtype::F16)].iter().fold(
                x,
                |x, (slug, dtype)| match run.key(slug) {
                    Some(key) if key == point || key == "qk and scores" => {
                        Store::Nearest.round(*dtype, x)
                    }
                    _ => x,
                },
            )
        };
        out.iter_mut().for_each(|x| *x = narrow("scores", narrow("qk", *x) * factor));
        out
    }

    /// e^x of a score from which a maximum has been subtracted.
    fn exp(&self, x: f32) -> f32 {
        match () {
            () if self.run.is("exponent_clamped") && x < -10.0 => self.chain.exp(-10.0),
            () if self.run.is("log2e_bf16") => super::scalar::exp2(x * 1.445_312_5),
            () => self.chain.exp(x),
        }
    }

    fn round(&self, p: f32) -> f32 {
        self.rounding.map_or(p, |(store, dtype)| store.round(dtype, p))
    }

    /// The denominator's sum.
    fn sum(&self, p: &[f32]) -> f32 {
        if !self.run.is("denominator_bf16") {
            return self.chain.sum(p);
        }
        let narrow = Narrow { dtype: Dtype::Bf16, every: 1, fma: false };
        let index: Vec<u32> = (0..p.len() as u32).collect();
        let mut out = [0.0];
        narrow.weighted(&index, p, Rows { data: &[1.0], stride: 0, first: 0 }, &mut out);
        out[0]
    }
}

/// A convention that rounds P.
fn named(name: &str) -> Probs {
    let mut words = name.split('_');
    match (words.next(), words.next().and_then(|b| b.parse().ok()), words.next()) {
        (Some("online"), Some(block), reversed) => {
            Probs::Online { block, reversed: reversed.is_some(), lazy: false }
        }
        (Some("lazy"), Some(block), _) => Probs::Online { block, reversed: false, lazy: true },
        (Some("normalised"), ..) => Probs::Normalised,
        _ => Probs::Stored,
    }
}

/// Block and size of `key tile 1 of 64` or `any key tile of 64`.
fn tile(key: &str) -> Option<(Option<usize>, usize)> {
    let numbers: Vec<usize> = key.split(' ').filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [size] => Some((None, size)),
        [at, size] => Some((Some(at), size)),
        _ => None,
    }
}

/// The scale that scores are multiplied by.
fn scale(run: &Run<'_>, right: f64) -> Result<f32> {
    let Some(key) = run.key("wrong_scale") else { return Ok(right as f32) };
    let inner = |text: &str| text.trim_end_matches(')').parse::<f64>().ok();
    let wrong = match key {
        "1 (left out)" => Some(1.0),
        "the scale twice" => Some(right * right),
        _ => match (key.strip_prefix("1/sqrt("), key.strip_prefix("1/")) {
            (Some(d), _) => inner(d).map(|d| 1.0 / d.sqrt()),
            (None, Some(d)) => inner(d).map(|d| 1.0 / d),
            (None, None) => super::run::number(key),
        },
    };
    match wrong {
        Some(x) => Ok(x as f32),
        None => run.refuse(format!("fault wrong_scale: the key `{key}` names no scale")),
    }
}

/// One query head.
struct Query<'a> {
    steps: &'a Steps<'a>,
    scores: Vec<f32>,
    mask: &'a [bool],
    /// [S, D].
    values: &'a [f32],
    d: usize,
    s: usize,
}

impl Query<'_> {
    fn output(&self, out: &mut [f32]) {
        let (run, seen) = (&self.steps.run, self.seen());
        if let Some(n) = run.count("splits_averaged") {
            return self.averaged(&seen, n, out);
        }
        match self.steps.split {
            Some(split) => self.partitions(&seen, split, out),
            // The choice says nothing where P is rounded.
            None if run.chose("combine", "lse") && self.steps.rounding.is_none() => {
                self.merged(&seen, out);
            }
            None => {
                self.attend(&seen, out);
            }
        }
        if let Some(floor) = run.number("maximum_floor") {
            let largest = seen.iter().map(|j| self.score(*j)).fold(f32::NEG_INFINITY, f32::max);
            if f64::from(largest) < floor - 104.0 {
                out.fill(0.0);
            }
        }
    }

    /// The keys that enter the softmax.
    fn seen(&self) -> Vec<u32> {
        let all = self.steps.sentinel.is_some();
        (0..self.s as u32).filter(|j| all || self.mask[*j as usize]).collect()
    }

    fn score(&self, j: u32) -> f32 {
        match self.steps.sentinel {
            Some(x) if !self.mask[j as usize] => x,
            _ => self.scores[j as usize],
        }
    }

    /// Maximum and sum of the softmax.
    fn attend(&self, seen: &[u32], out: &mut [f32]) -> (f32, f32) {
        match self.steps.probs {
            // Nothing to rescale where no maximum is subtracted.
            _ if self.steps.run.is("maximum_not_subtracted") => self.two_passes(seen, out),
            Probs::Full { block: None } | Probs::Normalised | Probs::Stored => {
                self.two_passes(seen, out)
            }
            Probs::Full { block: Some(block) } => self.online(seen, block, [false, false], out),
            Probs::Online { block, reversed, lazy } => {
                self.online(seen, block, [reversed, lazy], out)
            }
        }
    }

    /// NaN wins, as it must reach the output.
    fn maximum(&self, seen: &[u32]) -> f32 {
        let larger = |m: f32, x: f32| if x > m || x.is_nan() { x } else { m };
        seen.iter().map(|j| self.score(*j)).fold(f32::NEG_INFINITY, larger)
    }

    /// The weighted sum of values; `p` has an entry for each key.
    fn values(&self, seen: &[u32], p: &[f32], out: &mut [f32]) {
        let steps = self.steps;
        let mut index = seen.to_vec();
        if steps.run.is("masked_nan") {
            index.extend((0..self.s as u32).filter(|j| !self.mask[*j as usize]));
        }
        let rows = Rows { data: self.values, stride: self.d, first: 0 };
        steps.chain.weighted(&steps.chain.arrange(index), p, rows, out);
    }

    /// The denominator's terms for padded keys, which score 0.
    fn padding(&self, maximum: f32) -> f32 {
        let tile = self.steps.run.count("padded_keys_counted").unwrap_or(1).max(1);
        let n = (tile - self.s % tile) % tile;
        if n == 0 { 0.0 } else { n as f32 * self.steps.exp(-maximum) }
    }

    fn two_passes(&self, seen: &[u32], out: &mut [f32]) -> (f32, f32) {
        let steps = self.steps;
        let subtract = !steps.run.is("maximum_not_subtracted");
        let m = if subtract { self.maximum(seen) } else { 0.0 };
        let mut p = vec![0.0; self.s];
        let mut terms: Vec<f32> = seen.iter().map(|j| steps.exp(self.score(*j) - m)).collect();
        if steps.probs == Probs::Normalised {
            let sum = steps.sum(&terms) + self.padding(m);
            for (j, e) in seen.iter().zip(&terms) {
                p[*j as usize] = steps.round(steps.chain.quotient(*e, sum));
            }
            self.values(seen, &p, out);
            return (m, sum);
        }
        for (j, e) in seen.iter().zip(&mut terms) {
            let rounded = steps.round(*e);
            p[*j as usize] = rounded;
            if steps.sum_rounded {
                *e = rounded;
            }
        }
        let sum = steps.sum(&terms) + self.padding(m);
        self.values(seen, &p, out);
        out.iter_mut().for_each(|o| *o = steps.chain.quotient(*o, sum));
        (m, sum)
    }

    /// One pass over blocks of keys at multiples of `block`, with rescaling.
    fn online(
        &self,
        seen: &[u32],
        block: usize,
        [reversed, lazy]: [bool; 2],
        out: &mut [f32],
    ) -> (f32, f32) {
        let steps = self.steps;
        // A partition counts its blocks from its start.
        let from = match (steps.split, seen) {
            (Some(split), [first, ..]) => *first as usize / split.keys * split.keys,
            _ => 0,
        };
        let (mut m, mut sum) = (f32::NEG_INFINITY, 0.0f32);
        let mut p = vec![0.0; self.s];
        let mut part = vec![0.0; self.d];
        out.fill(0.0);
        let mut blocks: Vec<&[u32]> = seen
            .chunk_by(|a, b| (*a as usize - from) / block == (*b as usize - from) / block)
            .collect();
        if reversed {
            blocks.reverse();
        }
        for (at, keys) in blocks.into_iter().enumerate() {
            let larger = self.maximum(keys);
            let grown = if lazy { larger - m > 8.0 * std::f32::consts::LN_2 } else { larger > m };
            let new = if grown || larger.is_nan() { larger } else { m };
            let rescale = if m == f32::NEG_INFINITY { 0.0 } else { steps.exp(m - new) };
            let factor = |numerator: bool| match steps.missing {
                Some(it) if it.numerator == numerator && it.at.is_none_or(|b| b == at) => 1.0,
                _ => rescale,
            };
            let mut terms: Vec<f32> =
                keys.iter().map(|j| steps.exp(self.score(*j) - new)).collect();
            for (j, e) in keys.iter().zip(&mut terms) {
                let rounded = steps.round(*e);
                p[*j as usize] = rounded;
                if steps.sum_rounded {
                    *e = rounded;
                }
            }
            sum = sum * factor(false) + steps.sum(&terms);
            self.values(keys, &p, &mut part);
            let numerator = factor(true);
            out.iter_mut().zip(&part).for_each(|(o, x)| *o = *o * numerator + *x);
            m = new;
        }
        sum += self.padding(m);
        out.iter_mut().for_each(|o| *o = steps.chain.quotient(*o, sum));
        (m, sum)
    }

    /// Partitions, each by its share of the whole denominator.
    fn partitions(&self, seen: &[u32], split: Split, out: &mut [f32]) {
        let run = &self.steps.run;
        let mut runs: Vec<&[u32]> =
            seen.chunk_by(|a, b| *a as usize / split.keys == *b as usize / split.keys).collect();
        if let (Some(key), true) = (run.key("partition_dropped"), runs.len() > 1) {
            // The sequence's first or last, if this query sees it.
            let lost = if key.starts_with("first") { 0 } else { (self.s - 1) / split.keys };
            runs.retain(|keys| keys[0] as usize / split.keys != lost);
        }
        let mut part = vec![0.0; self.d];
        let parts: Vec<(f32, f32, Vec<f32>)> = runs
            .iter()
            .map(|keys| {
                let (m, sum) = self.attend(keys, &mut part);
                let kept = |x: &f32| if split.stored { run.stored(*x) } else { *x };
                (m, sum, part.iter().map(kept).collect())
            })
            .collect();
        let largest = parts
            .iter()
            .map(|p| p.0)
            .fold(f32::NEG_INFINITY, |m, x| if x > m || x.is_nan() { x } else { m });
        let weight = |(m, sum, _): &(f32, f32, Vec<f32>)| match () {
            () if run.is("partition_not_rescaled") => *sum,
            () if run.is("partitions_weighted_equally") => 1.0,
            () => sum * self.steps.exp(m - largest),
        };
        let weights: Vec<f32> = parts.iter().map(weight).collect();
        let total = self.steps.chain.sum(&weights);
        out.fill(0.0);
        for (w, (_, _, o)) in weights.iter().zip(&parts) {
            out.iter_mut().zip(o).for_each(|(t, x)| *t += w * x);
        }
        out.iter_mut().for_each(|o| *o = self.steps.chain.quotient(*o, total));
    }

    /// Parts of 64 keys, each divided by its own sum, merged by their log-sum-exps in f32.
    fn merged(&self, seen: &[u32], out: &mut [f32]) {
        let chain = &self.steps.chain;
        let mut part = vec![0.0; self.d];
        let parts: Vec<(f32, Vec<f32>)> = seen
            .chunk_by(|a, b| *a / 64 == *b / 64)
            .map(|keys| {
                let (m, sum) = self.attend(keys, &mut part);
                (m + libm::logf(sum), part.clone())
            })
            .collect();
        let larger = |m: f32, x: f32| if x > m || x.is_nan() { x } else { m };
        let largest = parts.iter().map(|p| p.0).fold(f32::NEG_INFINITY, larger);
        let terms: Vec<f32> = parts.iter().map(|p| self.steps.exp(p.0 - largest)).collect();
        let all = largest + libm::logf(chain.sum(&terms));
        out.fill(0.0);
        for (lse, part) in &parts {
            let by = self.steps.exp(lse - all);
            out.iter_mut().zip(part).for_each(|(o, x)| *o += by * x);
        }
    }

    /// Parts of the keys, each with a softmax of its own, and their plain mean.
    fn averaged(&self, seen: &[u32], n: usize, out: &mut [f32]) {
        let mut part = vec![0.0; self.d];
        let runs: Vec<&[u32]> = seen.chunks(seen.len().div_ceil(n.max(1)).max(1)).collect();
        out.fill(0.0);
        for keys in &runs {
            self.attend(keys, &mut part);
            out.iter_mut().zip(&part).for_each(|(o, x)| *o += *x);
        }
        out.iter_mut().for_each(|o| *o /= runs.len() as f32);
    }
}
