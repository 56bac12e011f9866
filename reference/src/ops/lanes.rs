//! Which lanes of a norm's reduction are lost, solved from its output.
//!
//! Element i of a row goes to lane i mod 64, or, where threads load vectors of v elements, to lane
//! (i / v) mod 64. A row's gain tells the mean of squares that was used, which is the sum over the lanes
//! of (0, 1 or 2 times) their share: one linear equation a row. With 64 rows or more whose lanes differ,
//! least squares tells each lane's factor, and how well the equations hold tells the right v.

use super::Residual;

/// Lanes of a wave.
const LANES: usize = 64;
/// Elements of a vector load: 16 bytes or fewer of bf16.
const VECTORS: [usize; 4] = [1, 2, 4, 8];
/// Elements after which every vector's lanes begin again: shares of these are added up.
const PERIOD: usize = LANES * 8;
/// How far a solved factor may be from a whole number.
const WHOLE: f64 = 0.2;
/// How far a row's mean of squares may be from what whole factors give, relative to the whole mean.
const HOLDS: f64 = 0.02;

/// `lanes 32..=63 of 64 are lost`; `None` when the rows do not say, or none is lost.
pub(super) fn dead(eps: f64, residual: &Residual<'_>) -> Option<String> {
    let x = residual.tensors.get("x")?;
    let d = residual.cols;
    let rows = residual.expected.len() / d.max(1);
    if d < LANES || rows < LANES || x.len() != rows * d {
        return None;
    }
    let mut squares = vec![0.0; d];
    let mut used: Vec<(Vec<f64>, f64)> = Vec::with_capacity(rows);
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
        x.widen(r * d, &mut squares, |v| v * v / d as f64);
        let mean: f64 = squares.iter().sum();
        let scaled = ((mean + eps) / (gain * gain) - eps) / mean;
        if scaled.is_finite() {
            let mut shares = vec![0.0; PERIOD.min(d)];
            squares.iter().enumerate().for_each(|(i, s)| shares[i % PERIOD] += s / mean);
            used.push((shares, scaled));
        }
    }
    let one = |&vector: &usize| Some((vector, factors(&used, vector)?));
    let (vector, factors) = VECTORS.iter().find_map(one)?;
    let lost: Vec<usize> = (0..LANES).filter(|&l| factors[l] == 0.0).collect();
    let each = if vector > 1 {
        format!(", each of which holds {vector} neighbouring elements at a time")
    } else {
        String::new()
    };
    (!lost.is_empty() && lost.len() < LANES)
        .then(|| format!("lanes {} of {LANES} are lost{each}", ranges(&lost)))
}

/// The whole number of times that each lane enters the mean, if elements go to lanes by this vector.
/// `rows` holds the shares, by element modulo [`PERIOD`], in a row's mean of squares, and the part of the mean that was used.
fn factors(rows: &[(Vec<f64>, f64)], vector: usize) -> Option<[f64; LANES]> {
    let shares = |row: &[f64]| {
        let mut share = [0.0; LANES];
        row.iter().enumerate().for_each(|(i, s)| share[i / vector % LANES] += s);
        share
    };
    let mut normal = vec![[0.0; LANES + 1]; LANES];
    for (row, used) in rows {
        let share = shares(row);
        for i in 0..LANES {
            for j in 0..LANES {
                normal[i][j] += share[i] * share[j];
            }
            normal[i][LANES] += share[i] * used;
        }
    }
    let solved = solve(normal)?;
    let whole = solved.map(f64::round);
    let near = solved.iter().zip(&whole).all(|(f, w)| (f - w).abs() <= WHOLE);
    let holds = rows.iter().all(|(row, used)| {
        let sum: f64 = shares(row).iter().zip(&whole).map(|(s, w)| s * w).sum();
        (sum - used).abs() <= HOLDS
    });
    (near && holds).then_some(whole)
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
