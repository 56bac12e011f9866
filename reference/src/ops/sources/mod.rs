//! Where variants come from: for each fault code and each choice of a knob something that anybody can
//! look up, or how the fault was derived and which common criterion misses it.
//!
//! A composite's variants are its parts': a code has one source under any name, and a choice that is not
//! listed for an op is its part's.

mod conventions;
mod faults;

/// What a choice of a knob means, and who does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convention {
    /// One sentence.
    pub meaning: &'static str,
    /// A link, or a link and what to look at there.
    pub source: &'static str,
}

/// The source of the fault with a code.
pub fn of_fault(code: &str) -> Option<&'static str> {
    faults::FAULTS.iter().find(|(c, _)| *c == code).map(|(_, source)| *source)
}

/// What a choice (`probs=stored`) of an op's knob means.
pub fn of_choice(op: &str, choice: &str) -> Option<Convention> {
    let part = op.strip_suffix("_gemm").map(|format| format!("{format}_dequant"));
    let rank = |of: &str| match of {
        of if of == op => 0,
        of if part.as_deref() == Some(of) => 1,
        _ => 2,
    };
    let named = conventions::CHOICES.iter().filter(|(_, c, _, _)| *c == choice);
    let (_, _, meaning, source) = named.min_by_key(|(of, _, _, _)| rank(of))?;
    Some(Convention { meaning, source })
}

/// All codes that have a source.
pub fn codes() -> impl Iterator<Item = &'static str> {
    faults::FAULTS.iter().map(|(code, _)| *code)
}

/// All (op, choice) pairs that have one.
pub fn choices() -> impl Iterator<Item = (&'static str, &'static str)> {
    conventions::CHOICES.iter().map(|(op, choice, _, _)| (*op, *choice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_has_one_source_that_can_be_looked_up() {
        let all: BTreeSet<&str> = codes().collect();
        assert_eq!(all.len(), codes().count(), "a code twice");
        let pairs: BTreeSet<_> = choices().collect();
        assert_eq!(pairs.len(), choices().count(), "a choice twice");
        let faults = faults::FAULTS.iter().map(|(code, source)| (*code, *source));
        let choices = conventions::CHOICES.iter().map(|(_, choice, _, source)| (*choice, *source));
        for (what, source) in faults.chain(choices) {
            let link = source.starts_with("https://");
            let derived = source.starts_with("derived");
            assert!(link || derived && source.contains(':'), "{what}: {source}");
            // A fault that nobody reported is worth its row because something misses it.
            let says = |word: &str| source.contains(word);
            assert!(link || says("missed") || says("hide") || says("does not"), "{what}: {source}");
        }
    }

    #[test]
    fn a_composite_has_its_parts_conventions() {
        let own = of_choice("ct_gemm", "weight=via_scale").expect("ct_dequant's");
        assert_eq!(Some(own), of_choice("ct_dequant", "weight=via_scale"));
        assert_eq!(of_choice("fp8_gemm", "scale=stored"), of_choice("fp8_dequant", "scale=stored"));
        assert_ne!(of_choice("fp8_gemm", "scale=stored"), of_choice("gptq_gemm", "scale=stored"));
        assert_eq!(of_choice("fp8_gemm", "partials=2"), of_choice("matmul", "partials=2"));
        assert_eq!(of_choice("matmul", "no=such"), None);
    }
}
