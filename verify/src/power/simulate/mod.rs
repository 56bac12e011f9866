//! Simulations of well-known set-ups, on which the criteria can be compared with figures of others.
//!
//! They are small programs of their own: no op of the reference and no family takes part in what the
//! subjects compute. The judge's row comes from a panel of the same inputs.

mod decode;
mod int4;

use assay_reference::{Dtype, Result};
use serde::Serialize;

use super::criteria::{self, Compared};
use super::stats::Tally;
use crate::judge::panel::{Answer, Panel, judge};

pub use decode::decode_attention;
pub use int4::{NUMPY, int4_gemm};

/// What a simulation counted: how often each criterion flagged each subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    /// What is simulated, with its sizes.
    pub title: &'static str,
    /// The subjects; the first is correct.
    pub subjects: Vec<&'static str>,
    /// A row for each criterion, in the order of [`criteria::ALL`], then the judge's where it was asked.
    pub rows: Vec<Row>,
}

/// The counts of one criterion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name, or `assay`.
    pub criterion: &'static str,
    /// One tally a subject.
    pub flagged: Vec<Tally>,
}

/// Which conventions the judge's row allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// No such row: it costs most of the time.
    No,
    /// The convention that the subjects have, as if it were known.
    Own,
    /// Every legitimate convention, as in a check.
    All,
}

impl Simulation {
    fn new(title: &'static str, subjects: &[&'static str], judged: Judged) -> Simulation {
        let row = |criterion| Row { criterion, flagged: vec![Tally::default(); subjects.len()] };
        let mut rows: Vec<Row> = criteria::ALL.iter().map(|c| row(c.name)).collect();
        if judged != Judged::No {
            rows.push(row("assay"));
        }
        Simulation { title, subjects: subjects.to_vec(), rows }
    }

    /// Counts one seed: what each subject stored in bf16, in order.
    fn count(&mut self, op: &str, right: &[f64], outputs: &[Vec<f64>], panel: Option<&Panel>) {
        for (s, output) in outputs.iter().enumerate() {
            let seen = Compared { op, dtype: Dtype::Bf16, output, right };
            for (row, criterion) in self.rows.iter_mut().zip(&criteria::ALL) {
                row.flagged[s].count(!(criterion.accepts)(&seen));
            }
            if let (Some(panel), Some(row)) = (panel, self.rows.get_mut(criteria::ALL.len())) {
                let answer = Answer::new(panel, output.clone());
                row.flagged[s].count(judge(std::iter::once((panel, &answer))).is_caught());
            }
        }
    }

    /// A criterion's tallies, one a subject.
    pub fn row(&self, criterion: &str) -> Option<&[Tally]> {
        self.rows.iter().find(|r| r.criterion == criterion).map(|r| r.flagged.as_slice())
    }
}

/// The sum of products in f32, in 16 lanes with fused products, as vector code adds.
fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (i, (x, w)) in x.iter().zip(w).enumerate() {
        lanes[i % 16] += x * w;
    }
    lanes.iter().sum()
}

/// The same in f64.
fn exact(x: &[f32], w: &[f32]) -> f64 {
    x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
}

fn panel(case: assay_reference::Case, judged: Judged, own: &str) -> Result<Option<Panel>> {
    let case = std::sync::Arc::new(case);
    let scope = super::subjects::SCOPE;
    Ok(match judged {
        Judged::No => None,
        Judged::Own => Some(Panel::of(&case, false, scope, &[own])?),
        Judged::All => Some(Panel::new(&case, false, scope)?),
    })
}
