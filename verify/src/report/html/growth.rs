//! The accumulated error by layer, on a logarithmic scale.

use std::fmt::Write;

use assay_reference::arith::math;

use super::escape;
use crate::forward::Growth;

/// Width of a layer, height of a decade, and how many decades there are below 1.
const STEP: usize = 26;
const DECADE: usize = 16;
const DECADES: usize = 9;

/// Bars of the recording's error, and a mark at what legitimate forwards have. Empty without layers.
pub(super) fn chart(growth: &[Growth]) -> String {
    if growth.is_empty() {
        return String::new();
    }
    let (width, height) = (STEP * growth.len(), DECADE * (DECADES + 1));
    let mut out = format!(
        "<figure><svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"the error by layer\">",
        width + 60,
        height + 30,
        (width + 60).min(1000),
    );
    for decade in (0..=DECADES).step_by(3) {
        let y = 10 + DECADE * (decade + 1);
        let _ = write!(out, "<text x=\"46\" y=\"{y}\" text-anchor=\"end\">1e-{decade}</text>");
    }
    for (i, g) in growth.iter().enumerate() {
        let x = 52 + i * STEP;
        let (tall, mark) = (height_of(g.accumulated), height_of(g.legitimate));
        let class = if g.accumulated <= g.legitimate { "b4" } else { "b8" };
        let introduced = g.introduced.map_or("-".into(), |x| format!("{x:.3}"));
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"{}\" height=\"{tall}\"><title>{}: accumulated {:.2e}, \
             legitimate {:.2e}, introduced {introduced} of its budget</title></rect>\
             <rect class=\"b9\" x=\"{x}\" y=\"{}\" width=\"{}\" height=\"2\"/>",
            10 + height - tall,
            STEP - 6,
            escape(&g.probe),
            g.accumulated,
            g.legitimate,
            10 + height - mark,
            STEP - 6,
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"52\" y=\"{0}\">{1}</text><text x=\"{2}\" y=\"{0}\" text-anchor=\"end\">{3}</text></svg>\
         <figcaption>The accumulated error by layer: relative rms from the reference's own forward of the nearest convention \
         (logarithmic). The mark is how far legitimate forwards lie apart; orange is above it. What an op inherits is not its fault: \
         the table below has what each op introduces.</figcaption></figure>",
        height + 26,
        escape(&growth[0].probe),
        52 + width,
        if growth.len() > 3 { escape(&growth[growth.len() - 1].probe) } else { String::new() },
    );
    out
}

/// Pixels of an error; NaN is as tall as can be.
fn height_of(error: f64) -> usize {
    let top = (DECADES + 1) as f64;
    if error.is_nan() {
        return (DECADES + 1) * DECADE;
    }
    let decades = math::ln(error.max(1e-30)) / std::f64::consts::LN_10 + DECADES as f64;
    (decades.clamp(0.0, top) * DECADE as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_the_chart() {
        let one = |accumulated: f64| Growth {
            probe: "<p>".into(),
            accumulated,
            legitimate: 1e-3,
            introduced: None,
        };
        let svg = chart(&[one(0.0), one(1e-6), one(1e9), one(f64::NAN)]);
        assert!(!svg.contains("y=\"-") && !svg.contains("<p>"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 8);
        assert_eq!(chart(&[]), "");
    }
}
