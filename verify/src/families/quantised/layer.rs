//! One layer's tensors in a quantised format, from a specification.

use assay_reference::ops::packed;
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

use super::super::Values;

/// A dequantisation's params, its tensors, and the layer's outputs and inputs.
pub(in super::super) struct Layer {
    pub(in super::super) params: Value,
    pub(in super::super) tensors: Vec<(&'static str, Tensor)>,
    pub(in super::super) n: usize,
    pub(in super::super) k: usize,
}

/// What the scales look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Scales {
    /// Distinct, with all significand bits, as quantisers write them.
    Trained,
    /// Powers of two: every product is exact.
    Powers,
    /// From 1e-4 to 0.5, so that one group outweighs the others.
    Wide,
    /// Negative, subnormal, huge, infinite, NaN, zero.
    Special,
}

impl Scales {
    fn draw(self, v: &mut Values) -> f64 {
        match self {
            Scales::Trained => 0.004 + 0.02 * v.uniform(),
            Scales::Powers => [1.0, 2.0, 4.0][v.below(3)],
            Scales::Wide => {
                let by = [1e-4, 1e-3, 0.01, 0.1][v.below(4)];
                by * (1.0 + 4.0 * v.uniform())
            }
            Scales::Special => match v.below(8) {
                0 => -0.01 * (1.0 + v.uniform()),
                1 => 3e-6 * (1.0 + v.uniform()),
                2 => 6e-8,
                3 => 6e4,
                4 => 40.0 * (1.0 + v.uniform()),
                5 => f64::INFINITY,
                6 => f64::NAN,
                _ => 0.0,
            },
        }
    }
}

/// A format's layer.
pub(in super::super) trait Spec {
    /// Draws the layer's tensors.
    fn layer(&self, v: &mut Values) -> Layer;
    /// `v1 4 bits 128x64 g32 asym act`.
    fn label(&self) -> String;
}

/// Inputs of a group.
fn size(group_size: i64, k: usize) -> usize {
    usize::try_from(group_size).map_or(k, |g| g.min(k))
}

/// One little-endian bit stream.
fn pack(values: &[u32], bits: u32) -> Vec<i32> {
    let mut words = vec![0u32; packed::words(values.len(), bits)];
    for (i, v) in values.iter().enumerate() {
        let bit = i * bits as usize;
        words[bit / 32] |= v << (bit % 32);
        if bit % 32 + bits as usize > 32 {
            words[bit / 32 + 1] |= v >> (32 - bit % 32);
        }
    }
    words.into_iter().map(|w| w as i32).collect()
}

/// The transpose of rows of equal length.
fn transposed(rows: &[Vec<i32>]) -> Vec<i32> {
    (0..rows[0].len()).flat_map(|i| rows.iter().map(move |r| r[i])).collect()
}

/// Zero points of the groups' columns: the middle, or any, both ends among them.
fn zeros(v: &mut Values, bits: u32, count: usize, asym: bool) -> Vec<u32> {
    let ends = [packed::mask(bits), 0];
    let one = |i: usize, v: &mut Values| match asym {
        false => 1 << (bits - 1),
        true => ends.get(i).copied().unwrap_or_else(|| v.below(1 << bits) as u32),
    };
    (0..count).map(|i| one(i, v)).collect()
}

/// Groups of rows in a shuffled order.
fn shuffled(v: &mut Values, k: usize, size: usize) -> Tensor {
    let index: Vec<i32> = v.permutation(k).iter().map(|&p| (p / size) as i32).collect();
    Tensor::from_i32(&[k], &index)
}

fn scales(v: &mut Values, kind: Scales, shape: [usize; 2], dtype: Dtype) -> Tensor {
    let values: Vec<f64> = (0..shape[0] * shape[1]).map(|_| kind.draw(v)).collect();
    Tensor::from_f64(dtype, &shape, &values)
}

fn flags(asym: bool, act: bool) -> String {
    format!("{}{}", if asym { "asym" } else { "sym" }, if act { " act" } else { "" })
}

/// A GPTQ layer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Gptq {
    pub(in super::super) format: &'static str,
    pub(in super::super) bits: u32,
    pub(in super::super) k: usize,
    pub(in super::super) n: usize,
    pub(in super::super) group_size: i64,
    pub(in super::super) asym: bool,
    pub(in super::super) act: bool,
    pub(in super::super) scales: Scales,
}

impl Spec for Gptq {
    fn layer(&self, v: &mut Values) -> Layer {
        let Gptq { format, bits, k, n, group_size, asym, act, scales: kind } = *self;
        let size = size(group_size, k);
        let groups = k.div_ceil(size);
        let columns: Vec<Vec<i32>> = (0..n)
            .map(|_| {
                let values: Vec<u32> = (0..k).map(|_| v.below(1 << bits) as u32).collect();
                pack(&values, bits)
            })
            .collect();
        let stored = zeros(v, bits, groups * n, asym);
        // v1 stores one less.
        let less = u32::from(format == "v1" && !asym);
        let rows: Vec<u32> = stored.iter().map(|z| z - less).collect();
        let qzeros: Vec<i32> = rows.chunks(n).flat_map(|row| pack(row, bits)).collect();
        let mut tensors = vec![
            ("qweight", Tensor::from_i32(&[packed::words(k, bits), n], &transposed(&columns))),
            ("qzeros", Tensor::from_i32(&[groups, packed::words(n, bits)], &qzeros)),
            ("scales", scales(v, kind, [groups, n], Dtype::F16)),
        ];
        if act {
            tensors.push(("g_idx", shuffled(v, k, size)));
        }
        let params = json!({ "format": format, "bits": bits, "group_size": group_size });
        Layer { params, tensors, n, k }
    }

    fn label(&self) -> String {
        let Gptq { format, bits, k, n, group_size, asym, act, .. } = *self;
        format!("{format} {bits} bits {k}x{n} g{group_size} {}", flags(asym, act))
    }
}

/// An AWQ layer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Awq {
    pub(in super::super) k: usize,
    pub(in super::super) n: usize,
    pub(in super::super) group_size: i64,
    pub(in super::super) asym: bool,
    pub(in super::super) scales: Scales,
}

impl Spec for Awq {
    fn layer(&self, v: &mut Values) -> Layer {
        let Awq { k, n, group_size, asym, scales: kind } = *self;
        let groups = k.div_ceil(size(group_size, k));
        // Slot i of a word holds column [0, 2, 4, 6, 1, 3, 5, 7][i].
        let interleave = |row: &[u32]| -> Vec<i32> {
            let slots = |w: &[u32]| [0, 2, 4, 6, 1, 3, 5, 7].map(|c| w[c]);
            row.chunks(8).flat_map(|w| pack(&slots(w), 4)).collect()
        };
        let q: Vec<u32> = (0..k * n).map(|_| v.below(16) as u32).collect();
        let z = zeros(v, 4, groups * n, asym);
        let tensors = vec![
            ("qweight", Tensor::from_i32(&[k, n / 8], &interleave(&q))),
            ("qzeros", Tensor::from_i32(&[groups, n / 8], &interleave(&z))),
            ("scales", scales(v, kind, [groups, n], Dtype::F16)),
        ];
        Layer { params: json!({ "group_size": group_size }), tensors, n, k }
    }

    fn label(&self) -> String {
        let Awq { k, n, group_size, asym, .. } = *self;
        format!("{k}x{n} g{group_size} {}", flags(asym, false))
    }
}

/// A compressed-tensors layer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ct {
    pub(in super::super) bits: u32,
    pub(in super::super) k: usize,
    pub(in super::super) n: usize,
    pub(in super::super) group_size: i64,
    pub(in super::super) asym: bool,
    pub(in super::super) act: bool,
    pub(in super::super) scales: Scales,
    pub(in super::super) scale_dtype: Dtype,
}

impl Spec for Ct {
    fn layer(&self, v: &mut Values) -> Layer {
        let Ct { bits, k, n, group_size, asym, act, scales: kind, scale_dtype } = *self;
        let size = size(group_size, k);
        let groups = k.div_ceil(size);
        let rows: Vec<i32> = (0..n)
            .flat_map(|_| {
                let values: Vec<u32> = (0..k).map(|_| v.below(1 << bits) as u32).collect();
                pack(&values, bits)
            })
            .collect();
        let mut tensors = vec![
            ("weight_packed", Tensor::from_i32(&[n, packed::words(k, bits)], &rows)),
            ("weight_scale", scales(v, kind, [n, groups], scale_dtype)),
            ("weight_shape", Tensor::from_i32(&[2], &[n as i32, k as i32])),
        ];
        if asym {
            // A column of groups is one stream along N.
            let z = zeros(v, bits, groups * n, true);
            let columns: Vec<Vec<i32>> = z.chunks(n).map(|column| pack(column, bits)).collect();
            let shape = [packed::words(n, bits), groups];
            tensors.push(("weight_zero_point", Tensor::from_i32(&shape, &transposed(&columns))));
        }
        if act {
            tensors.push(("weight_g_idx", shuffled(v, k, size)));
        }
        Layer { params: json!({ "bits": bits, "group_size": group_size }), tensors, n, k }
    }

    fn label(&self) -> String {
        let Ct { bits, k, n, group_size, asym, act, scale_dtype, .. } = *self;
        format!("{bits} bits {n}x{k} g{group_size} {} {scale_dtype}", flags(asym, act))
    }
}

/// A block-scaled FP8 layer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Fp8 {
    pub(in super::super) n: usize,
    pub(in super::super) k: usize,
    pub(in super::super) block: [usize; 2],
    pub(in super::super) scales: Scales,
    pub(in super::super) scale_dtype: Dtype,
    pub(in super::super) codes: Codes,
}

/// Codes of an FP8 weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Codes {
    /// As quantised: the largest of a block is 448.
    Quantised,
    /// Every one, NaN among them.
    Every,
    /// The subnormal ones.
    Subnormal,
}

impl Spec for Fp8 {
    fn layer(&self, v: &mut Values) -> Layer {
        let Fp8 { n, k, block, scales: kind, scale_dtype, codes } = *self;
        let of = |code: &mut dyn FnMut(usize) -> u8| {
            let codes: Vec<u8> = (0..n * k).map(code).collect();
            Tensor::from_bytes(Dtype::F8E4m3, vec![n, k], codes).expect("a byte an element")
        };
        let weight = match codes {
            Codes::Every => of(&mut |i| (i * 7 % 256) as u8),
            Codes::Subnormal => of(&mut |_| 1 + v.below(7) as u8 + 128 * v.below(2) as u8),
            Codes::Quantised => {
                let mut values: Vec<f64> = (0..n * k).map(|_| v.normal(110.0)).collect();
                values.iter_mut().step_by(97).for_each(|x| *x = 448.0 * x.signum());
                values.iter_mut().for_each(|x| *x = x.clamp(-448.0, 448.0));
                Tensor::from_f64(Dtype::F8E4m3, &[n, k], &values)
            }
        };
        let shape = [n.div_ceil(block[0]), k.div_ceil(block[1])];
        let tensors =
            vec![("weight", weight), ("weight_scale_inv", scales(v, kind, shape, scale_dtype))];
        Layer { params: json!({ "block": block }), tensors, n, k }
    }

    fn label(&self) -> String {
        let Fp8 { n, k, block: [rows, columns], scale_dtype, codes, .. } = *self;
        let codes = match codes {
            Codes::Quantised => "",
            Codes::Every => " every code",
            Codes::Subnormal => " subnormal codes",
        };
        format!("{n}x{k} blocks {rows}x{columns} {scale_dtype}{codes}")
    }
}
