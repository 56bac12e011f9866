//! Acceptance criteria of other projects, each from its own source, applied to the same outputs.
//!
//! Every one compares an output with one reference of the same dtype, here the oracle under the op's
//! default convention rounded once, and knows nothing of conventions. They are written from what
//! their sources do. Outputs whose reference is not finite are left out of the comparison of criteria:
//! most of them refuse or skip such values by rule, whatever the subject did.

mod ck;
mod cosine;
mod llama_cpp;
mod marlin;
mod migraphx;
mod torch;
mod vllm;

use assay_reference::Dtype;
use serde::Serialize;

/// A rule that accepts or flags an output.
#[derive(Clone, Copy, Debug)]
pub struct Criterion {
    /// Short name, for columns.
    pub name: &'static str,
    /// The rule in words, with its constants.
    pub rule: &'static str,
    /// Where it is written.
    pub source: &'static str,
    /// Whether it accepts an output.
    pub accepts: fn(&Compared<'_>) -> bool,
}

/// What a criterion sees.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a> {
    /// The op's name, for criteria with limits by op.
    pub op: &'a str,
    /// Stored dtype of both.
    pub dtype: Dtype,
    /// The subject's output.
    pub output: &'a [f64],
    /// The reference, of the same length.
    pub right: &'a [f64],
}

/// All criteria, in the order of the tables.
pub const ALL: [Criterion; 7] = [
    llama_cpp::NMSE,
    torch::ASSERT_CLOSE,
    vllm::DEFAULT,
    marlin::MEAN_RATIO,
    migraphx::RMS,
    ck::CHECK_ERR,
    cosine::COSINE,
];

/// What a report says of a criterion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cited {
    /// Short name.
    pub name: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// Its source.
    pub source: &'static str,
}

/// The citations of all criteria.
pub fn cited() -> Vec<Cited> {
    ALL.iter().map(|c| Cited { name: c.name, rule: c.rule, source: c.source }).collect()
}

impl Compared<'_> {
    fn pairs(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.output.iter().copied().zip(self.right.iter().copied())
    }

    /// |output - right| <= atol + rtol |right| everywhere; values that are not finite only where they
    /// are equal.
    fn is_close(&self, rtol: f64, atol: f64) -> bool {
        self.pairs().all(|(o, r)| {
            o == r || (o.is_finite() && r.is_finite() && (o - r).abs() <= atol + rtol * r.abs())
        })
    }

    fn is_integer(&self) -> bool {
        matches!(self.dtype, Dtype::I32 | Dtype::I64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(dtype: Dtype, output: &[f64], right: &[f64]) -> Vec<&'static str> {
        let op = "matmul";
        let seen = Compared { op, dtype, output, right };
        ALL.iter().filter(|c| !(c.accepts)(&seen)).map(|c| c.name).collect()
    }

    #[test]
    fn all_accept_the_reference_itself_and_flag_nan_and_zeros() {
        let right: Vec<f64> = (1..100).map(|i| f64::from(i) / 16.0).collect();
        assert!(flags(Dtype::Bf16, &right, &right).is_empty());
        let mut nan = right.clone();
        nan[7] = f64::NAN;
        assert_eq!(flags(Dtype::Bf16, &nan, &right).len(), ALL.len());
        let mut infinite = right.clone();
        infinite[7] = f64::INFINITY;
        assert_eq!(flags(Dtype::Bf16, &infinite, &right).len(), ALL.len());
        assert_eq!(flags(Dtype::Bf16, &vec![0.0; right.len()], &right).len(), ALL.len());
    }

    /// Each just inside and just outside of its own limit, on ones.
    #[test]
    fn limits_are_those_of_the_sources() {
        let right = [1.0; 64];
        let off = |d: f64| [1.0 + d; 64];
        let flagged = |dtype, name: &str, d: f64| flags(dtype, &off(d), &right).contains(&name);
        for (dtype, name, limit) in [
            (Dtype::Bf16, "llama.cpp", 5e-4f64.sqrt()),
            (Dtype::Bf16, "torch", 1.6e-2 + 1e-5),
            (Dtype::F16, "torch", 1e-3 + 1e-5),
            (Dtype::F32, "torch", 1.3e-6 + 1e-5),
            (Dtype::Bf16, "vLLM", 1.6e-2 + 1e-3),
            (Dtype::F16, "vLLM", 1e-3 + 1e-3),
            (Dtype::Bf16, "marlin", 0.04),
            (Dtype::Bf16, "CK", 2e-3),
            (Dtype::F32, "CK", 1e-5 + 3e-6),
        ] {
            assert!(!flagged(dtype, name, limit * 0.999), "{name} {dtype}");
            assert!(flagged(dtype, name, limit * 1.001), "{name} {dtype}");
        }
        // sqrt(mean square error) over the largest magnitude, which is the output's here.
        assert!(!flagged(Dtype::Bf16, "MIGraphX", 0.0869));
        assert!(flagged(Dtype::Bf16, "MIGraphX", 0.0870));
        // A gain does not change a cosine; an error at a right angle of 1.5 % does.
        assert!(!flagged(Dtype::Bf16, "cosine", 0.5));
        let crossed: Vec<f64> = (0..64).map(|i| 1.0 + [0.015, -0.015][i % 2]).collect();
        assert!(flags(Dtype::Bf16, &crossed, &right).contains(&"cosine"));
    }

    #[test]
    fn integers_are_equal_or_not() {
        let seen = flags(Dtype::I64, &[1000.0, 5.0], &[1000.0, 6.0]);
        assert!(seen.contains(&"torch") && seen.contains(&"CK"));
    }
}
