//! The judgements of an op's outputs, put together for a report of one line a kernel.

use assay_reference::Result;
use assay_reference::ops::{Erased, Op};

use super::{Judgement, Observation, Options, Verdict, judge_one};
use crate::finding::Finding;

/// Judges all outputs of a subject's launches: `first` holds the op's first output, `others` its further
/// ones by name. Each is judged by itself, but what is wrong in one only is not called by the name of a
/// fault that would show in another.
///
/// # Errors
/// As [`judge_output`](super::judge_output).
pub fn judge_all(
    op: &str,
    first: &[Observation],
    others: &[(&str, Vec<Observation>)],
    options: Options,
) -> Result<Judgement> {
    let mut all: Vec<(&str, &[Observation])> =
        others.iter().map(|(name, runs)| (*name, runs.as_slice())).collect();
    let mut judgement = judge_one(op, None, first, &all, options)?;
    if let Some(run) = first.first().filter(|_| !others.is_empty()) {
        let specs = Erased::open(&run.case)?.1;
        all.extend(specs.first().map(|spec| (spec.name, first)));
    }
    for (output, runs) in others {
        let beside: Vec<_> = all.iter().copied().filter(|(name, _)| name != output).collect();
        judgement = judgement.with(output, judge_one(op, Some(*output), runs, &beside, options)?);
    }
    Ok(judgement)
}

impl Judgement {
    /// This judgement of some outputs with that of one more, `output`. A pass needs a convention that
    /// explains all of them; a fault that one output shows is not unseen; findings say whose they are.
    #[must_use]
    pub fn with(mut self, output: &str, other: Judgement) -> Judgement {
        let elements = (self.elements + other.elements).max(1) as f64;
        let equal =
            self.equal_share * self.elements as f64 + other.equal_share * other.elements as f64;
        self.equal_share = equal / elements;
        self.runs += other.runs;
        self.elements += other.elements;
        self.worst = self.worst.max(other.worst);
        self.hypotheses += other.hypotheses;
        let vague = other.ill_conditioned.into_iter().map(|label| format!("{label}, {output}"));
        self.ill_conditioned.extend(vague);
        self.histogram.iter_mut().zip(other.histogram).for_each(|(sum, n)| *sum += n);
        if self.verdict.is_pass() && !other.verdict.is_pass() {
            self.picture = other.picture;
        }
        self.verdict = joined(self.verdict, output, other.verdict);
        self
    }
}

fn joined(these: Verdict, output: &str, other: Verdict) -> Verdict {
    match (these, other) {
        (
            Verdict::Pass {
                conventions: ours,
                unseen_faults: mut unseen,
                mut indistinct,
                mut fault_pairs,
            },
            Verdict::Pass {
                conventions: theirs,
                unseen_faults,
                indistinct: hidden,
                fault_pairs: pairs,
            },
        ) => {
            // What one output tells apart is told apart.
            unseen.retain(|fault| unseen_faults.contains(fault));
            indistinct.retain(|pair| hidden.contains(pair));
            fault_pairs.retain(|pair| pairs.contains(pair));
            let both: Vec<String> = ours.iter().filter(|c| theirs.contains(c)).cloned().collect();
            if both.is_empty() {
                let text = format!(
                    "each output has a convention, but they disagree: {output} follows {}, the others {}",
                    theirs.join(" or "),
                    ours.join(" or ")
                );
                return Verdict::Fail {
                    findings: vec![Finding::new("conventions_disagree", text)],
                };
            }
            Verdict::Pass { conventions: both, unseen_faults: unseen, indistinct, fault_pairs }
        }
        (Verdict::Pass { .. }, Verdict::IllConditioned { where_ }) => {
            Verdict::IllConditioned { where_: format!("output `{output}`: {where_}") }
        }
        (Verdict::IllConditioned { where_ }, Verdict::Pass { .. }) => {
            Verdict::IllConditioned { where_ }
        }
        (Verdict::Pass { .. }, Verdict::Skipped { reason }) => {
            Verdict::Skipped { reason: format!("output `{output}`: {reason}") }
        }
        (these, other) => {
            let mut findings = these.findings();
            for f in other.findings() {
                if !findings.iter().any(|g| g.name == f.name) {
                    findings.push(Finding { text: format!("output `{output}`: {}", f.text), ..f });
                }
            }
            if findings.is_empty() { these } else { Verdict::Fail { findings } }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use assay_reference::ops::Scope;

    use super::super::Unseen;
    use super::*;
    use crate::families;
    use crate::subject::native::Native;

    const KERNEL: Options =
        Options { scope: Scope::Kernel, unseen: Unseen::Nothing, preset: None, known: None };

    fn pass(conventions: &[&str], unseen: &[&str]) -> Judgement {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_string()).collect();
        let verdict = Verdict::Pass {
            conventions: owned(conventions),
            unseen_faults: owned(unseen),
            indistinct: owned(unseen),
            fault_pairs: Vec::new(),
        };
        let judgement = Judgement::skipped("");
        Judgement { verdict, runs: 2, elements: 10, worst: 0.5, equal_share: 0.5, ..judgement }
    }

    fn fail(name: &str) -> Judgement {
        let findings = vec![Finding::new(name, "what is wrong")];
        Judgement { verdict: Verdict::Fail { findings }, worst: 7.0, ..pass(&[], &[]) }
    }

    #[test]
    fn a_pass_of_all_outputs_has_the_conventions_that_all_allow() {
        let both =
            pass(&["defaults", "edge=f32"], &["a", "b"]).with("x", pass(&["edge=f32"], &["b"]));
        assert_eq!(both.verdict, pass(&["edge=f32"], &["b"]).verdict);
        assert_eq!((both.runs, both.elements, both.equal_share), (4, 20, 0.5));
        let neither = pass(&["defaults"], &[]).with("x", pass(&["edge=f32"], &[]));
        assert_eq!(neither.verdict.findings()[0].name, "conventions_disagree");
    }

    #[test]
    fn a_finding_of_any_output_is_one_of_the_kernel_and_says_whose() {
        for judgement in [
            pass(&["defaults"], &[]).with("residual", fail("unexplained")),
            fail("not_deterministic").with("residual", fail("unexplained")),
        ] {
            let findings = judgement.verdict.findings();
            let last = findings.last().expect("a finding");
            assert_eq!((last.name.as_str(), judgement.worst), ("unexplained", 7.0));
            assert!(last.text.starts_with("output `residual`: "), "{}", last.text);
        }
        let kept = fail("not_deterministic").with("x", pass(&["defaults"], &[]));
        assert_eq!(kept.verdict, fail("not_deterministic").verdict);
    }

    /// On the output a norm of the old residual looks as a dropped addition, and on the residual a sum that
    /// is not written back does: the other output tells.
    #[test]
    fn a_fault_of_one_output_is_not_called_by_one_of_both() {
        let op = "add_rms_norm";
        let cases = families::power_cases(op, 5).into_iter().take(4);
        let cases: Vec<_> = cases.map(|g| (Arc::new(g.case), g.label, g.structured)).collect();
        for slug in ["norm_of_old_residual", "residual_not_updated", "block_dropped"] {
            let subject = Native::new(op).broken(slug, "");
            let (mut first, mut residual) = (Vec::new(), Vec::new());
            for (case, label, structured) in &cases {
                let outputs = subject.outputs(case).expect("a native add_rms_norm");
                for (name, output) in outputs {
                    let (case, label) = (case.clone(), label.clone());
                    let of = if name == "residual" { &mut residual } else { &mut first };
                    of.push(Observation { case, output, label, structured: *structured });
                }
            }
            let judgement = judge_all(op, &first, &[("residual", residual)], KERNEL);
            let findings = judgement.expect("runs of the op").verdict.findings();
            let names: Vec<&str> = findings.iter().map(|f| f.name.as_str()).collect();
            assert_eq!(names, [format!("{op}.{slug}")], "{findings:#?}");
        }
    }

    /// An output that nothing was verified of is no pass.
    #[test]
    fn a_skipped_output_is_not_a_pass() {
        let judgement = pass(&["defaults"], &[]).with("x", Judgement::skipped("not recorded"));
        assert_eq!(judgement.verdict.word(), "skipped");
    }
}
