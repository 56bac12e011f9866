//! The list of kernels that a service needs: `kernels.toml`.

use std::path::{Path, PathBuf};

use assay_hip::{BackendKind, vendor};
use serde::Deserialize;

use super::LedgerError;

/// Which passes that hide catalogued faults are good enough.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Limited {
    /// All or none.
    Any(bool),
    /// Those that hide no others than these.
    These(Vec<String>),
}

impl Default for Limited {
    fn default() -> Limited {
        Limited::Any(false)
    }
}

impl Limited {
    /// The faults of `unseen` that are not tolerated. A listed name without a key stands for all of its
    /// keys.
    pub(super) fn refuses<'a>(&self, unseen: &'a [String]) -> Vec<&'a str> {
        let tolerated = |fault: &String| match self {
            Limited::Any(all) => *all,
            Limited::These(list) => {
                let name = fault.split_once(" (").map_or(fault.as_str(), |(name, _)| name);
                list.iter().any(|known| known == fault || known == name)
            }
        };
        unseen.iter().filter(|fault| !tolerated(fault)).map(String::as_str).collect()
    }
}

/// One kernel that must be admitted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Kernel name.
    pub name: String,
    /// Where it serves. Evidence from elsewhere does not count.
    pub backend: BackendKind,
    /// The architecture that it is required on; by default this machine's.
    pub arch: Option<String>,
    /// A convention that must explain it.
    pub convention: Option<String>,
    /// Dispatch cells that the check must have reached.
    #[serde(default)]
    pub cells: Vec<String>,
    /// Whether a pass that hides faults will do.
    #[serde(default)]
    pub allow_limited: Limited,
    /// The kernel's own source, instead of the built-in one; relative to the list's folder. `emu` only.
    pub source: Option<PathBuf>,
    /// Of `process`: shared objects that the serving process maps; relative to the list's folder.
    #[serde(default)]
    pub objects: Vec<PathBuf>,
}

/// The list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    /// The kernels.
    #[serde(rename = "kernel", default)]
    pub kernels: Vec<Requirement>,
}

const KEYS: [&str; 8] =
    ["name", "backend", "arch", "convention", "cells", "allow_limited", "source", "objects"];
/// Far above any list by hand.
const MAX_BYTES: u64 = 1 << 20;

impl Requirements {
    /// Reads a list.
    ///
    /// # Errors
    /// When it cannot be read, is empty, or says what makes no sense.
    pub fn read(path: &Path) -> Result<Requirements, LedgerError> {
        let failed = || LedgerError::io("read", path);
        let about = std::fs::metadata(path).map_err(failed())?;
        if !about.is_file() || about.len() > MAX_BYTES {
            let what = format!("is not a file of at most {MAX_BYTES} bytes");
            return Err(failed()(std::io::Error::other(what)));
        }
        let text = std::fs::read_to_string(path).map_err(failed())?;
        let mut list = Requirements::parse(&text)
            .map_err(|what| LedgerError::Requirements { path: path.to_owned(), what })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for kernel in &mut list.kernels {
            let files = kernel.source.iter_mut().chain(&mut kernel.objects);
            files.for_each(|file| *file = folder.join(&file));
        }
        Ok(list)
    }

    /// Parses a list.
    ///
    /// # Errors
    /// A sentence about what is wrong.
    pub fn parse(text: &str) -> Result<Requirements, String> {
        let table: toml::Table = toml::from_str(text).map_err(|e| {
            let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            format!("line {}: {}", 1 + before.matches('\n').count(), one_line(e.message()))
        })?;
        known(table.keys(), &["kernel"], "at the top")?;
        for (i, kernel) in
            table.get("kernel").and_then(toml::Value::as_array).into_iter().flatten().enumerate()
        {
            if let Some(kernel) = kernel.as_table() {
                known(kernel.keys(), &KEYS, &format!("of kernel {}", i + 1))?;
            }
        }
        let list: Requirements =
            table.try_into().map_err(|e: toml::de::Error| one_line(e.message()))?;
        if list.kernels.is_empty() {
            return Err(
                "requires no kernel: each is a table [[kernel]] with name and backend".into()
            );
        }
        for (i, kernel) in list.kernels.iter().enumerate() {
            kernel.check().map_err(|what| format!("kernel {} ({}): {what}", i + 1, kernel.name))?;
            let twin = |other: &Requirement| {
                (&other.name, other.backend, &other.arch)
                    == (&kernel.name, kernel.backend, &kernel.arch)
            };
            if list.kernels[..i].iter().any(twin) {
                return Err(format!("{} on {} is required twice", kernel.name, kernel.backend));
            }
        }
        Ok(list)
    }
}

impl Requirement {
    /// A kernel with nothing but what must be said.
    pub fn new(name: &str, backend: BackendKind) -> Requirement {
        Requirement {
            name: name.into(),
            backend,
            arch: None,
            convention: None,
            cells: Vec::new(),
            allow_limited: Limited::default(),
            source: None,
            objects: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let foreign = self.backend == BackendKind::Process;
        if self.source.is_some() && self.backend != BackendKind::Emu {
            return Err("`source` is for backend \"emu\": a device runs what was built in".into());
        }
        if foreign == self.objects.is_empty() {
            return Err(if foreign {
                "backend \"process\" needs `objects`, the shared objects that it runs".into()
            } else {
                "`objects` is for backend \"process\"".into()
            });
        }
        let kernels = assay_hip::kernels().iter();
        // A vendor's functions are on a device only.
        let of_vendors = vendor::subjects()
            .iter()
            .filter(|_| self.backend == BackendKind::Hip)
            .map(|s| &s.kernel);
        let names: Vec<&str> = kernels.chain(of_vendors).map(|k| k.name).collect();
        if !foreign && !names.contains(&self.name.as_str()) {
            return Err(format!("there is no such kernel{}", suggestion(&self.name, &names)));
        }
        Ok(())
    }
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

/// Refuses keys that are not known.
fn known<'a>(
    keys: impl IntoIterator<Item = &'a String>,
    names: &[&str],
    place: &str,
) -> Result<(), String> {
    match keys.into_iter().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown key `{key}` {place}{}", suggestion(key, names))),
        None => Ok(()),
    }
}

/// `; did you mean `cells`? Known are ...`
fn suggestion(given: &str, names: &[&str]) -> String {
    let near = names.iter().map(|name| (distance(given, name), name)).min();
    let list = names.join(", ");
    match near {
        Some((d, name)) if d <= 2.max(given.len() / 3) => {
            format!("; did you mean `{name}`? Known are {list}")
        }
        _ => format!("; known are {list}"),
    }
}

/// Levenshtein's distance, in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_required() {
        let list = Requirements::parse(
            "[[kernel]]\nname = \"gemm_bf16\"\nbackend = \"emu\"\ncells = [\"rows=1\"]\n\
             [[kernel]]\nname = \"gemm_bf16\"\nbackend = \"hip\"\narch = \"gfx906\"\n\
             allow_limited = [\"matmul.gain\"]\n",
        )
        .expect("a list");
        assert_eq!(list.kernels[0].cells, ["rows=1"]);
        assert_eq!(list.kernels[0].allow_limited, Limited::Any(false));
        assert_eq!(list.kernels[1].allow_limited, Limited::These(vec!["matmul.gain".into()]));
        assert_eq!(list.kernels[1].arch.as_deref(), Some("gfx906"));
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused_with_what_was_meant() {
        let kernel = "[[kernel]]\nname = \"gemm_bf16\"\nbackend = \"emu\"\n";
        for (text, said) in [
            (String::new(), "requires no kernel"),
            (format!("{kernel}allow_limted = true"), "did you mean `allow_limited`?"),
            (format!("{kernel}colour = 1"), "unknown key `colour` of kernel 1; known are name"),
            ("[[kernels]]\nname = \"x\"".into(), "did you mean `kernel`?"),
            (kernel.replace("bf16", "bf61"), "did you mean `gemm_bf16`?"),
            (kernel.replace("emu", "cuda"), "unknown variant `cuda`"),
            (format!("{kernel}{kernel}"), "required twice"),
            (kernel.replace("emu", "process"), "needs `objects`"),
            (format!("{kernel}objects = [\"a.so\"]"), "is for backend \"process\""),
            (kernel.replace("emu", "hip") + "source = \"k.hip\"", "is for backend \"emu\""),
            ("[[kernel]]\nbackend = \"emu\"".into(), "missing field `name`"),
            ("kernel = 3".into(), "expected a sequence"),
            (format!("{kernel}[[kernel]"), "line 4: "),
        ] {
            let error = Requirements::parse(&text).expect_err(&text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn tolerated_faults_are_named_or_all_or_none() {
        let unseen = ["a".to_string(), "b".to_string()];
        assert_eq!(Limited::Any(true).refuses(&unseen), [""; 0]);
        assert_eq!(Limited::Any(false).refuses(&unseen), ["a", "b"]);
        assert_eq!(Limited::These(vec!["a".into(), "c".into()]).refuses(&unseen), ["b"]);
    }
}
