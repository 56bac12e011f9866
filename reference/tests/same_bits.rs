//! The promise of `arith`: a forward's logits have the same bits with any instructions, number of threads
//! and division of the prompt into calls. The hashes are committed, so that machines can be compared; on
//! AArch64 the same test runs under an emulator (`tools/neon`).
//!
//! With 1 and 2 threads the prompt is fed in every division of [`CALLS`], with 3, 8, 64 and 192 in the last of
//! them. `ASSAY_SAME_BITS=long` feeds it in every division with every number of threads;
//! `ASSAY_SAME_BITS=short`, for an emulator, with 2 threads alone.

use std::path::Path;

use assay_reference::arith::isa::Isa;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::Basis;
use assay_reference::qwen::{Forward, Preset};

/// Of the trained model's logits for [`prompt`], by preset.
const HASHES: [(&str, u64); 3] = [
    ("f32", 0xcfe9_6fca_48ec_cbe4),
    ("transformers-bf16", 0x4845_f4c5_a973_a666),
    ("oracle-f64", 0xf959_c20b_fcd7_bbd1),
];

fn prompt(checkpoint: &Checkpoint) -> Vec<u32> {
    let vocab = checkpoint.config().vocab_size as u32;
    (0..45).map(|i: u32| (i * i * 31 + 7) % vocab).collect()
}

/// How a prompt is fed: lengths of the calls, of which the last one repeats.
const CALLS: [(&str, &[usize]); 12] = [
    ("prefill", &[45]),
    ("decode", &[1]),
    ("batch 2", &[2]),
    ("batch 3", &[3]),
    ("batch 4", &[4]),
    ("batch 5", &[5]),
    ("batch 6", &[6]),
    ("batch 7", &[7]),
    ("batch 8", &[8]),
    ("batch 9", &[9]),
    ("chunked", &[33, 1, 11]),
    ("prefill and decode", &[40, 1]),
];

/// Over the bits of all logits, in order of the tokens: FNV-1a with a rotation.
fn hash<R: Basis>(checkpoint: &Checkpoint, preset: &'static Preset, calls: &[usize]) -> u64 {
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a sound checkpoint");
    let ids = prompt(checkpoint);
    let (mut rest, mut call, mut hash) = (&ids[..], 0, 0xcbf2_9ce4_8422_2325u64);
    while !rest.is_empty() {
        let n = calls[call.min(calls.len() - 1)].min(rest.len());
        let logits = forward.step(&rest[..n], &mut |_, _| ()).expect("ids of the vocabulary");
        for x in logits {
            // The lowest bits of a widened number are zeros.
            let bits = x.value().to_bits().rotate_left(32);
            hash = (hash ^ bits).wrapping_mul(0x100_0000_01b3).rotate_left(17);
        }
        (rest, call) = (&rest[n..], call + 1);
    }
    hash
}

fn hash_of(checkpoint: &Checkpoint, preset: &str, calls: &[usize]) -> u64 {
    let preset = Preset::named(preset).expect("a preset");
    match preset.name {
        "oracle-f64" => hash::<f64>(checkpoint, preset, calls),
        _ => hash::<f32>(checkpoint, preset, calls),
    }
}

/// One test, since the choice of instructions is the process's.
#[test]
fn logits_have_the_same_bits_on_every_path() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/checkpoints/trained-qwen3");
    let checkpoint = Checkpoint::open(&dir).expect("the golden checkpoint");
    let all_divisions: &[usize] = match std::env::var("ASSAY_SAME_BITS").as_deref() {
        Ok("short") => &[2],
        Ok("long") => &[1, 2, 3, 8, 64, 192],
        _ => &[1, 2],
    };
    let mut compared = 0;
    for isa in Isa::supported() {
        isa.select().expect("is supported");
        for threads in [1, 2, 3, 8, 64, 192] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads can be started").install(|| {
                for (preset, want) in HASHES {
                    // One division with each number of threads.
                    let calls =
                        if all_divisions.contains(&threads) { &CALLS[..] } else { &CALLS[11..] };
                    for (name, calls) in calls {
                        let got = hash_of(&checkpoint, preset, calls);
                        assert_eq!(
                            format!("{got:#018x}"),
                            format!("{want:#018x}"),
                            "{preset}, {isa}, {threads} threads, {name}"
                        );
                        compared += 1;
                    }
                }
            });
        }
    }
    let few = all_divisions.len();
    assert_eq!(compared, Isa::supported().len() * 3 * (few * CALLS.len() + 6 - few));
}
