//! Which lanes of a norm's reduction are lost, solved from its output.
//!
//! Element i of a row goes to lane i mod 64. A row's gain tells the mean of squares that was used, which
//! is the sum over the lanes of (0, 1 or 2 times) their share: one linear equation a row. With 64 rows
//! or more whose lanes differ, least squares tells each lane's factor.

use super::Residual;

/// Lanes of a wave.
const LANES: usize = 64;
/// How far a solved factor may be from a whole number.
const WHOLE: f64 = 0.2;

/// `lanes 32..=63 of 64 are lost`; `None` when the rows do not say, or none is lost.
pub(super) fn dead(eps: f64, residual: &Residual<'_>) -> Option<String> {
    let x = residual.tensors.get("x")?;
    let d = residual.cols;
    let rows = residual.expected.len() / d.max(1);
    if d < LANES || rows < LANES || x.len() != rows * d {
        return None;
    }
    // Normal equations of rows scaled by their right-hand side.
    let mut a = vec![[0.0; LANES + 1]; LANES];
    for r in 0..rows {
        let range = r * d..(r + 1) * d;
        let (mut oy, mut yy) = (0.0, 0.0);
        for (o, y) in residual.observed[range.clone()].iter().zip(&residual.expected[range]) {
            oy += o * y;
            yy += y * y;
        }
        let gain = oy / yy;
        if !(gain.is_finite() && gain > 0.0) {
            continue;
        }
        let mut share = [0.0; LANES];
        let mut row = vec![0.0; d];
        x.widen(r * d, &mut row, |v| v);
        for (i, v) in row.iter().enumerate() {
            share[i % LANES] += v * v / d as f64;
        }
        let mean: f64 = share.iter().sum();
        let used = (mean + eps) / (gain * gain) - eps;
        let scale = 1.0 / mean;
        if !scale.is_finite() {
            continue;
        }
        for i in 0..LANES {
            for j in 0..LANES {
                a[i][j] += share[i] * scale * share[j] * scale;
            }
            a[i][LANES] += share[i] * scale * used * scale;
        }
    }
    let factors = solve(a)?;
    if factors.iter().any(|f| (f - f.round()).abs() > WHOLE) {
        return None;
    }
    let lost: Vec<usize> = (0..LANES).filter(|&l| factors[l].round() == 0.0).collect();
    (!lost.is_empty() && lost.len() < LANES)
        .then(|| format!("lanes {} of {LANES} are lost", ranges(&lost)))
}

/// Gauss with pivots; `None` when a lane is not determined.
fn solve(mut a: Vec<[f64; LANES + 1]>) -> Option<[f64; LANES]> {
    let size = a.iter().map(|row| row[..LANES].iter().fold(0.0, |m: f64, v| m.max(v.abs())));
    let smallest = size.fold(0.0, f64::max) * 1e-9;
    for c in 0..LANES {
        let pivot = (c..LANES).max_by(|&i, &j| a[i][c].abs().total_cmp(&a[j][c].abs()))?;
        a.swap(c, pivot);
        if a[c][c].abs() <= smallest {
            return None;
        }
        let row = a[c];
        for other in a.iter_mut().skip(c + 1) {
            let factor = other[c] / row[c];
            other.iter_mut().zip(&row).for_each(|(o, r)| *o -= factor * r);
        }
    }
    let mut out = [0.0; LANES];
    for c in (0..LANES).rev() {
        let rest: f64 = (c + 1..LANES).map(|j| a[c][j] * out[j]).sum();
        out[c] = (a[c][LANES] - rest) / a[c][c];
    }
    Some(out)
}

/// `0..=31, 40`.
fn ranges(sorted: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &i in sorted {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == i => *end = i,
            _ => parts.push((i, i)),
        }
    }
    let one = |(a, b): (usize, usize)| if a == b { a.to_string() } else { format!("{a}..={b}") };
    parts.into_iter().map(one).collect::<Vec<_>>().join(", ")
}
