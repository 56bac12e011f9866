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

/// (cos, sin) of a position at frequency i, with the angle in f64 or by way of f32.
pub(crate) fn turn(theta: f64, position: i64, i: usize, d: usize, f32_angle: bool) -> (f64, f64) {
    let inverse = 1.0 / theta.powf(2.0 * i as f64 / d as f64);
    let angle = if f32_angle {
        f64::from(position as f32 * inverse as f32)
    } else {
        position as f64 * inverse
    };
    (angle.cos(), angle.sin())
}

/// y[i] = x[i] cos - x[i + D/2] sin, y[i + D/2] = x[i + D/2] cos + x[i] sin
pub(crate) fn rope(
    x: &[f64],
    (heads, d): (usize, usize),
    positions: &[i64],
    theta: f64,
    f32_angle: bool,
) -> Vec<(f64, f64)> {
    let mut out = vec![(0.0, 0.0); x.len()];
    for (t, &p) in positions.iter().enumerate() {
        for h in 0..heads {
            for i in 0..d / 2 {
                let (cos, sin) = turn(theta, p, i, d, f32_angle);
                let a = (t * heads + h) * d + i;
                let b = a + d / 2;
                // The angle itself is off by a relative error of f64's size.
                let size = (x[a].abs() + x[b].abs()) * (1.0 + p.unsigned_abs() as f64);
                out[a] = (x[a] * cos - x[b] * sin, size);
                out[b] = (x[b] * cos + x[a] * sin, size);
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
}

/// softmax(q k^T scale) v over the keys up to the query's own position S - T + t.
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], n: Heads, scale: f64) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for t in 0..n.t {
        for h in 0..n.hq {
            let kv = h / (n.hq / n.hkv);
            let key = |j: usize, i: usize| (j * n.hkv + kv) * n.d + i;
            let visible = n.s - n.t + t + 1;
            let mut scores = Vec::new();
            let mut terms: f64 = 0.0;
            for j in 0..visible {
                let (mut dot, mut size) = (0.0, 0.0);
                for i in 0..n.d {
                    dot += q[(t * n.hq + h) * n.d + i] * k[key(j, i)];
                    size += (q[(t * n.hq + h) * n.d + i] * k[key(j, i)]).abs();
                }
                scores.push(dot * scale);
                terms = terms.max(size * scale.abs());
            }
            let p = softmax(&scores, visible);
            for i in 0..n.d {
                let (mut sum, mut size) = (0.0, 0.0);
                for j in 0..visible {
                    sum += p[j].0 * v[key(j, i)];
                    size += p[j].0 * v[key(j, i)].abs();
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
