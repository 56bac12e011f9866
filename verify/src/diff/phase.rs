//! How far a recorded rotation's angles are off, position by position.

use assay_reference::arith::math;
use assay_reference::ops::rope::Rope;
use assay_reference::ops::{Op, Setup, Tile};
use assay_reference::{Dtype, Result};
use serde::Serialize;

use crate::judge::{Observation, Verdict};

/// The angle error at one position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseError {
    /// The position.
    pub position: i64,
    /// The largest error over the pairs of a head, in radians.
    pub radians: f64,
    /// The pair (i, i + head_dim/2) that has it; 0 turns fastest.
    pub pair: usize,
}

/// By position, from recorded outputs against right ones. Each pair's angle is that of the sum over
/// heads of z conj(right z), with z the pair as a complex number, which weighs heads by how much they
/// tell. Rounding to the stored dtype alone gives up to about its unit roundoff.
///
/// # Errors
/// When a case is not rope's.
pub(super) fn errors(runs: &[Observation]) -> Result<Vec<PhaseError>> {
    let mut errors = Vec::new();
    for run in runs {
        let case = &run.case;
        let params = case.params::<Rope>()?;
        let policy = Rope::policy(Dtype::F64);
        let setup = Setup::<Rope> { params, policy, tensors: case.tensors.clone() };
        let right = setup.eval::<f64>(&Tile::ALL).remove(0).data;
        let observed = run.output.to_f64();
        let (Some(x), Some(positions)) = (case.tensors.get("x"), case.tensors.get("positions"))
        else {
            continue;
        };
        let &[tokens, heads, d] = x.shape() else { continue };
        let half = d / 2;
        for t in 0..tokens {
            let of_pair = |i: usize| {
                let (mut re, mut im) = (0.0, 0.0);
                for h in 0..heads {
                    let at = (t * heads + h) * d + i;
                    let (a, b) = (observed[at], observed[at + half]);
                    let (c, d) = (right[at], right[at + half]);
                    re += a * c + b * d;
                    im += b * c - a * d;
                }
                math::atan2(im, re).abs()
            };
            let worst = (0..half).map(|i| (of_pair(i), i)).max_by(|a, b| a.0.total_cmp(&b.0));
            let (radians, pair) = worst.unwrap_or((0.0, 0));
            errors.push(PhaseError { position: positions.get_i64(t), radians, pair });
        }
    }
    Ok(errors)
}

/// Adds the curve to what is said of the fault: at powers of 4 and at the end.
pub(super) fn tell(verdict: &mut Verdict, errors: &[PhaseError]) {
    let mut wanted = 1;
    let mut points = Vec::new();
    for (i, e) in errors.iter().enumerate() {
        if e.position >= wanted || i + 1 == errors.len() {
            points.push(format!("{:.3} at {}", e.radians, e.position));
            while wanted <= e.position {
                wanted *= 4;
            }
        }
    }
    let curve = format!("; angle error in radians by position: {}", points.join(", "));
    match verdict {
        Verdict::Fail { findings } => findings.iter_mut().for_each(|f| f.text += &curve),
        Verdict::Unexplained { pattern } => *pattern += &curve,
        _ => {}
    }
}
