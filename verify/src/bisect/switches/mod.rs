//! Environment switches as suspects: which custom kernel of an engine is wrong, in few restarts.
//!
//! A restart of a large model takes minutes, so the switches are tested in groups, by halves. It is assumed that
//! turning a switch on does not repair what another one breaks; a set of switches that is wrong stays wrong when more
//! are turned on. That allows several guilty switches, and switches that are wrong only together.

mod drive;
mod search;
mod story;

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

pub use self::drive::{Command, run};
pub use self::search::{Cause, Found, Halt, Set, State, Step, search};
pub use self::story::{Report, Restart};

/// One switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// `vllm`, `sglang`.
    pub engine: String,
    /// The environment variable: 1 is on, 0 is off.
    pub name: String,
    /// What counts when it is not set.
    pub on: bool,
    /// The switch without which it does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
    /// What it chooses.
    pub concerns: String,
    /// Where that was read.
    pub source: String,
}

/// What no switch tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// `vllm`, `sglang`.
    pub engine: String,
    /// For people.
    pub text: String,
}

/// A list of switches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    switch: Vec<Switch>,
    #[serde(default)]
    note: Vec<Note>,
}

/// The most switches of a list.
const MOST: usize = 256;

/// The switches of one engine that are on, masters before what hangs on them, and those that are off already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspects {
    /// Those that are on: the suspects.
    pub on: Vec<Switch>,
    /// Those that are off, and stay so.
    pub off: Vec<Switch>,
    /// What no switch tells.
    pub notes: Vec<String>,
}

/// The list that comes with assay.
pub const SHIPPED: &str = include_str!("switches.toml");

impl Suspects {
    /// The suspects of `engine` in `list`, a TOML text from `origin`. `set` tells the value of a variable of the
    /// failing service; `with` are switches that are on there all the same.
    ///
    /// # Errors
    /// When the list cannot be read, names a switch twice or a master that it does not have, or has none of `engine`.
    pub fn read(
        list: &str,
        origin: &str,
        engine: &str,
        set: &dyn Fn(&str) -> Option<String>,
        with: &[String],
    ) -> anyhow::Result<Suspects> {
        let table: Table =
            toml::from_str(list).with_context(|| format!("{origin}: is no list of switches"))?;
        let all: Vec<Switch> = table.switch.into_iter().filter(|s| s.engine == engine).collect();
        ensure!(!all.is_empty(), "{origin}: has no switch of engine `{engine}`");
        ensure!(
            all.len() <= MOST,
            "{origin}: has {} switches, at most {MOST} are searched",
            all.len()
        );
        let mut names = BTreeSet::new();
        for s in &all {
            let plain =
                !s.name.is_empty() && s.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            ensure!(
                plain,
                "{origin}: `{}` is not the name of an environment variable",
                s.name.escape_debug()
            );
            // A master stands before its parts, so that there is no circle.
            if let Some(under) = &s.under {
                ensure!(
                    names.contains(under),
                    "{origin}: `{}` is under `{under}`, which does not stand before it",
                    s.name
                );
            }
            ensure!(names.insert(s.name.clone()), "{origin}: `{}` stands there twice", s.name);
        }
        for name in with {
            ensure!(
                names.contains(name),
                "--with {name}: {origin} has no such switch of engine `{engine}`"
            );
        }
        let is_on = |s: &Switch| {
            with.contains(&s.name)
                || set(&s.name).map_or(s.on, |v| ["1", "true"].contains(&v.to_lowercase().as_str()))
        };
        let (mut on, mut off): (Vec<Switch>, Vec<Switch>) = (Vec::new(), Vec::new());
        for s in all {
            let reachable = s.under.as_ref().is_none_or(|u| on.iter().any(|o| o.name == *u));
            if is_on(&s) && reachable { on.push(s) } else { off.push(s) }
        }
        let notes = table.note.into_iter().filter(|n| n.engine == engine).map(|n| n.text).collect();
        Ok(Suspects { on, off, notes })
    }

    /// The place of the switch that each hangs on.
    pub fn masters(&self) -> Vec<Option<usize>> {
        let of = |s: &Switch| self.on.iter().position(|o| Some(&o.name) == s.under.as_ref());
        self.on.iter().map(of).collect()
    }

    /// Variables and values of a restart with these switches on.
    pub fn environment(&self, set: &Set) -> Vec<(String, &'static str)> {
        let value = |i: usize| if set.contains(&i) { "1" } else { "0" };
        let on = self.on.iter().enumerate().map(|(i, s)| (s.name.clone(), value(i)));
        on.chain(self.off.iter().map(|s| (s.name.clone(), "0"))).collect()
    }

    /// Names of a set.
    pub fn names(&self, set: &Set) -> Vec<&str> {
        set.iter().map(|&i| self.on[i].name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_list_is_sound_and_every_switch_has_a_source() {
        for engine in ["vllm", "sglang"] {
            let all = Suspects::read(SHIPPED, "switches.toml", engine, &|_| Some("1".into()), &[]);
            let all = all.expect("a list");
            assert!(all.off.is_empty() && !all.on.is_empty() && !all.notes.is_empty());
            assert!(
                all.on
                    .iter()
                    .all(|s| s.source.starts_with("https://github.com/") && !s.concerns.is_empty())
            );
        }
        let set = |name: &str| (name == "VLLM_HCU_USE_CUSTOM_OPS").then(|| "0".to_string());
        let few = Suspects::read(SHIPPED, "switches.toml", "vllm", &set, &[]).expect("a list");
        assert!(
            few.on.iter().all(|s| s.under.is_none()),
            "what hangs on a master that is off is off"
        );
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused_by_name() {
        let one = |name: &str, under: &str| {
            format!(
                "[[switch]]\nengine = \"e\"\nname = \"{name}\"\non = true\n{under}\nconcerns = \"c\"\nsource = \"s\"\n"
            )
        };
        for (list, part) in [
            ("x".to_string(), "no list of switches"),
            (one("A", "") + &one("A", ""), "twice"),
            (one("A", "under = \"B\"") + &one("B", "under = \"A\""), "does not stand before"),
            (one("A B", ""), "environment variable"),
        ] {
            let e = Suspects::read(&list, "l", "e", &|_| None, &[]).expect_err("refused");
            assert!(format!("{e:#}").contains(part), "{e:#}");
        }
    }
}
