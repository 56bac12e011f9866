//! Cases of the linear layers over quantised weights.

use assay_reference::Dtype;
use serde_json::{Value, json};

use super::super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};
use super::super::{Generated, Values};
use super::{Awq, Codes, Ct, Fp8, Gptq, Scales, Spec};

/// The quantised weight of a product.
#[derive(Clone, Copy, Debug)]
struct Weight {
    k: usize,
    n: usize,
    scales: Scales,
    asym: bool,
    act: bool,
    /// Inputs of a group.
    group: i64,
}

/// The format of an op's weights as a layer's specification.
fn spec(op: &str, w: Weight) -> Box<dyn Spec> {
    let Weight { k, n, scales, asym, act, group } = w;
    match op {
        "gptq_gemm" => {
            let format = if act { "v2" } else { "v1" };
            Box::new(Gptq { format, bits: 4, k, n, group_size: group, asym, act, scales })
        }
        "awq_gemm" => Box::new(Awq { k, n, group_size: group, asym, scales }),
        "ct_gemm" => {
            let (bits, scale_dtype) = (4, Dtype::Bf16);
            Box::new(Ct { bits, k, n, group_size: group, asym, act, scales, scale_dtype })
        }
        _ => {
            let block = [16, usize::try_from(group).unwrap_or(k)];
            let scale_dtype = if act { Dtype::Bf16 } else { Dtype::F32 };
            // NaN codes among the others, in half of the columns.
            let codes = if k == SPECIAL_K { Codes::Every } else { Codes::Quantised };
            Box::new(Fp8 { n, k, block, scales, scale_dtype, codes })
        }
    }
}

/// x [M, K] and bias \[N\] from the case's own source.
type Sides = (Vec<f64>, Option<Vec<f64>>);

struct Product {
    op: &'static str,
    family: Family,
    m: usize,
    weight: Weight,
    note: &'static str,
    dtype: Dtype,
    seed: u64,
}

impl Product {
    fn case(self, row_parallel: bool, sides: impl Fn(&mut Values) -> Sides) -> Generated {
        let spec = spec(self.op, self.weight);
        self.of(&*spec, row_parallel, sides)
    }

    fn of(
        self,
        spec: &dyn Spec,
        row_parallel: bool,
        sides: impl Fn(&mut Values) -> Sides,
    ) -> Generated {
        let Product { op, family, m, note, dtype, seed, .. } = self;
        let parallel = if row_parallel { " row parallel" } else { "" };
        let label = format!("M {m} {}{note}{parallel}", spec.label());
        let mut draft = Draft::new(op, family, label, dtype, seed);
        let mut v = draft.values();
        let layer = spec.layer(&mut v);
        let (x, bias) = sides(&mut v);
        for (name, tensor) in layer.tensors {
            draft = draft.tensor(name, tensor);
        }
        draft = draft.with("x", &[m, layer.k], &x);
        if let Some(bias) = bias {
            draft = draft.with("bias", &[layer.n], &bias);
        }
        draft.params(params(op, layer.params, row_parallel)).done()
    }
}

fn params(op: &str, dequant: Value, row_parallel: bool) -> Value {
    let layout = if ["gptq_gemm", "awq_gemm"].contains(&op) { "in_out" } else { "out_in" };
    let mut matmul = json!({ "layout": layout });
    if row_parallel {
        matmul["row_parallel"] = json!(true);
    }
    json!({ "dequant": dequant, "matmul": matmul })
}

/// Inputs of the special cases, and of no other ones.
const SPECIAL_K: usize = 56;

const WEIGHT: Weight =
    Weight { k: 264, n: 8, scales: Scales::Trained, asym: true, act: false, group: 32 };

pub(in super::super) fn small(op: &'static str, seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit(op, 8, WEIGHT, dtype, false, seed));
        out.push(unit(op, 3, Weight { k: 384, n: 16, act: true, ..WEIGHT }, dtype, true, seed));
        out.push(exact(op, 9, dtype, seed));
        out.push(outlier(op, 5, dtype, seed));
        out.push(special(op, 6, dtype, seed));
    }
    let one_group = Weight { k: 256, n: 16, group: -1, ..WEIGHT };
    out.push(unit(op, 3, one_group, Dtype::F16, false, seed));
    // Beyond every K limit.
    out.push(unit(op, 1, Weight { k: 16_416, ..WEIGHT }, Dtype::Bf16, false, seed));
    out.extend(other_widths(op, seed));
    out.push(scaled(op, seed));
    if op == "fp8_gemm" {
        out.push(subnormal_codes(seed));
    }
    out
}

/// FP8 weights that are all below the smallest normal code.
fn subnormal_codes(seed: u64) -> Generated {
    let (op, m, dtype) = ("fp8_gemm", 2, Dtype::Bf16);
    let weight = Weight { k: 64, n: 16, ..WEIGHT };
    let Weight { k, n, scales, .. } = weight;
    let (block, scale_dtype, codes) = ([16, 32], Dtype::F32, Codes::Subnormal);
    let spec = Fp8 { n, k, block, scales, scale_dtype, codes };
    let product = Product { op, family: SPECIAL, m, weight, note: "", dtype, seed };
    product.of(&spec, false, |v| (v.normals(m * k, 1.0), None))
}

/// A product with a factor, over more columns than a tile has.
fn scaled(op: &'static str, seed: u64) -> Generated {
    let weight = Weight { k: 64, n: 264, ..WEIGHT };
    let mut g = unit(op, 1, weight, Dtype::Bf16, false, seed);
    g.case.params["matmul"]["alpha"] = json!(0.5);
    g.label += " alpha 0.5";
    g
}

pub(in super::super) fn cases(op: &'static str, seed: u64) -> Vec<Generated> {
    let mut out = small(op, seed);
    // The rows at which real libraries change path.
    for m in [1, 7, 9, 16, 24, 25, 49, 50, 51, 63, 64, 65] {
        let weight = Weight { k: 128, n: 16, group: 128, ..WEIGHT };
        out.push(unit(op, m, weight, Dtype::F16, false, seed));
    }
    for k in [8, 120, 128, 136, 4096, 5120, 18_944, 25_600, 27_648] {
        let weight = Weight { k, group: 128, ..WEIGHT };
        out.push(unit(op, 2, weight, Dtype::Bf16, false, seed));
    }
    if op == "gptq_gemm" {
        out.extend(many_rows(op, seed));
    }
    out
}

/// More than the 50 rows up to which kernels take a path of their own: what the small cases show, and
/// tiles of 64 columns and 32 inputs that are not full. Then few rows over more than 256 columns.
fn many_rows(op: &'static str, seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit(op, 52, WEIGHT, dtype, false, seed));
        let indexed = Weight { k: 104, n: 72, act: true, ..WEIGHT };
        out.push(unit(op, 67, indexed, dtype, true, seed));
        out.push(exact(op, 54, dtype, seed));
        out.push(outlier(op, 66, dtype, seed));
        out.push(special(op, 53, dtype, seed));
    }
    let one_group = Weight { k: 96, n: 16, group: -1, ..WEIGHT };
    out.push(unit(op, 55, one_group, Dtype::F16, false, seed));
    let wide = Weight { k: 40, n: 264, ..WEIGHT };
    out.push(unit(op, 10, wide, Dtype::Bf16, false, seed));
    out
}

/// 3 bits, whose values lie in two words, and 8 bits.
fn other_widths(op: &'static str, seed: u64) -> Vec<Generated> {
    let Weight { scales, asym, .. } = WEIGHT;
    let (k, n, group_size) = (96, 32, 32);
    let one = |bits: u32| -> Option<Generated> {
        let spec: Box<dyn Spec> = match op {
            "gptq_gemm" => {
                let format = if bits == 8 { "v2" } else { "v1" };
                Box::new(Gptq { format, bits, k, n, group_size, asym, act: false, scales })
            }
            "ct_gemm" => {
                let scale_dtype = Dtype::F16;
                Box::new(Ct { bits, k, n, group_size, asym, act: false, scales, scale_dtype })
            }
            _ => return None,
        };
        let weight = Weight { k, n, ..WEIGHT };
        let product =
            Product { op, family: UNIT, m: 3, weight, note: "", dtype: Dtype::Bf16, seed };
        Some(product.of(&*spec, false, |v| (v.normals(3 * k, 1.0), Some(v.normals(n, 1.0)))))
    };
    [2, 3, 8].into_iter().filter_map(one).collect()
}

fn unit(
    op: &'static str,
    m: usize,
    weight: Weight,
    dtype: Dtype,
    row_parallel: bool,
    seed: u64,
) -> Generated {
    let Weight { k, n, .. } = weight;
    Product { op, family: UNIT, m, weight, note: "", dtype, seed }
        .case(row_parallel, |v| (v.normals(m * k, 1.0), Some(v.normals(n, 1.0))))
}

/// Scales 1, 2 and 4 and a few terms of small integers: every partial sum is exact, and many a result
/// lies half-way between two stored numbers.
fn exact(op: &'static str, m: usize, dtype: Dtype, seed: u64) -> Generated {
    let weight = Weight { scales: Scales::Powers, k: 72, n: 16, ..WEIGHT };
    let (k, n) = (weight.k, weight.n);
    Product { op, family: EXACT, m, weight, note: "", dtype, seed }.case(false, |v| {
        let mut x = vec![0.0; m * k];
        // Row r takes every m-th term, so that together the rows weigh every term.
        for (i, x) in x.iter_mut().enumerate().filter(|(i, _)| i % k % m == i / k) {
            *x = [1.0, -5.0, 37.0, -1.0, 5.0, -37.0][v.below(6)]
                * if i % 2 == 0 { 1.0 } else { -1.0 };
        }
        (x, Some((0..n).map(|_| v.int(-40, 40) as f64).collect()))
    })
}

/// A channel at 26 times the rms, a block of 4200 in one row, biases up to 147; scales that differ by
/// three orders.
fn outlier(op: &'static str, m: usize, dtype: Dtype, seed: u64) -> Generated {
    let weight = Weight { scales: Scales::Wide, k: 192, n: 16, ..WEIGHT };
    let (k, n) = (weight.k, weight.n);
    Product { op, family: OUTLIER, m, weight, note: "", dtype, seed }.case(false, |v| {
        let mut x = v.normals(m * k, 1.0);
        x.chunks_mut(k).for_each(|row| row[k * 2 / 5] = 26.0 * (1.0 + 0.1 * v.uniform()));
        // An f16 accumulator of unscaled products overflows here.
        x[k + 8..k + 16].fill(4200.0);
        let mut bias = v.normals(n, 2.0);
        (bias[n / 3], bias[n / 2]) = (147.0, -98.5);
        (x, Some(bias))
    })
}

/// One kind a row: NaN, infinities, zeros, values that are subnormal in f16.
fn special(op: &'static str, m: usize, dtype: Dtype, seed: u64) -> Generated {
    let weight = Weight { k: SPECIAL_K, n: 16, ..WEIGHT };
    let (k, n) = (weight.k, weight.n);
    Product { op, family: SPECIAL, m, weight, note: "", dtype, seed }.case(false, |v| {
        let mut x = v.normals(m * k, 1.0);
        x[3] = f64::NAN;
        x[k + 5] = f64::INFINITY;
        x[2 * k + k - 1] = f64::NEG_INFINITY;
        x[3 * k..4 * k].fill(0.0);
        x[4 * k..5 * k].iter_mut().for_each(|x| *x *= 2e-5);
        let mut bias = v.normals(n, 1e-4);
        bias[2] = -0.0;
        bias[9] = f64::NAN;
        (x, Some(bias))
    })
}
