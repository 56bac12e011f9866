//! The formulas in plain loops. Elementary functions are the host's, where the reference has its own.
//! Each value comes with the size of its terms.

#![expect(clippy::disallowed_methods, reason = "a second opinion must not share the reference's")]
#![expect(clippy::needless_range_loop, reason = "indices as in the formulas")]

pub(crate) fn exp(x: f64) -> f64 {
    x.exp()
}

/// y[m, n] = sum_k x[m, k] w(k, n) + bias[n]
pub(crate) fn matmul(
    x: &[f64],
    k: usize,
    n: usize,
    w: impl Fn(usize, usize) -> f64,
    bias: Option<&[f64]>,
) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for row in x.chunks(k) {
        for c in 0..n {
            let (mut sum, mut size) = (0.0, 0.0);
            for i in 0..k {
                sum += row[i] * w(i, c);
                size += (row[i] * w(i, c)).abs();
            }
            let b = bias.map_or(0.0, |b| b[c]);
            out.push((sum + b, size + f64::abs(b)));
        }
    }
    out
}

/// y = x / sqrt(mean(x^2) + eps) w
pub(crate) fn rms_norm(x: &[f64], w: &[f64], eps: f64) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for row in x.chunks(w.len()) {
        let mut squares = 0.0;
        for v in row {
            squares += v * v;
        }
        let root = (squares / w.len() as f64 + eps).sqrt();
        out.extend(row.iter().zip(w).map(|(v, w)| (v / root * w, (v / root * w).abs())));
    }
    out
}

/// theta^(-2i/D) for i < D/2.
pub(crate) fn inverse_frequencies(theta: f64, d: usize) -> Vec<f64> {
    (0..d / 2).map(|i| 1.0 / theta.powf(2.0 * i as f64 / d as f64)).collect()
}

/// Position interpolation: positions are divided by the factor, so every frequency is.
pub(crate) fn linear_frequencies(theta: f64, d: usize, factor: f64) -> Vec<f64> {
    inverse_frequencies(theta, d).into_iter().map(|f| f / factor).collect()
}

/// Dynamic NTK: with a sequence of L > M positions the base becomes
/// theta (s L / M - (s - 1))^(D / (D - 2)).
pub(crate) fn dynamic_frequencies(
    theta: f64,
    d: usize,
    factor: f64,
    trained: usize,
    len: usize,
) -> Vec<f64> {
    if len <= trained {
        return inverse_frequencies(theta, d);
    }
    let grown = factor * (len as f64 / trained as f64) - factor + 1.0;
    let exponent = d as f64 / (d as f64 - 2.0);
    inverse_frequencies(theta * grown.powf(exponent), d)
}

/// YaRN's constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yarn {
    pub(crate) factor: f64,
    pub(crate) original: usize,
    pub(crate) beta_fast: f64,
    pub(crate) beta_slow: f64,
    pub(crate) truncate: bool,
}

/// YaRN: pair i turns L theta^(-2i/D) / 2 pi times over the trained context. Pairs up to the one that
/// turns beta_fast times keep their frequency, pairs from the one that turns beta_slow times on are
/// interpolated, and in between the two are mixed linearly in i (the published code's ramp, whose
/// ends are whole pairs unless told otherwise).
pub(crate) fn yarn_frequencies(theta: f64, d: usize, y: Yarn) -> Vec<f64> {
    let pair = |turns: f64| {
        let wave = y.original as f64 / turns / (2.0 * std::f64::consts::PI);
        d as f64 / 2.0 * (wave.ln() / theta.ln())
    };
    let (mut first, mut last) = (pair(y.beta_fast), pair(y.beta_slow));
    if y.truncate {
        first = first.floor();
        last = last.ceil();
    }
    first = if first < 0.0 { 0.0 } else { first };
    last = if last > d as f64 - 1.0 { d as f64 - 1.0 } else { last };
    if first == last {
        last += 0.001;
    }
    let plain = inverse_frequencies(theta, d);
    let mix = |i: usize| {
        let t = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
        t * (plain[i] / y.factor) + (1.0 - t) * plain[i]
    };
    (0..d / 2).map(mix).collect()
}

/// YaRN's attention factor when the config gives none.
pub(crate) fn yarn_attention_factor(factor: f64) -> f64 {
    if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 }
}

/// How heads are rotated.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// One for each pair.
    pub(crate) frequencies: Vec<f64>,
    /// Factor of cos and sin.
    pub(crate) factor: f64,
    /// Whether frequency and angle go by way of f32.
    pub(crate) f32_angle: bool,
}

impl Turns {
    /// (factor cos, factor sin) of a position at pair i.
    fn at(&self, position: i64, i: usize) -> (f64, f64) {
        let f = self.frequencies[i];
        let angle = if self.f32_angle {
            f64::from(position as f32 * f as f32)
        } else {
            position as f64 * f
        };
        (angle.cos() * self.factor, angle.sin() * self.factor)
    }
}

/// y[i] = x[i] cos - x[i + D/2] sin, y[i + D/2] = x[i + D/2] cos + x[i] sin
pub(crate) fn rope(
    x: &[f64],
    (heads, d): (usize, usize),
    positions: &[i64],
    turns: &Turns,
) -> Vec<(f64, f64)> {
    let mut out = vec![(0.0, 0.0); x.len()];
    for (t, &p) in positions.iter().enumerate() {
        for h in 0..heads {
            for i in 0..d / 2 {
                let (cos, sin) = turns.at(p, i);
                let a = (t * heads + h) * d + i;
                let b = a + d / 2;
                // The angle itself is off by a relative error of f64's size.
                let size = (x[a].abs() + x[b].abs()) * (1.0 + p.unsigned_abs() as f64);
                out[a] = (x[a] * cos - x[b] * sin, size * turns.factor);
                out[b] = (x[b] * cos + x[a] * sin, size * turns.factor);
            }
        }
    }
    out
}

/// e^(x - m) / sum e^(x - m); NaN in a row, or nothing but -inf, makes it NaN.
pub(crate) fn softmax(x: &[f64], cols: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for row in x.chunks(cols) {
        let mut max = f64::NEG_INFINITY;
        for &v in row {
            max = if v.is_nan() || max.is_nan() { f64::NAN } else { max.max(v) };
        }
        let terms: Vec<f64> = row.iter().map(|v| exp(v - max)).collect();
        let sum: f64 = terms.iter().sum();
        out.extend(terms.iter().map(|t| (t / sum, t / sum * (1.0 + max.abs()))));
    }
    out
}

/// Shapes of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) t: usize,
    pub(crate) s: usize,
    pub(crate) hq: usize,
    pub(crate) hkv: usize,
    pub(crate) d: usize,
    /// Keys that a query sees, its own included.
    pub(crate) window: Option<usize>,
}

/// softmax(q k^T scale) v over the keys up to the query's own position S - T + t.
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], n: Heads, scale: f64) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for t in 0..n.t {
        for h in 0..n.hq {
            let kv = h / (n.hq / n.hkv);
            let key = |j: usize, i: usize| (j * n.hkv + kv) * n.d + i;
            let end = n.s - n.t + t + 1;
            let start =
                if n.window.is_some_and(|w| w < end) { end - n.window.unwrap_or(0) } else { 0 };
            let mut scores = Vec::new();
            let mut terms: f64 = 0.0;
            for j in start..end {
                let (mut dot, mut size) = (0.0, 0.0);
                for i in 0..n.d {
                    dot += q[(t * n.hq + h) * n.d + i] * k[key(j, i)];
                    size += (q[(t * n.hq + h) * n.d + i] * k[key(j, i)]).abs();
                }
                scores.push(dot * scale);
                terms = terms.max(size * scale.abs());
            }
            let p = softmax(&scores, end - start);
            for i in 0..n.d {
                let (mut sum, mut size) = (0.0, 0.0);
                for j in start..end {
                    sum += p[j - start].0 * v[key(j, i)];
                    size += p[j - start].0 * v[key(j, i)].abs();
                }
                out.push((sum, size * (1.0 + terms)));
            }
        }
    }
    out
}

/// 4-bit GPTQ, bit by bit: value i of a stream of words is bits 4i..4i + 4.
#[derive(Clone, Debug)]
pub(crate) struct Gptq {
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) qweight: Vec<i32>,
    pub(crate) qzeros: Vec<i32>,
    pub(crate) scales: Vec<f64>,
    pub(crate) group_of: Vec<usize>,
    pub(crate) plus_one: bool,
}

impl Gptq {
    /// (q - z) s of row k, column n.
    pub(crate) fn weight(&self, k: usize, n: usize) -> f64 {
        let four_bits =
            |word: i32, at: usize| (0..4).fold(0, |v, b| v | ((word >> (4 * at + b)) & 1) << b);
        let q = four_bits(self.qweight[k / 8 * self.n + n], k % 8);
        let g = self.group_of[k];
        let stored = four_bits(self.qzeros[g * (self.n / 8) + n / 8], n % 8);
        let z = stored + i32::from(self.plus_one);
        f64::from(q - z) * self.scales[g * self.n + n]
    }
}

/// The softmax's probabilities of the k largest logits of each row (the lower index first among
/// equals), divided by their sum if asked; 0 elsewhere.
pub(crate) fn moe_route(logits: &[f64], e: usize, k: usize, normalise: bool) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for row in logits.chunks(e) {
        let p = softmax(row, e);
        let mut taken = vec![false; e];
        for _ in 0..k {
            let mut best = None;
            for i in 0..e {
                if !taken[i] && best.is_none_or(|b: usize| p[i].0 > p[b].0) {
                    best = Some(i);
                }
            }
            taken[best.unwrap_or(0)] = true;
        }
        let sum: f64 = (0..e).filter(|&i| taken[i]).map(|i| p[i].0).sum();
        let by = if normalise { sum } else { 1.0 };
        out.extend(
            (0..e).map(|i| if taken[i] { (p[i].0 / by, 2.0 * p[i].1 / by) } else { (0.0, 0.0) }),
        );
    }
    out
}

/// An expert's three weights, each [out, in].
#[derive(Clone, Debug)]
pub(crate) struct Expert {
    pub(crate) gate: Vec<f64>,
    pub(crate) up: Vec<f64>,
    pub(crate) down: Vec<f64>,
}

impl Expert {
    /// down(silu(gate x) * up x) of one token of width h.
    fn mlp(&self, x: &[f64], h: usize) -> Vec<(f64, f64)> {
        let width = self.gate.len() / h;
        let linear = |w: &[f64]| matmul(x, h, width, |k, n| w[n * h + k], None);
        let (gate, up) = (linear(&self.gate), linear(&self.up));
        let mut act = Vec::new();
        let mut sizes = Vec::new();
        for i in 0..width {
            let ((g, g_size), (u, u_size)) = (gate[i], up[i]);
            let silu = g / (1.0 + exp(-g));
            act.push(silu * u);
            // |silu'| < 1.1; e^-g carries the error of an argument of size g.
            sizes.push(1.1 * g_size * u.abs() + silu.abs() * u_size * (1.0 + g.abs()));
        }
        (0..h)
            .map(|n| {
                let (mut sum, mut size) = (0.0, 0.0);
                for i in 0..width {
                    sum += act[i] * self.down[n * width + i];
                    size += sizes[i] * self.down[n * width + i].abs();
                }
                (sum, size)
            })
            .collect()
    }
}

/// y = sum_e routing[e] mlp_e(x) for each token.
pub(crate) fn moe_experts(
    x: &[f64],
    h: usize,
    routing: &[f64],
    experts: &[Expert],
) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for (x, weights) in x.chunks(h).zip(routing.chunks(experts.len())) {
        let mut row = vec![(0.0, 0.0); h];
        for (expert, &w) in experts.iter().zip(weights).filter(|(_, w)| **w != 0.0) {
            for (total, y) in row.iter_mut().zip(expert.mlp(x, h)) {
                total.0 += w * y.0;
                total.1 += w.abs() * y.1;
            }
        }
        out.extend(row);
    }
    out
}

/// Partial products over `ranks` contiguous parts of K, each stored (the bias in the first), added,
/// and if asked stored after each addition but the last.
pub(crate) fn over_ranks(
    x: &[f64],
    w: &[f64],
    bias: f64,
    ranks: usize,
    stored: bool,
    store: impl Fn(f64) -> f64,
) -> f64 {
    let part = x.len().div_ceil(ranks);
    let mut sum = None;
    let mut start = 0;
    while start < x.len() {
        let end = (start + part).min(x.len());
        let mut y = if start == 0 { bias } else { 0.0 };
        for i in start..end {
            y += x[i] * w[i];
        }
        let y = store(y);
        sum = Some(match sum {
            None => y,
            Some(s) if stored => store(s) + y,
            Some(s) => s + y,
        });
        start = end;
    }
    sum.unwrap_or(0.0)
}
