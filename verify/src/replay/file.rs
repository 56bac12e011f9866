//! The file: a case with recorded outputs, and what ran as metadata.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use assay_hip::{LaunchOptions, Matrix};
use assay_reference::ops::{Erased, Op, Scope};
use assay_reference::{Case, Dtype, Tensor};

use crate::families::Generated;
use crate::judge::{Judgement, Observation, Options, Unseen, judge_one};

/// A saved case. Only the case itself must be there: a case file made by hand is a replay too.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The inputs, and what the subject stored where it stored anything.
    pub case: Case,
    /// `unit 65x70x100 bias`.
    pub label: String,
    /// Whether only hard radii apply.
    pub structured: bool,
    /// The kernel that ran.
    pub kernel: Option<String>,
    /// Its source.
    pub source: Option<String>,
    /// The matrix instructions that it was built with.
    pub matrix: Matrix,
    /// Whether it ran with every access checked.
    pub checked: bool,
    /// How it was launched.
    pub options: LaunchOptions,
    /// The name of the finding that it was saved for.
    pub finding: Option<String>,
}

/// Bounds on what a file may ask of a launch.
const MAX_THREADS: usize = 1024;
const MAX_FILL: usize = 4096;
const MAX_ULPS: u32 = 1024;
const MAX_DEADLINE: Duration = Duration::from_secs(600);

impl Replay {
    /// The case as the suite's families give it.
    pub fn generated(&self) -> Generated {
        let mut case = self.case.clone();
        case.outputs.clear();
        Generated { case, label: self.label.clone(), structured: self.structured }
    }

    /// Keeps what a subject stored.
    pub fn set_outputs(&mut self, outputs: impl IntoIterator<Item = (String, Tensor)>) {
        self.case.outputs = outputs.into_iter().collect();
    }

    /// Judges the outputs in the file, each with the others beside it. `unseen`: which faults that this case cannot see
    /// are listed with a pass.
    ///
    /// # Errors
    /// When the case or an output is not the op's.
    pub fn judge(&self, unseen: Unseen) -> anyhow::Result<Vec<(String, Judgement)>> {
        let all = self.case.outputs.iter();
        all.map(|(name, t)| Ok((name.clone(), self.judge_one(name, t, unseen)?))).collect()
    }

    fn judge_one(&self, name: &str, output: &Tensor, unseen: Unseen) -> anyhow::Result<Judgement> {
        let (setup, specs) = Erased::open(&self.case)?;
        let known = || specs.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
        let index = specs.iter().position(|s| s.name == name).with_context(|| {
            format!("out.{name}: {} has no such output; it has {}", self.case.op, known())
        })?;
        let dtype = Erased::rounding(&setup.params, &setup.policy, index).dtype;
        // Indices are whole numbers, whatever the dtype of what they point into.
        let is_index = self.case.op == "argmax" && output.dtype() == Dtype::I32;
        ensure!(
            is_index || output.dtype() == dtype,
            "out.{name}: expected {dtype}, as the case says, got {}",
            output.dtype()
        );
        let case = Arc::new(self.generated().case);
        let run = |output: &Tensor| Observation {
            case: case.clone(),
            output: output.clone(),
            label: self.label.clone(),
            structured: self.structured,
        };
        let others: Vec<(&str, Observation)> = self
            .case
            .outputs
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(other, t)| (other.as_str(), run(t)))
            .collect();
        let beside: Vec<_> =
            others.iter().map(|(other, o)| (*other, std::slice::from_ref(o))).collect();
        let options = Options { scope: Scope::Kernel, unseen, preset: None, known: None };
        Ok(judge_one(&self.case.op, Some(name), &[run(output)], &beside, options)?)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut extra = BTreeMap::from([
            ("replay.label".to_string(), self.label.clone()),
            ("replay.structured".into(), self.structured.to_string()),
            ("replay.checked".into(), self.checked.to_string()),
            ("replay.options".into(), serde_json::to_string(&self.options)?),
        ]);
        if self.matrix != Matrix::None {
            extra.insert("replay.matrix".into(), self.matrix.name().into());
        }
        let texts =
            [("kernel", &self.kernel), ("source", &self.source), ("finding", &self.finding)];
        for (key, text) in texts {
            extra.extend(text.clone().map(|text| (format!("replay.{key}"), text)));
        }
        Ok(self.case.write_with(path, &extra)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is no case, or its metadata make no sense. Names the file and the key.
    pub fn read(path: &Path) -> anyhow::Result<Replay> {
        let (case, extra) = Case::read_with(path)?;
        let get = |key: &str| extra.get(&format!("replay.{key}")).cloned();
        let flag = |key: &str| match get(key).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => bail!(
                "{}: metadata `replay.{key}`: expected `true` or `false`, got `{other}`",
                path.display()
            ),
        };
        let options = match get("options") {
            None => LaunchOptions::default(),
            Some(json) => options(&json).with_context(|| {
                format!("{}: metadata `replay.options` cannot be used", path.display())
            })?,
        };
        let matrix = match get("matrix") {
            None => Matrix::None,
            Some(name) => {
                Matrix::ALL.into_iter().find(|m| m.name() == name).with_context(|| {
                    let path = path.display();
                    format!(
                        "{path}: metadata `replay.matrix`: expected `none`, `mfma` or `mmac`, got `{name}`"
                    )
                })?
            }
        };
        Ok(Replay {
            matrix,
            label: get("label").unwrap_or_else(|| case.family.clone()),
            structured: flag("structured")?,
            checked: flag("checked")?,
            kernel: get("kernel"),
            source: get("source"),
            finding: get("finding"),
            options,
            case,
        })
    }
}

/// Launch options from a file that anyone may have written.
fn options(json: &str) -> anyhow::Result<LaunchOptions> {
    let o: LaunchOptions = serde_json::from_str(json)?;
    ensure!((1..=MAX_THREADS).contains(&o.threads), "threads: expected 1 to {MAX_THREADS}");
    ensure!((1..=MAX_FILL).contains(&o.fill.len()), "fill: expected 1 to {MAX_FILL} bytes");
    ensure!(o.ulps <= MAX_ULPS, "ulps: expected at most {MAX_ULPS}");
    ensure!(o.deadline <= MAX_DEADLINE, "deadline: expected at most {MAX_DEADLINE:?}");
    Ok(o)
}
