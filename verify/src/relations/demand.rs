//! What two outputs must have to do with each other.

use assay_reference::ops::Scope;
use assay_reference::{Dtype, Result};

use crate::judge::{self, Observation, Options, Unseen, Verdict, lambda};

/// A demand. Pairs are (element of the changed output, element of the base output).
#[derive(Clone, Debug)]
pub enum Demand {
    /// Equal bits, after the base's element is multiplied by `by` (a power of two, or -1).
    Equal {
        /// Elements.
        pairs: Vec<(usize, usize)>,
        /// Factor.
        by: f64,
    },
    /// The difference is one that the bounds of both outputs allow under some legitimate convention.
    Near {
        /// Elements.
        pairs: Vec<(usize, usize)>,
    },
    /// The changed output alone is one that the bound allows: the case fixes its value.
    Bounded,
    /// An index i of the base output is index `to[i]` in the changed one.
    Relabelled {
        /// New place of each index.
        to: Vec<usize>,
    },
    /// The pairs (i, i + half) of each row of the changed output have `factor` times the norm of the
    /// same pairs of input `x`.
    Norms {
        /// Factor.
        factor: f64,
    },
    /// The product of rows 0 and 1 of the changed output is that of the base output.
    Products,
}

impl Demand {
    /// Whether the base output is needed.
    pub(super) fn compares(&self) -> bool {
        !matches!(self, Demand::Bounded | Demand::Norms { .. })
    }

    /// How the outputs break the demand, if they do.
    pub(super) fn broken(
        &self,
        base: &Observation,
        changed: &Observation,
        scope: Scope,
    ) -> Result<Option<String>> {
        let (b, c) = (base.output.to_f64(), changed.output.to_f64());
        Ok(match self {
            Demand::Equal { pairs, by } => equal(&b, &c, pairs, *by),
            Demand::Near { pairs } => judge::near(base, changed, pairs, scope)?,
            Demand::Bounded => {
                let options = Options { scope, unseen: Unseen::Nothing, preset: None, known: None };
                let one = std::slice::from_ref(changed);
                let verdict = judge::judge(&changed.case.op, one, options)?.verdict;
                let passes = matches!(verdict, Verdict::Pass { .. });
                let text = |f: crate::finding::Finding| f.text;
                (!passes).then(|| verdict.findings().into_iter().map(text).collect())
            }
            Demand::Relabelled { to } => {
                let moved = |i: f64| to.get(i as usize).map(|i| *i as f64);
                let wrong = (0..b.len()).find(|&r| moved(b[r]) != Some(c[r]));
                wrong.map(|r| {
                    let to = moved(b[r]).map_or("nowhere".into(), |i| i.to_string());
                    format!("row {r}: index {} has moved to {to}, got {}", b[r], c[r])
                })
            }
            Demand::Norms { factor } => norms(changed, &c, *factor),
            Demand::Products => products(base, &b, &c),
        })
    }
}

/// Equal bits, but for the payload of a NaN.
fn equal(base: &[f64], changed: &[f64], pairs: &[(usize, usize)], by: f64) -> Option<String> {
    let differs = |(c, b): &&(usize, usize)| {
        let (got, want) = (changed[*c], base[*b] * by);
        got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan())
    };
    let n = pairs.iter().filter(differs).count();
    let (c, b) = pairs.iter().find(differs)?;
    let (got, want) = (changed[*c], base[*b] * by);
    Some(format!("{n} of {} elements differ, the first at {c}: {want}, got {got}", pairs.len()))
}

/// Roundings at most, in units: of a table's entry, of a product, of the output, each of two terms.
const ROUNDINGS: f64 = 5.0;

fn unit(dtype: Dtype) -> f64 {
    dtype.unit_roundoff()
}

/// The components of a pair are sums of two terms of norm at most that of the pair, by Cauchy-Schwarz
/// sqrt(2) of it together; table, products and output are each off by a unit.
fn norms(run: &Observation, y: &[f64], factor: f64) -> Option<String> {
    let x = run.case.tensors["x"].to_f64();
    let d = run.case.tensors["x"].cols();
    let norm = |v: &[f64], row: usize, i: usize| {
        let at = row * d + i;
        (v[at] * v[at] + v[at + d / 2] * v[at + d / 2]).sqrt()
    };
    let room = ROUNDINGS * unit(run.case.dtype);
    let pairs = (0..x.len() / d).flat_map(|r| (0..d / 2).map(move |i| (r, i)));
    let outside = |(r, i): &(usize, usize)| {
        let want = factor * norm(&x, *r, *i);
        (norm(y, *r, *i) - want).abs() > room * want || norm(y, *r, *i).is_nan()
    };
    let (r, i) = pairs.into_iter().find(outside)?;
    let (want, got) = (factor * norm(&x, r, i), norm(y, r, i));
    Some(format!("row {r}, pair {i}: norm {got}, expected {want} within {:.1} %", 100.0 * room))
}

/// The products of two pairs have errors of two units of standard deviation at most (six roundings of
/// u / sqrt(3)), independent over pairs, in either output.
fn products(base: &Observation, b: &[f64], c: &[f64]) -> Option<String> {
    let d = base.case.tensors["x"].cols();
    let dot = |v: &[f64]| v[..d].iter().zip(&v[d..2 * d]).map(|(q, k)| q * k).sum::<f64>();
    let half = d / 2;
    let square = |i: usize| {
        let norm = |row: usize| b[row * d + i].powi(2) + b[row * d + i + half].powi(2);
        norm(0) * norm(1)
    };
    let spread = (0..half).map(square).sum::<f64>().sqrt();
    let room = 4.0 * lambda() * unit(base.case.dtype) * spread;
    let (want, got) = (dot(b), dot(c));
    let holds = (got - want).abs() <= room;
    (!holds).then(|| format!("product {got}, {want} at the other place (within {room:.3})"))
}
