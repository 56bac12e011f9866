//! Runs of the golden checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use assay_reference::arith::Real;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops;
use assay_reference::qwen::{Forward, Node, Preset};
use proptest::test_runner::FileFailurePersistence;

pub(crate) fn golden(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(relative)
}

pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&golden("checkpoints").join(name)).expect("a golden checkpoint opens")
}

/// A basis whose values can be compared bit by bit.
pub(crate) trait Basis: ops::Basis {
    fn bits(self) -> u64;
}

impl Basis for f32 {
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Basis for f64 {
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// The bits of every probe over all rows, by name.
pub(crate) type Probes = BTreeMap<String, Vec<u64>>;

/// A forward over `tokens` in calls of these lengths: what every probe saw.
pub(crate) fn probes<R: Basis>(
    checkpoint: &Checkpoint,
    preset: &str,
    tokens: &[u32],
    lengths: &[usize],
) -> Probes {
    let preset = Preset::named(preset).expect("a preset");
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a complete checkpoint");
    let mut seen = Probes::new();
    let mut at = 0;
    for &n in lengths {
        let mut see = |node: &Node, x: &[R]| {
            assert_eq!(x.len(), n * node.width, "{}", node.probe);
            seen.entry(node.probe.clone()).or_default().extend(x.iter().map(|v| v.bits()));
        };
        forward.step(&tokens[at..at + n], &mut see).expect("tokens of the vocabulary");
        at += n;
    }
    assert_eq!((at, forward.position()), (tokens.len(), tokens.len()));
    seen
}

/// The logits of one call over all tokens, [T, vocab].
pub(crate) fn logits<R: Basis>(checkpoint: &Checkpoint, preset: &str, tokens: &[u32]) -> Vec<f64> {
    let preset = Preset::named(preset).expect("a preset");
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a complete checkpoint");
    let out = forward.step(tokens, &mut |_, _| {}).expect("tokens of the vocabulary");
    out.into_iter().map(Real::value).collect()
}

/// The logits of several calls, one after the other.
pub(crate) fn logits_in<R: Basis>(
    checkpoint: &Checkpoint,
    preset: &str,
    calls: &[Vec<u32>],
) -> Vec<f64> {
    let preset = Preset::named(preset).expect("a preset");
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a complete checkpoint");
    let step = |tokens: &Vec<u32>| forward.step(tokens, &mut |_, _| {}).expect("known tokens");
    calls.iter().flat_map(step).map(Real::value).collect()
}

/// What every probe saw over several calls, by name.
pub(crate) fn probe_values<R: ops::Basis>(
    checkpoint: &Checkpoint,
    preset: &str,
    calls: &[Vec<u32>],
) -> BTreeMap<String, Vec<R>> {
    let preset = Preset::named(preset).expect("a preset");
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a complete checkpoint");
    let mut seen: BTreeMap<String, Vec<R>> = BTreeMap::new();
    for tokens in calls {
        let mut see = |node: &Node, x: &[R]| {
            seen.entry(node.probe.clone()).or_default().extend_from_slice(x);
        };
        forward.step(tokens, &mut see).expect("known tokens");
    }
    seen
}

/// So many cases; failures are kept beside the source, to be committed.
pub(crate) fn config(cases: u32) -> proptest::test_runner::Config {
    let failures = FileFailurePersistence::WithSource("proptest-regressions");
    let failure_persistence = Some(Box::new(failures) as Box<_>);
    proptest::test_runner::Config { cases, failure_persistence, ..Default::default() }
}

/// The root of the mean of squares.
pub(crate) fn rms(x: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = x.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v * v));
    f64::sqrt(sum / n)
}

/// rms(difference) / rms(wanted).
pub(crate) fn relative_rms(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    rms(got.iter().zip(want).map(|(a, b)| a - b)) / rms(want.iter().copied())
}
