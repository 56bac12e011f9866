//! Every row's bits depend on the tokens up to it and on nothing else.

use assay_reference::checkpoint::Checkpoint;
use proptest::prelude::*;

use crate::support::{Basis, Probes, checkpoint, config, probes};

/// Dense, quantised, a mixture, a window of 5 and YaRN. (A dynamic rope is apart: see below.)
const CHECKPOINTS: [&str; 6] =
    ["tiny-qwen2", "tiny-qwen3", "gptq-qwen3", "moe-qwen3", "window-qwen2", "yarn-qwen3"];
/// A repeated token and the ids at both ends of the smallest vocabulary; longer than the window.
const TOKENS: [u32; 10] = [7, 0, 150, 31, 31, 100, 159, 2, 111, 64];

fn same(whole: &Probes, parts: &Probes, what: &str) {
    assert_eq!(whole.len(), parts.len(), "{what}");
    for (probe, bits) in whole {
        let differing = bits.iter().zip(&parts[probe]).filter(|(a, b)| a != b).count();
        assert_eq!(bits.len(), parts[probe].len(), "{what}: {probe}");
        assert_eq!(differing, 0, "{what}: {probe} differs in {differing} of {}", bits.len());
    }
}

/// Runs a check under each basis and preset.
macro_rules! every_arithmetic {
    ($check:ident) => {
        for name in CHECKPOINTS {
            let checkpoint = checkpoint(name);
            $check::<f32>(&checkpoint, "f32");
            $check::<f32>(&checkpoint, "transformers-bf16");
            $check::<f64>(&checkpoint, "oracle-f64");
        }
    };
}

fn split_anywhere<R: Basis>(checkpoint: &Checkpoint, preset: &str) {
    let n = TOKENS.len();
    let whole = probes::<R>(checkpoint, preset, &TOKENS, &[n]);
    // Every point in the cheapest arithmetic; in the others the ends, the middle and one by one.
    let every = preset == "f32";
    for first in (1..n).filter(|p| every || [1, 5, n - 1].contains(p)) {
        let parts = probes::<R>(checkpoint, preset, &TOKENS, &[first, n - first]);
        same(&whole, &parts, &format!("{preset} split at {first}"));
    }
    let parts = probes::<R>(checkpoint, preset, &TOKENS, &vec![1; n]);
    same(&whole, &parts, &format!("{preset} token by token"));
}

#[test]
fn prefill_equals_decode_bitwise() {
    every_arithmetic!(split_anywhere);
}

fn threads<R: Basis>(checkpoint: &Checkpoint, preset: &str) {
    let run = |n: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool");
        pool.install(|| probes::<R>(checkpoint, preset, &TOKENS, &[TOKENS.len()]))
    };
    let one = run(1);
    for n in [2, 5] {
        same(&one, &run(n), &format!("{preset} with {n} threads"));
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    every_arithmetic!(threads);
}

fn later_tokens<R: Basis>(checkpoint: &Checkpoint, preset: &str) {
    let mut other = TOKENS;
    other[6..].copy_from_slice(&[1, 2, 3, 4]);
    let (a, b) = (
        probes::<R>(checkpoint, preset, &TOKENS, &[10]),
        probes::<R>(checkpoint, preset, &other, &[10]),
    );
    for (probe, bits) in &a {
        let past = bits.len() / 10 * 6;
        assert_eq!(bits[..past], b[probe][..past], "{preset}: {probe}");
    }
    assert_ne!(a["logits"], b["logits"]);
    // Alone: a batch of one token equals the first row of a batch of ten.
    let alone = probes::<R>(checkpoint, preset, &TOKENS[..1], &[1]);
    for (probe, bits) in &alone {
        assert_eq!(*bits, a[probe][..bits.len()], "{preset}: {probe}");
    }
}

#[test]
fn future_tokens_do_not_change_the_past() {
    every_arithmetic!(later_tokens);
}

/// Lengths of 1 to 5 that add up to the length of a prompt.
fn cut() -> impl Strategy<Value = (Vec<u32>, Vec<usize>)> {
    let chunks = prop::collection::vec(1usize..=5, 1..6);
    chunks.prop_flat_map(|lengths| {
        let n: usize = lengths.iter().sum();
        (prop::collection::vec(0u32..160, n), Just(lengths))
    })
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn a_prompt_in_chunks_equals_the_whole((tokens, lengths) in cut(), which in 0..CHECKPOINTS.len()) {
        let checkpoint = checkpoint(CHECKPOINTS[which]);
        for preset in ["f32", "transformers-bf16"] {
            let whole = probes::<f32>(&checkpoint, preset, &tokens, &[tokens.len()]);
            let parts = probes::<f32>(&checkpoint, preset, &tokens, &lengths);
            same(&whole, &parts, preset);
        }
    }
}

/// What the probes of the first layer that a rope feeds have in common between two runs: how many of
/// their rows have the same bits.
fn equal_rows(a: &Probes, b: &Probes, probe: &str) -> usize {
    let rows = |p: &Probes| {
        let width = p[probe].len() / TOKENS.len();
        p[probe].chunks(width).map(<[u64]>::to_vec).collect::<Vec<_>>()
    };
    rows(a).iter().zip(rows(b)).filter(|(a, b)| **a == *b).count()
}

/// Under a dynamic rope scaling the base follows the largest position of the call, as in transformers:
/// within the 8 trained positions chunks equal the whole bit by bit, and beyond them they do not, since
/// keys of an earlier call keep the rotation of a shorter one.
#[test]
fn a_dynamic_rope_depends_on_the_calls() {
    let checkpoint = checkpoint("dynamic-qwen3");
    for preset in ["f32", "transformers-bf16"] {
        let run =
            |tokens: &[u32], calls: &[usize]| probes::<f32>(&checkpoint, preset, tokens, calls);
        let short = &TOKENS[..8];
        same(&run(short, &[8]), &run(short, &[3, 5]), preset);

        let (whole, parts) = (run(&TOKENS, &[10]), run(&TOKENS, &[4, 6]));
        assert_eq!(equal_rows(&whole, &parts, "layers.0.k_proj"), 10, "before the rope");
        // Position 0 is not rotated at any base; the last six positions are in a call of the same length.
        assert_eq!(equal_rows(&whole, &parts, "layers.0.k_rope"), 7, "{preset}");
        assert!(equal_rows(&whole, &parts, "layers.0.attention") <= 2, "{preset}");
        assert_ne!(whole["logits"], parts["logits"]);
    }
    // With the base of the whole extended context, as vLLM computes it, calls do not matter.
    let fixed = |calls: &[usize]| probes::<f32>(&checkpoint, "fused-bf16", &TOKENS, calls);
    same(&fixed(&[10]), &fixed(&[4, 6]), "fused-bf16");
}
