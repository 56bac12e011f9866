//! `assay doctor`: what on this machine would make right kernels give wrong answers, or not run.
//!
//! Every line says what was tried; nothing is inferred from a version number. What this machine does
//! not have is said to be not applicable, which is no verdict.

mod devices;
mod libraries;
mod python;
#[cfg(test)]
mod tests;
mod tool;
mod toolchain;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use tool::Tool;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Tried, and as it should be.
    Ok,
    /// Not wrong by itself, but it misleads.
    Warning,
    /// Wrong.
    Bad,
    /// There is nothing to check here.
    NotApplicable,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at: `triton.linker`.
    pub name: &'static str,
    /// How it ended.
    pub state: State,
    /// What was found, with the figures.
    pub found: String,
    /// What to do about it; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Check {
        Check { name, state, found: found.into(), advice: String::new() }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, State::Ok, found)
    }

    fn absent(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, State::NotApplicable, found)
    }

    fn bad(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { advice: advice.into(), ..Check::new(name, State::Bad, found) }
    }

    fn warning(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { advice: advice.into(), ..Check::new(name, State::Warning, found) }
    }
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What stands for `/`.
    pub root: PathBuf,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The Python whose packages serve.
    pub python: String,
    /// Longest time for any one program.
    pub limit: Duration,
}

impl Machine {
    /// This machine, with `python` as the interpreter.
    pub fn this(python: impl Into<String>) -> Machine {
        Machine {
            root: PathBuf::from("/"),
            env: std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
            python: python.into(),
            limit: Duration::from_secs(120),
        }
    }

    fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// An absolute path under the root.
    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The ROCm or DTK installation: what the environment names, or the usual places.
    fn rocm(&self) -> Option<PathBuf> {
        let named = ["ROCM_PATH", "DTKROOT", "HIP_PATH"].iter().filter_map(|v| self.var(v));
        let usual = ["/opt/dtk", "/opt/rocm"].iter().map(|p| self.path(p));
        named
            .map(PathBuf::from)
            .chain(usual)
            .find(|p| p.is_dir())
            .or_else(|| self.dtk_versions().pop())
    }

    /// `/opt/dtk-VERSION` folders, oldest first.
    fn dtk_versions(&self) -> Vec<PathBuf> {
        let mut all = folders(&self.path("/opt"));
        all.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("dtk-")));
        all.sort();
        all
    }

    fn tool(&self, program: &str, args: &[&str]) -> Tool {
        tool::run(self, program, args)
    }
}

/// The folders in a folder; none where it cannot be read.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| p.is_dir()).collect()
}

/// All checks, in the order in which they explain one another. `step` is told of each.
pub fn examine(machine: &Machine, step: &mut dyn FnMut(&str)) -> Vec<Check> {
    let mut checks = Vec::new();
    step("driver and devices");
    checks.extend(devices::checks(machine));
    let archs = devices::archs(machine);
    step("toolchain");
    checks.extend(toolchain::checks(machine, &archs));
    step("libraries");
    checks.extend(libraries::checks(machine, &archs));
    step("Python");
    checks.extend(python::checks(machine, &archs));
    checks
}
