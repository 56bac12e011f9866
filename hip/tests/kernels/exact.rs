//! The ops in f64, written as plainly as can be.

/// An output element, with the sum of the magnitudes that make it up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exact {
    pub(crate) value: f64,
    pub(crate) magnitude: f64,
}

impl Exact {
    fn add(&mut self, term: f64) {
        self.value += term;
        self.magnitude += term.abs();
    }
}

/// x [M, K], weight [N, K], bias [N].
pub(crate) fn matmul(x: &[f64], weight: &[f64], bias: Option<&[f64]>, k: usize) -> Vec<Exact> {
    let mut out = Vec::new();
    for row in x.chunks_exact(k) {
        for (n, column) in weight.chunks_exact(k).enumerate() {
            let mut y = Exact::default();
            row.iter().zip(column).for_each(|(a, b)| y.add(a * b));
            if let Some(bias) = bias {
                y.add(bias[n]);
            }
            out.push(y);
        }
    }
    out
}

pub(crate) struct Heads {
    pub(crate) t: usize,
    pub(crate) s: usize,
    pub(crate) q: usize,
    pub(crate) kv: usize,
}

/// q [T, Hq, 128], k and v [S, Hkv, 128].
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], heads: &Heads, scale: f64) -> Vec<Exact> {
    const D: usize = 128;
    let mut out = Vec::new();
    for t in 0..heads.t {
        for h in 0..heads.q {
            let kv_head = h / (heads.q / heads.kv);
            let query = &q[(t * heads.q + h) * D..][..D];
            let at = |j: usize| (j * heads.kv + kv_head) * D;
            let score = |j: usize| {
                let key = &k[at(j)..][..D];
                query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * scale
            };
            let scores: Vec<f64> = (0..=heads.s - heads.t + t).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| libm::exp(score - max)).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..D {
                let mut y = Exact::default();
                weights.iter().enumerate().for_each(|(j, p)| y.add(p / sum * v[at(j) + d]));
                out.push(y);
            }
        }
    }
    out
}

/// `rows` gives, for every key, the row of a [rows, Hkv, 128] cache that holds it.
pub(crate) fn attention_paged(
    q: &[f64],
    [k, v]: [&[f64]; 2],
    rows: &[usize],
    heads: &Heads,
    scale: f64,
) -> Vec<Exact> {
    let width = heads.kv * 128;
    let gather = |cache: &[f64]| -> Vec<f64> {
        rows.iter().flat_map(|&row| cache[row * width..][..width].to_vec()).collect()
    };
    attention(q, &gather(k), &gather(v), heads, scale)
}

pub(crate) struct Gptq<'a> {
    pub(crate) qweight: &'a [i32],
    pub(crate) qzeros: &'a [i32],
    pub(crate) scales: &'a [f64],
    pub(crate) groups: &'a [usize],
    pub(crate) n: usize,
    pub(crate) bits: usize,
    pub(crate) plus_one: bool,
}

/// Value `i` of a stream of `bits` bits, whose words are `word(0)`, `word(1)`, ..., bit by bit.
fn in_stream(i: usize, bits: usize, word: impl Fn(usize) -> i32) -> u32 {
    let bit = |at: usize| word(at / 32) as u32 >> (at % 32) & 1;
    (0..bits).map(|b| bit(i * bits + b) << b).sum()
}

/// Groups gives the group of every row.
pub(crate) fn gptq_dequant(g: &Gptq<'_>) -> Vec<Exact> {
    let zero_words = g.n * g.bits / 32;
    let mut out = Vec::new();
    for (k, &group) in g.groups.iter().enumerate() {
        for n in 0..g.n {
            let quantised = in_stream(k, g.bits, |w| g.qweight[w * g.n + n]);
            let stored = in_stream(n, g.bits, |w| g.qzeros[group * zero_words + w]);
            let zero = stored + u32::from(g.plus_one);
            let value = (f64::from(quantised) - f64::from(zero)) * g.scales[group * g.n + n];
            out.push(Exact { value, magnitude: 0.0 });
        }
    }
    out
}

/// Elementwise.
pub(crate) fn silu_mul(gate: &[f64], up: &[f64]) -> Vec<Exact> {
    let element = |(g, u): (&f64, &f64)| {
        let value = g / (1.0 + libm::exp(-g)) * u;
        Exact { value, magnitude: value.abs() }
    };
    gate.iter().zip(up).map(element).collect()
}

/// x [rows, V]: the index of the first largest element, or of the first NaN.
pub(crate) fn argmax(x: &[f64], v: usize) -> Vec<Exact> {
    let index = |row: &[f64]| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let first_nan = row.iter().position(|x| x.is_nan());
        first_nan.or_else(|| row.iter().position(|x| *x == largest)).unwrap_or(0)
    };
    let exact = |row| Exact { value: index(row) as f64, magnitude: 0.0 };
    x.chunks_exact(v).map(exact).collect()
}

/// x [rows, D].
pub(crate) fn softmax(x: &[f64], d: usize) -> Vec<Exact> {
    let mut out = Vec::new();
    for row in x.chunks_exact(d) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let terms: Vec<f64> = row.iter().map(|x| libm::exp(x - max)).collect();
        let sum: f64 = terms.iter().sum();
        out.extend(terms.iter().map(|t| Exact { value: t / sum, magnitude: t / sum }));
    }
    out
}

/// weight [V, H].
pub(crate) fn embedding(ids: &[usize], weight: &[f64], h: usize) -> Vec<Exact> {
    let row = |id: &usize| weight[id * h..][..h].iter();
    let copied = ids.iter().flat_map(row);
    copied.map(|&value| Exact { value, magnitude: 0.0 }).collect()
}

/// One cache [slots, row] after rows [T, row], already as they are stored, went to their slots.
pub(crate) fn kv_store(rows: &[f64], cache: &[f64], slots: &[i32], row: usize) -> Vec<Exact> {
    let mut after = cache.to_vec();
    for (t, &slot) in slots.iter().enumerate() {
        if let Ok(slot) = usize::try_from(slot) {
            after[slot * row..][..row].copy_from_slice(&rows[t * row..][..row]);
        }
    }
    after.into_iter().map(|value| Exact { value, magnitude: 0.0 }).collect()
}

/// Rows of d.
pub(crate) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<Exact> {
    let d = weight.len();
    let mut out = Vec::new();
    for row in x.chunks_exact(d) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / d as f64;
        for (x, w) in row.iter().zip(weight) {
            let value = x / (mean + eps).sqrt() * w;
            out.push(Exact { value, magnitude: value.abs() });
        }
    }
    out
}

/// x [T, H, d]. The angle is formed in f32, as the op says.
pub(crate) fn rope(x: &[f64], positions: &[i32], d: usize, theta: f64) -> Vec<Exact> {
    let half = d / 2;
    let heads = x.len() / d / positions.len();
    let mut out = vec![Exact::default(); x.len()];
    for (r, row) in x.chunks_exact(d).enumerate() {
        for i in 0..half {
            let frequency = libm::pow(theta, -2.0 * i as f64 / d as f64) as f32;
            let angle = f64::from(positions[r / heads] as f32 * frequency);
            let (cos, sin) = (libm::cos(angle), libm::sin(angle));
            let (low, high) = (row[i], row[i + half]);
            out[r * d + i].add(low * cos);
            out[r * d + i].add(-high * sin);
            out[r * d + i + half].add(high * cos);
            out[r * d + i + half].add(low * sin);
        }
    }
    out
}

pub(crate) struct Awq<'a> {
    pub(crate) qweight: &'a [i32],
    pub(crate) qzeros: &'a [i32],
    pub(crate) scales: &'a [f64],
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) rows_per_group: usize,
}

pub(crate) fn awq_dequant(a: &Awq<'_>) -> Vec<Exact> {
    let words = a.n / 8;
    let value = |row: &[i32], n: usize| {
        let slot = [0, 2, 4, 6, 1, 3, 5, 7].iter().position(|&column| column == n % 8).unwrap();
        row[n / 8] as u32 >> (4 * slot) & 15
    };
    let mut out = Vec::new();
    for k in 0..a.k {
        let group = k / a.rows_per_group;
        for n in 0..a.n {
            let quantised = value(&a.qweight[k * words..][..words], n);
            let zero = value(&a.qzeros[group * words..][..words], n);
            let value = (f64::from(quantised) - f64::from(zero)) * a.scales[group * a.n + n];
            out.push(Exact { value, magnitude: 0.0 });
        }
    }
    out
}
