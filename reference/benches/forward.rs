//! A whole forward against what the machine can do, measured in the same run.
//!
//!     assay make-model Qwen3-0.6B DIR
//!     ASSAY_BENCH_MODEL=DIR cargo bench -p assay-reference --bench forward
//!
//! Prints medians, tokens a second, fractions of the measured peaks and the memory in use. Rounds of all
//! rows follow one another, so that what else the machine does falls on all alike. `ASSAY_BENCH_ROUNDS` (5)
//! says how many; arguments pick rows by a part of their name; `ASSAY_BENCH_STREAM=1` keeps one layer's
//! weights in memory.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table is the point")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use assay_reference::arith::{isa::Isa, probe};
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::Basis;
use assay_reference::qwen::{Forward, Preset};
use rayon::prelude::*;

/// What is measured.
struct Row {
    name: &'static str,
    preset: &'static str,
    /// Tokens of the prompt.
    prompt: usize,
    work: Work,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// One step with the logits of every token.
    All,
    /// One step with those of the last.
    Last,
    /// Single tokens after the prompt.
    Decode,
    /// As `All`, with every layer's output copied.
    Layers,
    /// As `All`, with every probe copied.
    Probes,
}

const ROWS: [Row; 9] = [
    Row {
        name: "prefill 128, f64, all logits",
        preset: "oracle-f64",
        prompt: 128,
        work: Work::All,
    },
    Row { name: "prefill 128, f32, last logits", preset: "f32", prompt: 128, work: Work::Last },
    Row { name: "prefill 512, f32, all logits", preset: "f32", prompt: 512, work: Work::All },
    Row { name: "prefill 128, f32, all logits", preset: "f32", prompt: 128, work: Work::All },
    Row { name: "the same, layer outputs kept", preset: "f32", prompt: 128, work: Work::Layers },
    Row { name: "the same, every probe kept", preset: "f32", prompt: 128, work: Work::Probes },
    Row { name: "prefill 16, f32, last logits", preset: "f32", prompt: 16, work: Work::Last },
    Row { name: "decode, f32", preset: "f32", prompt: 16, work: Work::Decode },
    Row { name: "decode, f64", preset: "oracle-f64", prompt: 16, work: Work::Decode },
];

/// Single tokens of a decode row.
const TOKENS: usize = 8;

/// Seconds a token of decode, or a prompt.
fn seconds<R: Basis>(checkpoint: &Checkpoint, row: &Row) -> f64 {
    let preset = Preset::named(row.preset).expect("a preset");
    let vocab = checkpoint.config().vocab_size as u32;
    let ids: Vec<u32> = (0..row.prompt as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a sound checkpoint");
    if std::env::var_os("ASSAY_BENCH_STREAM").is_some() {
        forward = forward.streamed();
    }
    if matches!(row.work, Work::Last | Work::Decode) {
        forward = forward.with_last_logits();
    }
    let mut kept: Vec<Vec<f32>> = Vec::new();
    let start = Instant::now();
    let logits = forward.step(&ids, &mut |node, x| {
        let layer = node.probe.ends_with("mlp_residual");
        if row.work == Work::Probes || (row.work == Work::Layers && layer) {
            kept.push(x.par_iter().map(|x| x.value() as f32).collect());
        }
    });
    std::hint::black_box((logits.expect("ids of the vocabulary"), kept));
    if row.work != Work::Decode {
        return start.elapsed().as_secs_f64();
    }
    let start = Instant::now();
    for i in 0..TOKENS as u32 {
        let logits = forward.step(&[i * 101 % vocab], &mut |_, _| {});
        std::hint::black_box(logits.expect("ids of the vocabulary"));
    }
    start.elapsed().as_secs_f64() / TOKENS as f64
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// MiB that the process has had at most, and has.
fn memory() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let of = |key: &str| -> Option<u64> {
        let line = status.lines().find_map(|l| l.strip_prefix(key))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
    };
    Some((of("VmHWM:")?, of("VmRSS:")?))
}

fn main() -> ExitCode {
    assay_reference::machine::prepare();
    let Some(dir) = std::env::var_os("ASSAY_BENCH_MODEL").map(PathBuf::from) else {
        eprintln!(
            "ASSAY_BENCH_MODEL names no folder of a model; `assay make-model Qwen3-0.6B DIR` makes one"
        );
        return ExitCode::SUCCESS;
    };
    if let Err(what) = Isa::select_from_env() {
        eprintln!("{what}");
        return ExitCode::from(2);
    }
    let checkpoint = match Checkpoint::open(&dir) {
        Ok(checkpoint) => checkpoint,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let rounds = std::env::var("ASSAY_BENCH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let picked = |row: &&Row| wanted.is_empty() || wanted.iter().any(|w| row.name.contains(w));
    let rows: Vec<&Row> = ROWS.iter().filter(picked).collect();
    let bytes = |t: &str| checkpoint.tensor(t).map_or(0, |t| t.bytes().len());
    let all: usize = checkpoint.names().map(bytes).sum();
    let head = checkpoint.names().find(|n| n.contains("lm_head")).or(checkpoint.names().next());
    let head = head.and_then(|n| checkpoint.tensor(n).ok()).expect("a model has an embedding");
    let body = (all
        - if checkpoint.config().tie_word_embeddings {
            head.bytes().len()
        } else {
            2 * head.bytes().len()
        }) as f64;
    let element = head.dtype().size() as f64;
    let (mut times, mut probes) = (BTreeMap::<&str, Vec<f64>>::new(), [const { Vec::new() }; 3]);
    for _ in 0..rounds {
        probes[0].push(probe::peak_f32());
        probes[1].push(probe::peak_f64());
        probes[2].push(probe::read_rate(head.bytes()));
        for row in &rows {
            let s = match row.preset {
                "oracle-f64" => seconds::<f64>(&checkpoint, row),
                _ => seconds::<f32>(&checkpoint, row),
            };
            times.entry(row.name).or_default().push(s);
        }
    }
    let [f32s, f64s, read] = probes.map(median);
    println!("{} threads, {}, {rounds} rounds", rayon::current_num_threads(), Isa::current());
    println!("peak f32 {f32s:.0} GFLOP/s, f64 {f64s:.0} GFLOP/s; read {read:.1} GB/s (medians)");
    println!("{:<30} {:>9} {:>9} {:>9}  of", "", "ms", "tok/s", "fraction");
    for row in &rows {
        let s = median(times[row.name].clone());
        let (tokens, fraction, of) = if row.work == Work::Decode {
            let read_bytes = body + head.bytes().len() as f64;
            (1.0, read_bytes / s / 1e9 / read, "the read rate")
        } else {
            let rows_of_head = if row.work == Work::Last { 1.0 } else { row.prompt as f64 };
            let flops = 2.0 * (body * row.prompt as f64 + head.bytes().len() as f64 * rows_of_head)
                / element;
            let f64_ = row.preset == "oracle-f64";
            let (peak, of) = if f64_ { (f64s, "the f64 peak") } else { (f32s, "the f32 peak") };
            (row.prompt as f64, flops / s / 1e9 / peak, of)
        };
        let ms = s * 1e3;
        println!("{:<30} {ms:>9.1} {:>9.2} {fraction:>9.2}  {of}", row.name, tokens / s);
    }
    if let Some((most, now)) = memory() {
        println!("resident: {most} MiB at most, {now} MiB now");
    }
    ExitCode::SUCCESS
}
