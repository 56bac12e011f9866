//! Random values from a seed, by proptest's generator.

use assay_reference::arith::math;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// A seeded source of values; the same on every machine.
#[derive(Debug)]
pub struct Values {
    rng: TestRng,
}

impl Values {
    /// From a seed and the name of what is drawn, so that cases are independent of each other.
    pub fn new(seed: u64, name: &str) -> Values {
        // FNV-1a of the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        let mut bytes = [0u8; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&hash.to_le_bytes());
        Values { rng: TestRng::from_seed(RngAlgorithm::ChaCha, &bytes) }
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// Uniform integer in low..=high.
    pub fn int(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// Normal of mean 0 and standard deviation `sd`.
    pub fn normal(&mut self, sd: f64) -> f64 {
        let radius = (-2.0 * math::ln(1.0 - self.uniform())).sqrt();
        sd * radius * math::cos(std::f64::consts::TAU * self.uniform())
    }

    /// `n` normal values.
    pub fn normals(&mut self, n: usize, sd: f64) -> Vec<f64> {
        (0..n).map(|_| self.normal(sd)).collect()
    }

    /// A permutation of 0..n.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut p: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            p.swap(i, self.below(i + 1));
        }
        p
    }
}
