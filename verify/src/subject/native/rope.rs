//! `rope`: rotation of pairs (i, i + D/2) of each head by position times frequency.

use assay_reference::{Dtype, Result, Tensor};

use super::run::Run;
use super::scalar::Store;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[
    ("angle", &["f32", "f64"]),
    ("table", &["f32", "stored"]),
    ("product", &["f32", "stored"]),
    ("base", &["by_call", "fixed"]),
];

pub(super) const FAULTS: &[Known] = &[
    ("wrong_theta", Keys::Number),
    ("pairing_adjacent", Keys::None),
    ("position_offset", Keys::Number),
    ("skipped", Keys::None),
    ("applied_twice", Keys::Any),
    ("inverse", Keys::None),
    ("angle_bf16", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("scaling_ignored", Keys::None),
    ("attention_factor_ignored", Keys::None),
    ("attention_factor_squared", Keys::None),
    ("yarn_as_linear", Keys::None),
    ("yarn_ramp_not_truncated", Keys::None),
    ("inv_freq_bf16", Keys::None),
    ("position_bf16", Keys::None),
    ("table_bf16", Keys::None),
    ("product_truncated", Keys::None),
    ("position_double_counted", Keys::None),
    ("first_position_for_all", Keys::None),
    ("position_wraps", Keys::Number),
    ("sign_wrong_beyond", Keys::None),
    ("high_pairs_unrotated", Keys::None),
    ("gain", Keys::Number),
];

/// `rope`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let &[t, h, d] = run.arg("x")?.shape() else { return run.refuse("x must be [T, H, D]") };
    let mut x = run.floats("x")?;
    let positions = positions(run)?;
    let rope = Rope::new(run, d, &positions)?;
    let times = if run.is("applied_twice") { 2 } else { 1 };
    for (t, position) in (0..t).zip(&positions) {
        let table = rope.table(*position);
        for head in x[t * h * d..][..h * d].chunks_exact_mut(d) {
            for time in 0..times {
                // Two kernels store between them; a table of twice the angle does not.
                if time > 0 && run.key("applied_twice") == Some("stored") {
                    head.iter_mut().for_each(|v| *v = run.stored(*v));
                }
                rope.rotate(head, &table);
            }
        }
    }
    run.output(&[t, h, d], x)
}

/// The positions that this implementation uses.
pub(super) fn positions(run: &Run<'_>) -> Result<Vec<i64>> {
    let mut p = run.ints("positions")?;
    let first = p.first().copied().unwrap_or(0);
    let offset = run.number("position_offset").unwrap_or(0.0) as i64;
    let wrap = run.count("position_wraps").map(|n| n.max(1) as i64);
    p.iter_mut().for_each(|p| {
        *p = match () {
            () if run.is("position_double_counted") => *p + first,
            () if run.is("first_position_for_all") => first,
            () => wrap.map_or(*p + offset, |n| p.rem_euclid(n)),
        }
    });
    Ok(p)
}

/// Frequencies and what else a rotation depends on.
pub(super) struct Rope<'a> {
    run: Run<'a>,
    d: usize,
    /// Of each pair.
    frequency: Vec<f64>,
    /// Multiplies cos and sin.
    factor: f32,
    exact_angle: bool,
}

impl<'a> Rope<'a> {
    pub(super) fn new(run: &Run<'a>, d: usize, positions: &[i64]) -> Result<Rope<'a>> {
        let exact_angle = run.chose("angle", "f64") || run.param("angle").as_str() == Some("f64");
        let theta = match run.number("wrong_theta") {
            Some(theta) => theta,
            None => run.required("theta")?,
        };
        let mut it = Rope { run: *run, d, frequency: Vec::new(), factor: 1.0, exact_angle };
        it.scale(theta, positions)?;
        Ok(it)
    }

    /// theta^(-2i/D), as transformers computes it in f32, or in f64.
    fn plain(&self, theta: f64) -> Vec<f64> {
        let d = self.d;
        let exact = |i: usize| libm::pow(theta, -2.0 * i as f64 / d as f64);
        let single = |i: usize| {
            let exponent = 2.0 * i as f32 / d as f32;
            f64::from(1.0 / libm::powf(theta as f32, exponent))
        };
        (0..d / 2).map(|i| if self.exact_angle { exact(i) } else { single(i) }).collect()
    }

    /// Rounds a frequency to what the angle's arithmetic keeps.
    fn kept(&self, f: f64) -> f64 {
        if self.exact_angle { f } else { f64::from(f as f32) }
    }

    fn scale(&mut self, theta: f64, positions: &[i64]) -> Result<()> {
        let run = self.run;
        let scaling = run.param("scaling");
        let number = |name: &str| scaling[name].as_f64();
        let kind = scaling["rope_type"].as_str().unwrap_or("default");
        let kind = if run.is("scaling_ignored") { "default" } else { kind };
        let factor = number("factor").unwrap_or(1.0);
        match kind {
            "default" => self.frequency = self.plain(theta),
            "linear" => {
                self.frequency = self.plain(theta).iter().map(|f| self.kept(f / factor)).collect();
            }
            "dynamic" => {
                let m = number("max_position").unwrap_or(1.0);
                let longest = positions.iter().max().map_or(0, |p| p + 1) as f64;
                let fixed = run.chose("base", "fixed") || run.param("base_fixed") == true;
                let n = if fixed { m * factor } else { longest.max(m) };
                let grown = factor * n / m - (factor - 1.0);
                let d = self.d as f64;
                self.frequency = self.plain(theta * libm::pow(grown, d / (d - 2.0)));
            }
            "yarn" => self.yarn(theta, factor),
            other => return run.refuse(format!("rope_type `{other}` is not known")),
        }
        Ok(())
    }

    /// YaRN: high frequencies stay, low ones are divided, a ramp lies between.
    fn yarn(&mut self, theta: f64, factor: f64) {
        let run = self.run;
        let scaling = run.param("scaling");
        let number = |name: &str, default: f64| scaling[name].as_f64().unwrap_or(default);
        let original = number("original_max_position", 1.0);
        let d = self.d as f64;
        // The dimension that turns b times over the trained context.
        let turns = |b: f64| {
            let circle = 2.0 * std::f64::consts::PI;
            d * libm::log(original / (b * circle)) / (2.0 * libm::log(theta))
        };
        let (mut low, mut high) =
            (turns(number("beta_fast", 32.0)), turns(number("beta_slow", 1.0)));
        let truncate = scaling["truncate"].as_bool().unwrap_or(true);
        if truncate && !run.is("yarn_ramp_not_truncated") {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(d - 1.0));
        if low == high {
            high += 0.001;
        }
        let plain = self.plain(theta);
        let mixed = |(i, f): (usize, &f64)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let ramp = if run.is("yarn_as_linear") { 1.0 } else { self.kept(ramp) };
            let divided = self.kept(f / factor);
            self.kept(self.kept(divided * ramp) + self.kept(f * self.kept(1.0 - ramp)))
        };
        self.frequency = plain.iter().enumerate().map(mixed).collect();
        let by_default = 0.1 * libm::log(factor) + 1.0;
        let attention = number("attention_factor", by_default) as f32;
        self.factor = match () {
            () if run.is("attention_factor_ignored") => 1.0,
            () if run.is("attention_factor_squared") => attention * attention,
            () => attention,
        };
    }

    /// cos and sin of each pair at a position.
    pub(super) fn table(&self, position: i64) -> Vec<(f32, f32)> {
        self.frequency.iter().map(|f| self.pair(*f, position)).collect()
    }

    fn pair(&self, frequency: f64, position: i64) -> (f32, f32) {
        let run = self.run;
        let bf16 = |x: f32| Store::Nearest.round(Dtype::Bf16, x);
        let both = run.is("angle_bf16");
        let (f, p) = (frequency as f32, position as f32);
        let f = if both || run.is("inv_freq_bf16") { bf16(f) } else { f };
        let p = if both || run.is("position_bf16") { bf16(p) } else { p };
        let rounded = both || run.is("inv_freq_bf16") || run.is("position_bf16");
        let (cos, sin) = if self.exact_angle && !rounded {
            let angle = frequency * position as f64;
            (libm::cos(angle) as f32, libm::sin(angle) as f32)
        } else {
            (libm::cosf(f * p), libm::sinf(f * p))
        };
        let keep = |x: f32| {
            let x = run.stored_if("table", "stored", x * self.factor);
            if run.is("table_bf16") { bf16(x) } else { x }
        };
        (keep(cos), keep(if run.is("inverse") { -sin } else { sin }))
    }

    /// Rotates one head.
    pub(super) fn rotate(&self, head: &mut [f32], table: &[(f32, f32)]) {
        let (run, half) = (self.run, self.d / 2);
        let adjacent = run.is("pairing_adjacent");
        if run.is("skipped") {
            return;
        }
        let product = |a: f32, b: f32| match () {
            () if run.is("product_truncated") => Store::Truncate.round(run.dtype(), a * b),
            () => run.stored_if("product", "stored", a * b),
        };
        for (i, &(cos, sin)) in table.iter().enumerate() {
            let high = i >= self.d / 4;
            let (cos, sin) = match () {
                () if high && run.is("sign_wrong_beyond") => (cos, -sin),
                () if high && run.is("high_pairs_unrotated") => (self.factor, 0.0),
                () => (cos, sin),
            };
            let (a, b) = if adjacent { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (x, y) = (head[a], head[b]);
            head[a] = product(x, cos) - product(y, sin);
            head[b] = product(y, cos) + product(x, sin);
        }
    }
}
