//! A prompt against another rendering of the same conversation: where the first difference is.

use assay_reference::checkpoint::Tokenizer;
use serde::Serialize;

use crate::audit::Item;

/// A comparison with another prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// What it was compared with: a file, a server.
    pub with: String,
    /// `bytes` or `ids`.
    pub of: &'static str,
    /// Whether the two are the same.
    pub equal: bool,
    /// Place of the first difference: a byte or a token.
    pub first_difference: Option<usize>,
    /// What is wrong, if they differ.
    pub finding: Option<Item>,
}

/// Bytes of context on either side of a difference.
const CONTEXT: usize = 32;

/// Compares two texts byte by byte. `name` is the finding's, should they differ.
pub fn bytes(ours: &str, theirs: &[u8], with: &str, name: &str) -> Comparison {
    let of = "bytes";
    let first = first_difference(ours.as_bytes(), theirs);
    let what = first.map(|at| {
        let line = 1 + ours.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        format!(
            "differs from byte {at} on (line {line}; {} bytes here, {} there): the template gives {}, there is {}{}",
            ours.len(),
            theirs.len(),
            around(ours.as_bytes(), at),
            around(theirs, at),
            hint(ours.as_bytes(), theirs)
        )
    });
    let finding = what.map(|what| Item::new(name, with, what));
    Comparison { with: with.into(), of, equal: first.is_none(), first_difference: first, finding }
}

/// Compares two lists of token ids.
pub fn ids(
    ours: &[u32],
    theirs: &[u32],
    tokenizer: &Tokenizer,
    with: &str,
    name: &str,
) -> Comparison {
    let first = first_difference(ours, theirs);
    let token = |ids: &[u32], at: usize| match ids.get(at) {
        Some(id) => match tokenizer.token(*id) {
            Some(text) => format!("id {id} ({text:?})"),
            None => format!("id {id} (no token of this tokenizer)"),
        },
        None => "the end".to_owned(),
    };
    let what = first.map(|at| {
        format!(
            "differs from token {at} on ({} tokens here, {} there): here {}, there {}",
            ours.len(),
            theirs.len(),
            token(ours, at),
            token(theirs, at)
        )
    });
    let finding = what.map(|what| Item::new(name, with, what));
    Comparison {
        with: with.into(),
        of: "ids",
        equal: first.is_none(),
        first_difference: first,
        finding,
    }
}

/// Compares a server's token ids of a conversation with the template's text and its ids `ours`: by bytes where the ids are
/// this tokenizer's, since the place in the text tells more.
pub fn chat(
    text: &str,
    ours: &[u32],
    theirs: &[u32],
    tokenizer: &Tokenizer,
    with: &str,
) -> Comparison {
    const NAME: &str = "server.template_differs";
    match tokenizer.decode(theirs) {
        Ok(other) if ours != theirs && other != text => bytes(text, other.as_bytes(), with, NAME),
        _ => ids(ours, theirs, tokenizer, with, NAME),
    }
}

fn first_difference<T: PartialEq>(a: &[T], b: &[T]) -> Option<usize> {
    let common = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    (common < a.len().max(b.len())).then_some(common)
}

/// What stands around byte `at`, which `[HERE]` marks.
fn around(bytes: &[u8], at: usize) -> String {
    let shown = |part: &[u8]| String::from_utf8_lossy(part).escape_debug().to_string();
    let before = &bytes[at.saturating_sub(CONTEXT)..at.min(bytes.len())];
    let after = &bytes[at.min(bytes.len())..bytes.len().min(at + CONTEXT)];
    let end = if after.is_empty() { "(end)".to_owned() } else { shown(after) };
    format!("\"{}[HERE]{end}\"", shown(before))
}

/// What often makes such a difference.
fn hint(ours: &[u8], theirs: &[u8]) -> &'static str {
    if theirs.strip_suffix(b"\n") == Some(ours) {
        "; a line end more at the end of the capture: perhaps of the tool that wrote it"
    } else if ours.strip_suffix(b"\n") == Some(theirs) {
        "; the last line end is missing there"
    } else if theirs.starts_with(b"\xef\xbb\xbf") {
        "; it begins with a byte order mark"
    } else if theirs.iter().filter(|b| **b == b'\r').count()
        > ours.iter().filter(|b| **b == b'\r').count()
    {
        "; it has carriage returns, as Windows writes line ends"
    } else {
        ""
    }
}

/// A captured prompt: its text, or its token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Captured {
    /// Bytes of the text.
    Text(Vec<u8>),
    /// Token ids.
    Ids(Vec<u32>),
}

impl Captured {
    /// Compares it with the rendered conversation.
    ///
    /// # Errors
    /// When the tokenizer cannot encode `text`.
    pub fn against(
        &self,
        text: &str,
        tokenizer: &Tokenizer,
        with: &str,
    ) -> assay_reference::Result<Comparison> {
        Ok(match self {
            Captured::Text(theirs) => bytes(text, theirs, with, "prompt.text_differs"),
            Captured::Ids(theirs) => {
                ids(&tokenizer.encode_rendered(text)?, theirs, tokenizer, with, "prompt.ids_differ")
            }
        })
    }

    /// From a file's bytes: a JSON array of integers is ids, a JSON string is text as a log has it, anything else is
    /// the text itself.
    pub fn parse(bytes: &[u8]) -> Captured {
        if let Ok(ids) = serde_json::from_slice::<Vec<u32>>(bytes) {
            return Captured::Ids(ids);
        }
        match serde_json::from_slice::<String>(bytes) {
            Ok(text) => Captured::Text(text.into_bytes()),
            Err(_) => Captured::Text(bytes.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown_with_its_place() {
        let same = bytes("a\nb", b"a\nb", "x", "prompt.text_differs");
        assert!(same.equal && same.finding.is_none());
        let other = bytes("a\nbc", b"a\nbd", "x", "prompt.text_differs");
        assert_eq!(other.first_difference, Some(3));
        let what = other.finding.expect("a finding").what;
        assert!(
            what.contains("byte 3") && what.contains("line 2") && what.contains("[HERE]d"),
            "{what}"
        );
        let longer = bytes("ab", b"ab\n", "x", "prompt.text_differs");
        assert_eq!(longer.first_difference, Some(2));
        assert!(longer.finding.expect("a finding").what.contains("line end more"));
    }

    #[test]
    fn a_capture_is_ids_a_json_string_or_text() {
        assert_eq!(Captured::parse(b"[1, 2]\n"), Captured::Ids(vec![1, 2]));
        assert_eq!(Captured::parse(b"\"a\\n\""), Captured::Text(b"a\n".to_vec()));
        assert_eq!(Captured::parse(b"<|im_start|>"), Captured::Text(b"<|im_start|>".to_vec()));
    }
}
