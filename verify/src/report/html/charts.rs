//! Charts as inline SVG, coloured by the page's style sheet.

use std::fmt::Write;

use crate::judge::{BINS, Histogram, Picture};

use super::escape;

/// Names of the histogram's bins.
const NAMES: [&str; BINS.len()] =
    ["equal", "≤ ⅛", "≤ ¼", "≤ ½", "≤ ¾", "≤ 1", "≤ 2", "≤ 8", "≤ 64", "> 64"];

/// A heat map of where the error sits: each cell has the colour of its worst error.
pub(super) fn heat_map(picture: &Picture) -> String {
    let [down, across] = picture.grid;
    let [rows, cols] = picture.extent();
    // Large enough to be seen, in cells of one size.
    let cell = (640 / across.max(1)).min(240 / down.max(1)).clamp(4, 24);
    let (width, height) = (across * cell, down * cell);
    let mut out = format!(
        "<svg class=\"map\" viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"where in the output of {} the error sits\">",
        width + 60,
        height + 40,
        width + 60,
        escape(&picture.label),
    );
    for (bin, name) in NAMES.iter().enumerate() {
        let lower = if bin == 0 { f64::NEG_INFINITY } else { BINS[bin - 1] };
        let mut path = String::new();
        for (i, &ratio) in picture.cells.iter().enumerate() {
            if ratio > lower && ratio <= BINS[bin] {
                let (x, y) = (52 + i % across * cell, 4 + i / across * cell);
                let _ = write!(path, "M{x} {y}h{cell}v{cell}h-{cell}z");
            }
        }
        if !path.is_empty() {
            let _ = write!(
                out,
                "<path class=\"b{bin}\" d=\"{path}\"><title>worst error {name} budget</title></path>"
            );
        }
    }
    let bottom = height + 18;
    let _ = write!(
        out,
        "<rect class=\"frame\" x=\"52\" y=\"4\" width=\"{width}\" height=\"{height}\"/>\
         <text x=\"46\" y=\"14\" text-anchor=\"end\">row 0</text>\
         <text x=\"46\" y=\"{}\" text-anchor=\"end\">{}</text>\
         <text x=\"52\" y=\"{bottom}\">column 0</text>\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">{}</text></svg>",
        (height + 2).max(26),
        rows - 1,
        52 + width,
        cols - 1,
    );
    out
}

/// How many elements have an error of which size, on a logarithmic scale.
pub(super) fn histogram(histogram: &Histogram) -> String {
    const WIDTH: usize = 60;
    const HEIGHT: usize = 120;
    let most = histogram.iter().copied().max().unwrap_or(0).max(1);
    let scale = (HEIGHT as f64) / digits(most);
    let mut out = format!(
        "<svg class=\"histogram\" viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"elements by the size of their error\">",
        WIDTH * NAMES.len(),
        HEIGHT + 40,
        WIDTH * NAMES.len(),
    );
    for (bin, (&n, name)) in histogram.iter().zip(NAMES).enumerate() {
        let tall = if n == 0 { 0 } else { (digits(n) * scale) as usize };
        let (x, middle) = (bin * WIDTH + 4, bin * WIDTH + WIDTH / 2);
        let top = HEIGHT + 16 - tall;
        let _ = write!(
            out,
            "<rect class=\"b{bin}\" x=\"{x}\" y=\"{top}\" width=\"{}\" height=\"{tall}\"><title>{n} elements</title></rect>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            WIDTH - 8,
            top - 4,
            if n == 0 { String::new() } else { short(n) },
            HEIGHT + 32,
        );
    }
    out + "</svg>"
}

/// The height of a count: one element is visible, ten times as many add as much again.
fn digits(n: usize) -> f64 {
    assay_reference::arith::math::log2(n as f64) / 3.32 + 0.5
}

/// `12`, `3.4k`, `1.2M`.
fn short(n: usize) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..10_000_000 => format!("{}k", n / 1000),
        _ => format!("{}M", n / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_stands_for_each_bin_and_none_leaves_the_chart() {
        let mut h = Histogram::default();
        h[0] = 5_000_000;
        h[9] = 1;
        let svg = histogram(&h);
        assert_eq!(svg.matches("<rect").count(), BINS.len());
        assert!(svg.contains(">5000k<") && svg.contains(">1<"), "{svg}");
        assert!(!svg.contains("y=\"-"), "{svg}");
    }

    #[test]
    fn a_wrong_cell_has_the_colour_of_its_bin() {
        let picture = Picture {
            label: "<case>".into(),
            shape: vec![2, 2],
            grid: [2, 2],
            cells: vec![0.0, 0.0, f64::INFINITY, 0.7],
        };
        let svg = heat_map(&picture);
        assert!(svg.contains("&lt;case&gt;") && !svg.contains("<case>"), "{svg}");
        for class in ["b0", "b4", "b9"] {
            assert!(svg.contains(&format!("class=\"{class}\"")), "{svg}");
        }
        assert!(svg.contains("class=\"b9\" d=\"M52 28h24v24h-24z\""), "{svg}");
    }
}
