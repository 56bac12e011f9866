//! `attention`: o = softmax(q k^T scale + mask) v for each query head, in two passes or online.

mod query;
mod steps;

use assay_reference::{Result, Tensor};

use self::query::Query;
use self::steps::Steps;
use super::run::Run;
use super::{Keys, Known};

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
    ("masked", &["skipped", "added", "filled"]),
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
