//! Lists of modules that are left unquantised.

use crate::checkpoint::config::fields::Fields;
use crate::error::Result;

/// Modules left out by name.
///
/// A name matches a module's path where it stands in it between dots: `lm_head`, `mlp.gate` (not
/// `mlp.gate_proj`), `model.layers.3`, `model.layers.3.mlp.down_proj`. Engines differ for other
/// substrings; the tensors in the files must fit this reading, or the checkpoint is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclusions {
    names: Vec<String>,
}

impl Exclusions {
    /// The lists in `fields`, which must agree when there are several.
    pub(super) fn read(fields: &Fields<'_>, lists: &[&'static str]) -> Result<Exclusions> {
        let mut found: Option<(&str, Vec<String>)> = None;
        for &name in lists {
            let Some(texts) = fields.texts(name)? else { continue };
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if let Some(odd) = texts.iter().find(|t| t.is_empty() || !t.chars().all(plain)) {
                let odd = odd.escape_debug();
                let what = format!(
                    "has `{odd}`, which is a pattern and no module's name: engines differ in what \
                     it matches; list the modules by name"
                );
                return Err(fields.error(name, what));
            }
            let mut names: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
            names.sort();
            names.dedup();
            if let Some((first, _)) = found.as_ref().filter(|(_, other)| *other != names) {
                let what = format!("lists other modules than `{name}`: one of them is wrong");
                return Err(fields.error(first, what));
            }
            found = Some((name, names));
        }
        Ok(Exclusions { names: found.map_or_else(Vec::new, |(_, names)| names) })
    }

    /// Whether a module is left out.
    pub fn contains(&self, path: &str) -> bool {
        self.names.iter().any(|name| between_dots(path, name))
    }
}

/// Whether `name` stands in `path` with a dot or an end on both sides.
fn between_dots(path: &str, name: &str) -> bool {
    path.match_indices(name).any(|(at, _)| {
        let (before, after) = (&path[..at], &path[at + name.len()..]);
        (before.is_empty() || before.ends_with('.')) && (after.is_empty() || after.starts_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_between_dots() {
        let path = "model.layers.1.mlp.experts.17.gate_proj";
        for name in ["model.layers.1", "mlp", "experts.17", "gate_proj", path] {
            assert!(between_dots(path, name), "{name}");
        }
        for name in ["mlp.gate", "layers.1.mlp.experts.1", "model.layers", "gate", "xmodel"] {
            let whole = name == "model.layers";
            assert_eq!(between_dots(path, name), whole, "{name}");
        }
        assert!(!between_dots("model.layers.11.mlp.up_proj", "model.layers.1"));
    }
}
