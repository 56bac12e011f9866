//! Figures that stand with a named fault: gain, cosine, lean, and how much of the output is a
//! truncation. None of them decides anything.

use assay_reference::ops::{Op, Residual, Tile};

use super::bias::lean;
use super::drift;
use super::observed::Run;
use super::search::Convention;

/// The depth for which the text predicts a drift.
const LAYERS: usize = 28;

#[derive(Default)]
struct Figures {
    /// Of each row with something in it.
    gains: Vec<f64>,
    cosines: Vec<f64>,
    /// Sums over all elements.
    observed_expected: f64,
    expected_squared: f64,
    /// Signed errors in ulps of elements that had to be rounded, and how many of these elements equal
    /// the truncated value.
    leans: f64,
    rounded: usize,
    truncated: usize,
}

impl Figures {
    fn row(&mut self, expected: &[f64], observed: &[f64], output: assay_reference::Rounding) {
        let truncating =
            assay_reference::Rounding { mode: assay_reference::Mode::TowardZero, ..output };
        let (mut oy, mut yy, mut oo) = (0.0, 0.0, 0.0);
        for (&y, &o) in expected.iter().zip(observed) {
            if !(y.is_finite() && o.is_finite()) {
                continue;
            }
            oy += o * y;
            yy += y * y;
            oo += o * o;
            if let Some(lean) = lean(y, o, output) {
                self.leans += lean;
                self.rounded += 1;
                self.truncated += usize::from(truncating.round(y) == o);
            }
        }
        self.observed_expected += oy;
        self.expected_squared += yy;
        if yy > 0.0 {
            self.gains.push(oy / yy);
        }
        if yy > 0.0 && oo > 0.0 {
            self.cosines.push(oy / (yy.sqrt() * oo.sqrt()));
        }
    }

    fn text(mut self) -> String {
        let (Some(gain), Some(cosine)) = (median(&mut self.gains), median(&mut self.cosines))
        else {
            return String::new();
        };
        let mut text = format!("; in the median row gain {gain:.4} and cosine {cosine:.6}");
        if self.rounded == 0 {
            return text;
        }
        let mean = self.leans / self.rounded as f64;
        let mean = if mean.abs() < 1e4 { format!("{mean:+.2}") } else { format!("{mean:+.1e}") };
        let share = self.truncated as f64 / self.rounded as f64;
        text += &format!(
            ", error {mean} ulp away from zero on average, {} of {} rounded elements as truncated ({:.1} %)",
            self.truncated,
            self.rounded,
            100.0 * share,
        );
        let gain = self.observed_expected / self.expected_squared;
        if share > 0.99 && gain < 1.0 {
            let calls = drift::additions(LAYERS);
            text += &format!(
                "; {calls} such roundings in a row, as a residual stream of {LAYERS} layers has, leave {:.3} of a signal",
                drift::left_after(gain, calls)
            );
        }
        text
    }
}

/// `; in the median row gain 1.4031 and cosine 0.999999, ...` over the runs of a fault, each against the
/// convention that it was found on.
pub(super) fn of<'a, O: Op>(
    runs: impl Iterator<Item = (&'a Run<'a, O>, &'a Convention<O>)>,
) -> String {
    let mut figures = Figures::default();
    let mut solved: Vec<String> = Vec::new();
    for (run, convention) in runs {
        let setup = run.setup(&convention.edits);
        let (expected, output) = (run.values(&setup, &Tile::ALL), run.rounding(&setup));
        let cols = run.spec.cols();
        for (y, o) in expected.chunks(cols).zip(run.observed.chunks(cols)) {
            figures.row(y, o, output);
        }
        let residual = Residual {
            tensors: &setup.tensors,
            cols,
            expected: &expected,
            radius: &vec![0.0; expected.len()],
            observed: &run.observed,
            output,
        };
        let more = O::evidence(&setup.params, &residual);
        solved.extend(more.into_iter().filter(|m| !solved.contains(m)).collect::<Vec<_>>());
    }
    let more: String = solved.into_iter().map(|s| format!("; {s}")).collect();
    figures.text() + &more
}

/// The middle value; `None` of none.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
