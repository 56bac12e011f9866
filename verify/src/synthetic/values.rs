//! The weights: a function of seed, tensor name and element, so that no order of making them changes a bit.
//!
//! Element i of a tensor is `centre + width · u`, u uniform in (-1, 1) from the upper half of
//! `mix(key + (i + 1) · 0x9E3779B97F4A7C15)`: splitmix64 (<https://prng.di.unimi.it/splitmix64.c>) at position i,
//! whose key is made of the seed and the name. It is computed in f32 and rounded once.
//!
//! | tensor | values |
//! |---|---|
//! | matrix of k columns | mean 0, standard deviation 1/√k: outputs are as large as normalised inputs |
//! | weight of a norm | 0.9 to 1.1 |
//! | bias | standard deviation 0.02 |
//!
//! So a layer adds to the residual stream what a normalised input makes of it, about 1: after 100 layers it is of the
//! order of 10, and logits are of the order of 1.

use assay_reference::Dtype;
use half::{bf16, f16};

/// The step of splitmix64: 2^64 over the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The values of one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    key: u64,
    centre: f32,
    /// What half a unit of the 32 random bits is worth.
    unit: f32,
}

impl Values {
    /// Those of the tensor `name` of this shape under `seed`.
    pub(super) fn new(seed: u64, name: &str, shape: &[usize]) -> Values {
        let sqrt3 = 3f64.sqrt(); // half the width of a uniform distribution of variance 1
        let (centre, width) = match *shape {
            [_, columns] => (0.0, sqrt3 / (columns.max(1) as f64).sqrt()),
            _ if name.ends_with(".bias") => (0.0, 0.02 * sqrt3),
            _ => (1.0, 0.1),
        };
        let key = mix(mix(seed.wrapping_add(STEP)) ^ hash(name));
        Values { key, centre, unit: (width / 2f64.powi(31)) as f32 }
    }

    fn at(self, i: u64) -> f32 {
        let word = mix(self.key.wrapping_add(STEP.wrapping_mul(i.wrapping_add(1))));
        // Never 0 of itself: the half keeps the smallest of both signs apart.
        let bits = (word >> 32) as u32 as i32; // the same 32 bits, with a sign
        self.centre + (bits as f32 + 0.5) * self.unit
    }

    /// Writes the elements from `first` on into `out`, as many as it holds.
    pub(super) fn fill(self, dtype: Dtype, first: u64, out: &mut [u8]) {
        match dtype {
            Dtype::Bf16 => self.each(first, out, |x| bf16::from_f32(x).to_le_bytes()),
            Dtype::F16 => self.each(first, out, |x| f16::from_f32(x).to_le_bytes()),
            _ => self.each(first, out, f32::to_le_bytes),
        }
    }

    fn each<const N: usize>(self, first: u64, out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
        for (i, element) in (first..).zip(out.as_chunks_mut::<N>().0) {
            *element = bytes(self.at(i));
        }
    }
}

/// The output function of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// FNV-1a in 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>).
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of splitmix64 for the seed 1234567, by the C source that the module names.
    #[test]
    fn words_are_those_of_splitmix64() {
        let word = |i: u64| mix(1_234_567u64.wrapping_add(STEP.wrapping_mul(i + 1)));
        assert_eq!([word(0), word(1)], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn means_and_deviations_are_those_of_the_table() {
        for (name, shape, mean, sd) in [
            ("m.q_proj.weight", &[64, 400][..], 0.0, 0.05),
            ("m.norm.weight", &[20_000][..], 1.0, 0.1 / 3f64.sqrt()),
            ("m.q_proj.bias", &[20_000][..], 0.0, 0.02),
        ] {
            let values = Values::new(7, name, shape);
            let all: Vec<f64> = (0..20_000).map(|i| f64::from(values.at(i))).collect();
            let found = all.iter().sum::<f64>() / 2e4;
            let spread = (all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 2e4).sqrt();
            // Six standard errors of a mean, and more than that of a deviation.
            let error = 6.0 * sd / 2e4f64.sqrt();
            assert!((found - mean).abs() < error && (spread - sd).abs() < error, "{name}");
        }
    }

    #[test]
    fn a_part_is_the_same_part_of_the_whole() {
        let values = Values::new(1, "x.weight", &[8, 8]);
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let (mut whole, size) = (vec![0; 64 * dtype.size()], dtype.size());
            values.fill(dtype, 0, &mut whole);
            let mut part = vec![0; 9 * size];
            values.fill(dtype, 13, &mut part);
            assert_eq!(part, whole[13 * size..22 * size], "{dtype:?}");
        }
    }
}
