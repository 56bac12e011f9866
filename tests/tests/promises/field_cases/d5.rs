//! A rotary table held in bf16 (Qwen3 in candle): prompts of 12, 200 and 2000 tokens. The rotation is
//! named, with its angle error by position; 12 tokens cannot show positions in bf16, which are exact up
//! to 256, and a pass on them says so.
//!
//! Report: <https://github.com/huggingface/candle/issues/3005>

use std::collections::BTreeMap;

use assay_reference::arith::math;
use assay_reference::trace::{self, Manifest, Trace};
use assay_reference::{Dtype, Rounding, Tensor};
use assay_tests::golden;
use assay_verify::diff::{DiffReport, NodeReport};
use assay_verify::judge::Verdict;
use assay_verify::report::text;

const HEADS: usize = 2;
const D: usize = 128;
const THETA: f64 = 1e6;
const PROBE: &str = "layers.0.k_rope";

fn bf16(x: f64) -> f64 {
    Rounding::nearest(Dtype::Bf16).round(x)
}

/// The angle of a position and an inverse frequency, as an engine forms it.
type Angle = fn(f64, f64) -> f64;

fn right(p: f64, inv: f64) -> f64 {
    f64::from((p * inv) as f32)
}

fn positions_in_bf16(p: f64, inv: f64) -> f64 {
    right(bf16(p), inv)
}

fn frequencies_in_bf16(p: f64, inv: f64) -> f64 {
    right(p, bf16(inv))
}

/// Keys before and after an eager bf16 rotation, written out: cos, sin, products and sums are stored in
/// bf16.
fn recording(tokens: usize, angle: Angle) -> BTreeMap<String, Tensor> {
    let mut state = 7u64;
    let x: Vec<f64> = (0..tokens * HEADS * D)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bf16(((state >> 40) as f64 / f64::from(1u32 << 23) - 1.0) * 2.0)
        })
        .collect();
    let mut y = vec![0.0; x.len()];
    for t in 0..tokens {
        for i in 0..D / 2 {
            let inv = f64::from(math::pow(THETA, -2.0 * i as f64 / D as f64) as f32);
            let a = angle(t as f64, inv);
            let (cos, sin) = (bf16(math::cos(a)), bf16(math::sin(a)));
            for h in 0..HEADS {
                let (first, second) = ((t * HEADS + h) * D + i, (t * HEADS + h) * D + i + D / 2);
                let (u, v) = (x[first], x[second]);
                y[first] = bf16(bf16(u * cos) - bf16(v * sin));
                y[second] = bf16(bf16(v * cos) + bf16(u * sin));
            }
        }
    }
    let shape = [tokens, HEADS, D];
    [("layers.0.k_norm", x), (PROBE, y)]
        .map(|(name, values)| (name.to_string(), Tensor::from_f64(Dtype::Bf16, &shape, &values)))
        .into()
}

fn diff(tokens: usize, angle: Angle) -> DiffReport {
    let checkpoint = golden::checkpoint("tiny-qwen3");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let manifest = Manifest {
        assay_trace: trace::VERSION,
        producer: BTreeMap::from([("name".into(), "an engine".into())]),
        dtype: Dtype::Bf16,
        architecture: checkpoint.config().architecture.class().into(),
        tokens: (0..tokens as u32).map(|t| t % 300).collect(),
        segments: vec![(0, tokens)],
        layers: checkpoint.config().num_hidden_layers,
        files: Vec::new(),
        notes: String::new(),
        ranks_differ: Vec::new(),
        probes: BTreeMap::new(),
    };
    trace::save(dir.path(), manifest, &recording(tokens, angle)).expect("a new folder");
    golden::diff_with_limits(&checkpoint, &Trace::open(dir.path()).expect("what was saved"))
}

fn rotation(report: &DiffReport) -> &NodeReport {
    report.nodes.iter().find(|n| n.probe == PROBE).expect("the rotation")
}

#[track_caller]
fn named(tokens: usize, angle: Angle, fault: &str) {
    let report = diff(tokens, angle);
    let node = rotation(&report);
    let findings = node.judgement.verdict.findings();
    let names: Vec<&str> = findings.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, [fault], "{tokens} tokens: {findings:?}");
    assert!(findings[0].text.contains("angle error in radians by position"), "{findings:?}");
    assert_eq!(node.phase_error.len(), tokens);
}

#[track_caller]
fn passes_with_limits(tokens: usize, angle: Angle, unseen: &[&str]) {
    let report = diff(tokens, angle);
    let Verdict::Pass { unseen_faults, .. } = &rotation(&report).judgement.verdict else {
        panic!("{tokens} tokens: {:?}", rotation(&report).judgement.verdict)
    };
    let text = text::diff(&report, false);
    let line = text.lines().find(|l| l.starts_with("rope: pass, limited")).unwrap_or("");
    for fault in unseen {
        assert!(unseen_faults.iter().any(|f| f == fault), "{tokens} tokens: {unseen_faults:?}");
        assert!(line.contains(fault), "{text}");
    }
    let more = ["rope.position_bf16", "rope.inv_freq_bf16"].iter().filter(|f| !unseen.contains(f));
    for fault in more {
        assert!(!line.contains(fault), "{tokens} tokens show {fault}: {line}");
    }
}

#[test]
fn a_bf16_table_is_named_at_the_lengths_that_show_it() {
    named(200, frequencies_in_bf16, "rope.inv_freq_bf16");
    named(2000, frequencies_in_bf16, "rope.inv_freq_bf16");
    named(2000, positions_in_bf16, "rope.position_bf16");
}

#[test]
fn the_sound_twin_passes_at_every_length() {
    passes_with_limits(2000, right, &[]);
    passes_with_limits(200, right, &["rope.position_bf16"]);
}

#[test]
fn twelve_tokens_are_insufficient_and_say_so_for_the_sound_and_the_faulty_engine() {
    passes_with_limits(12, right, &["rope.position_bf16"]);
    passes_with_limits(12, positions_in_bf16, &["rope.position_bf16"]);
}

/// The curve rises with the position, as the report's measurements do.
#[test]
fn the_angle_error_grows_with_the_position() {
    let report = diff(2000, positions_in_bf16);
    let curve = &rotation(&report).phase_error;
    let worst =
        |range: std::ops::Range<usize>| curve[range].iter().map(|e| e.radians).fold(0.0, f64::max);
    // Up to 256 only the rounding of what was stored: a few units of 2^-8.
    assert!(worst(0..257) < 8.0 / 256.0, "{}", worst(0..257));
    // Up to 512 positions are off by at most 1, up to 2000 by at most 4; pair 0 turns by 1 radian each.
    assert!((worst(257..512) - 1.0).abs() < 0.1, "{}", worst(257..512));
    assert!(worst(1024..2000) > 2.9, "{}", worst(1024..2000));
}
