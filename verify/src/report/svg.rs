//! Charts as SVG: self-contained, readable on light and dark backgrounds.

use std::fmt::Write;

/// An SVG document in the making. Units are pixels at 100 %, the origin is the upper left corner.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

/// Where a text is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At its start.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// Colours and fonts: text follows the reader's colour scheme, also when the file is opened alone.
const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#1a1a1a}\
.small{font-size:10px}.head{font-size:15px;font-weight:600}.faint{fill:#666}\
.on-light{fill:#1a1a1a}.on-dark{fill:#fff}.line{stroke:#999;stroke-width:1}.paper{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#e8e8e8}.faint{fill:#aaa}.line{stroke:#777}.paper{fill:#161616}\
.on-light{fill:#1a1a1a}.on-dark{fill:#fff}}";

impl Svg {
    /// An empty document. The title is what screen readers say.
    pub fn new(width: f64, height: f64, title: &str) -> Svg {
        Svg { width, height, title: title.into(), body: String::new() }
    }

    /// A filled rectangle; `tip` shows when the pointer rests on it.
    pub fn rect(&mut self, [x, y, w, h]: [f64; 4], fill: &str, tip: &str) {
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"{}\">",
            escape(fill)
        );
        if !tip.is_empty() {
            let _ = write!(self.body, "<title>{}</title>", escape(tip));
        }
        self.body += "</rect>\n";
    }

    /// A line of class `line`.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"line\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    /// A text with its baseline at y, of the classes given (`small`, `head`, `faint`, `on-light`,
    /// `on-dark`).
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, classes: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{}\">{}</text>",
            escape(classes),
            escape(text)
        );
    }

    /// The document.
    pub fn render(&self) -> String {
        let (w, h, title) = (self.width, self.height, escape(&self.title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" \
             height=\"{h:.0}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{w:.0}\" height=\"{h:.0}\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// A colour from red (0) over pale yellow to green (1), and the class of text that is readable on it.
pub fn heat(share: f64) -> (String, &'static str) {
    let stops = [[178.0, 24.0, 43.0], [253.0, 231.0, 160.0], [27.0, 120.0, 55.0]];
    let t = 2.0 * share.clamp(0.0, 1.0);
    let (i, f) = if t < 1.0 { (0, t) } else { (1, t - 1.0) };
    let rgb: Vec<f64> = (0..3).map(|c| stops[i][c] + f * (stops[i + 1][c] - stops[i][c])).collect();
    // Relative luminance, roughly: dark fills take white text.
    let luminance = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
    let class = if luminance < 140.0 { "on-dark" } else { "on-light" };
    (format!("#{:02x}{:02x}{:02x}", rgb[0] as u8, rgb[1] as u8, rgb[2] as u8), class)
}

/// Text as it may stand in SVG and HTML, in attributes as well.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_closed_and_escaped() {
        let mut svg = Svg::new(100.0, 50.0, "a < b & \"c\"");
        svg.rect([1.0, 2.0, 3.0, 4.0], "#fff", "x<y");
        svg.text((1.0, 2.0), Anchor::End, "small", "1 < 2 \u{7}");
        svg.line((0.0, 0.0), (1.0, 1.0));
        let text = svg.render();
        assert!(
            text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 100 50\"")
        );
        assert!(text.contains("a &lt; b &amp; &quot;c&quot;") && text.contains("x&lt;y"));
        assert!(text.contains("1 &lt; 2 \u{fffd}"), "{text}");
        for tag in ["svg", "text", "title", "style"] {
            let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
            assert_eq!(text.matches(&open).count(), text.matches(&close).count(), "{tag}");
        }
    }

    #[test]
    fn heat_runs_from_red_to_green_with_readable_text() {
        assert_eq!(heat(0.0), ("#b2182b".into(), "on-dark"));
        assert_eq!(heat(1.0), ("#1b7837".into(), "on-dark"));
        assert_eq!(heat(0.5), ("#fde7a0".into(), "on-light"));
        assert_eq!(heat(7.0), heat(1.0));
        assert_eq!(heat(f64::NAN).1, heat(f64::NAN).1);
    }
}
