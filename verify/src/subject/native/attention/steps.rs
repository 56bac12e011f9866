//! The choices of an implementation.

use assay_reference::{Dtype, Result};

use super::super::Chain;
use super::super::chain::{Narrow, Rows};
use super::super::run::{Run, number};
use super::super::scalar::{Store, exp2};

/// How P is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Probs {
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
pub(super) struct Missing {
    pub(super) at: Option<usize>,
    pub(super) numerator: bool,
}

/// An implementation's choices.
pub(super) struct Steps<'a> {
    pub(super) run: Run<'a>,
    pub(super) chain: Chain,
    /// The chain of q k^T: products of 16-bit values are exact, so that nothing is to be fused.
    pub(super) products: Chain,
    pub(super) scale: f32,
    pub(super) probs: Probs,
    /// How P is rounded, if it is.
    pub(super) rounding: Option<(Store, Dtype)>,
    pub(super) sum_rounded: bool,
    pub(super) missing: Option<Missing>,
    /// What masked keys score, if they are not skipped.
    pub(super) sentinel: Option<f32>,
    pub(super) split: Option<Split>,
}

/// Keys in partitions, each with a softmax of its own, combined in the end.
#[derive(Clone, Copy)]
pub(super) struct Split {
    /// Keys of a partition, by absolute position.
    pub(super) keys: usize,
    pub(super) stored: bool,
}

impl Split {
    pub(super) fn of(run: &Run<'_>) -> Option<Split> {
        let faults = ["partition_not_rescaled", "partition_dropped", "partitions_weighted_equally"];
        let knob = run.choice("partials").and_then(|p| p.strip_prefix("stored_")?.parse().ok());
        let keys = faults.iter().find_map(|slug| run.count(slug)).or(knob)?;
        Some(Split { keys, stored: knob == Some(keys) })
    }
}

impl<'a> Steps<'a> {
    pub(super) fn new(run: &Run<'a>) -> Result<Steps<'a>> {
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
        let infinite = run.chose("masked", "filled") || run.chose("masked", "added");
        let finite = run.number("finite_mask").map(|x| x as f32);
        let sentinel = finite.or(infinite.then_some(f32::NEG_INFINITY));
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
    pub(super) fn scores(&self, q: &[f32], visit: &[u32], keys: &[f32], s: usize) -> Vec<f32> {
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
    pub(super) fn exp(&self, x: f32) -> f32 {
        match () {
            () if self.run.is("exponent_clamped") && x < -10.0 => self.chain.exp(-10.0),
            () if self.run.is("log2e_bf16") => exp2(x * 1.445_312_5),
            () => self.chain.exp(x),
        }
    }

    pub(super) fn round(&self, p: f32) -> f32 {
        self.rounding.map_or(p, |(store, dtype)| store.round(dtype, p))
    }

    /// The denominator's sum.
    pub(super) fn sum(&self, p: &[f32]) -> f32 {
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
pub(super) fn named(name: &str) -> Probs {
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
pub(super) fn tile(key: &str) -> Option<(Option<usize>, usize)> {
    let numbers: Vec<usize> = key.split(' ').filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [size] => Some((None, size)),
        [at, size] => Some((Some(at), size)),
        _ => None,
    }
}

/// The scale that scores are multiplied by.
pub(super) fn scale(run: &Run<'_>, right: f64) -> Result<f32> {
    let Some(key) = run.key("wrong_scale") else { return Ok(right as f32) };
    let inner = |text: &str| text.trim_end_matches(')').parse::<f64>().ok();
    let wrong = match key {
        "1 (left out)" => Some(1.0),
        "the scale twice" => Some(right * right),
        _ => match (key.strip_prefix("1/sqrt("), key.strip_prefix("1/")) {
            (Some(d), _) => inner(d).map(|d| 1.0 / d.sqrt()),
            (None, Some(d)) => inner(d).map(|d| 1.0 / d),
            (None, None) => number(key),
        },
    };
    match wrong {
        Some(x) => Ok(x as f32),
        None => run.refuse(format!("fault wrong_scale: the key `{key}` names no scale")),
    }
}
