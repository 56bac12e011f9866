//! Legitimate forwards that differ as implementations do: Monte Carlo arithmetic.
//!
//! A legitimate implementation may sum in any order, and its exponential may be an ulp off. What that
//! does to the logits, through all layers, is not derived but sampled: every value that an op reads is
//! multiplied by 1 + c u xi, with u the unit roundoff of the arithmetic and xi random with mean 0 and
//! variance 1. For a sum of K products c = sqrt(K/18 + 1/3), so that the result gets the standard
//! deviation of the statistical bound of a dot in any order (docs/tolerances.md). c is 2 at least, for
//! functions that are a few ulps off. The angle of a rotation is off by its position times the error of
//! a frequency, 2 u of it; a sum of two is left alone.
//!
//! Source: D. S. Parker, Monte Carlo Arithmetic (1997),
//! <https://web.cs.ucla.edu/~stott/mca/CSD-970002.ps.gz>

use crate::arith::Real;
use crate::dtype::pow2;
use crate::ops::Arg;

/// A seeded source of such moves.
#[derive(Clone, Debug)]
pub struct Jitter {
    state: u64,
}

impl Jitter {
    /// The same seed gives the same moves.
    pub fn new(seed: u64) -> Jitter {
        Jitter { state: seed }
    }

    /// Uniform with mean 0 and variance 1 (splitmix64).
    fn next(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let unit = (z >> 11) as f64 * pow2(-53);
        (2.0 * unit - 1.0) * 3f64.sqrt()
    }

    /// An input of `op`, in a call up to `position`, moved by as much as arithmetic of `bits`
    /// significant bits may move the result.
    pub(super) fn moved<'a, R: Real>(
        &mut self,
        op: &str,
        arg: Arg<'a, R>,
        position: usize,
        bits: i32,
    ) -> Arg<'a, R> {
        let sum = |k: f64| (k / 18.0 + 1.0 / 3.0).sqrt().max(2.0);
        let c = match op {
            // One rounding, the same for everybody.
            "add" => return arg,
            // The sum of a norm is of one sign: its error is that of a function.
            "rms_norm" | "silu_mul" | "moe_route" => 2.0,
            "rope" => 2.0 * (position as f64).max(1.0),
            _ => sum(arg.cols() as f64),
        };
        let Arg::Made { shape, data } = arg else { return arg };
        let mut data = data.into_owned();
        let c = c * pow2(-bits);
        for x in &mut data {
            *x = x.mul(R::constant(1.0 + c * self.next()));
        }
        Arg::made(shape, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_have_mean_0_and_variance_1() {
        let mut jitter = Jitter::new(1);
        let n = 100_000;
        let all: Vec<f64> = (0..n).map(|_| jitter.next()).collect();
        let mean = all.iter().sum::<f64>() / f64::from(n);
        let variance = all.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        // Standard errors: 1/sqrt(n), and sqrt(4/5 / n) for a uniform's square.
        assert!(mean.abs() < 5.0 / f64::from(n).sqrt(), "{mean}");
        assert!((variance - 1.0).abs() < 5.0 * (0.8 / f64::from(n)).sqrt(), "{variance}");
    }
}
