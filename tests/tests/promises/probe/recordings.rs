//! What vLLM 0.32 answered over sound and damaged checkpoints.

use std::path::Path;

use assay_tests::damage::Copy;
use assay_tests::{cli, golden};
use assay_verify::server::exchange::{Exchange, load};
use assay_verify::server::{Report, State};

use super::{codes, gptq, judged};

fn recorded(name: &str) -> Vec<Exchange> {
    load(&golden::path(&format!("vllm/{name}.json"))).expect("a recording")
}

fn trained() -> std::path::PathBuf {
    golden::path("checkpoints/trained-qwen3")
}

/// Wrong, with a forward of this code that explains it, whose text says `said`.
#[track_caller]
fn explained(report: &Report, code: &str, said: &str) {
    assert_eq!(report.state, State::Wrong, "{report:#?}");
    assert!(codes(report).contains(&"A4C3"), "{report:#?}");
    let named = report.explanations.iter().any(|e| e.code == code && e.text.contains(said));
    assert!(named, "{code} {said}: {:#?} {:#?}", report.explanations, report.notes);
}

#[track_caller]
fn right(dir: &Path, recording: &str) {
    let report = judged(dir, &recorded(recording), None);
    assert_eq!((report.state, codes(&report)), (State::Right, vec![]), "{report:#?}");
    let overall = report.overall.expect("numbers");
    assert!(overall.compared > 100 && overall.ratio > 0.0, "{overall:?}");
}

/// Sound servers are right, from every form in which they tell log-probabilities; the command says so too.
#[test]
fn sound_vllm_is_right() {
    right(&trained(), "clean");
    let file = golden::path("vllm/clean.json");
    let model = trained();
    let run = cli::assay([
        "probe",
        "--replay",
        &file.to_string_lossy(),
        "--model",
        &model.to_string_lossy(),
    ]);
    assert_eq!(run.code, 0, "{run:#?}");
    for said in ["right", "version 0.32.0", "prompt_logprobs", "not tested", "same token ids"] {
        assert!(run.stdout.contains(said), "{said}: {}", run.stdout);
    }
}

#[test]
fn another_theta_is_named() {
    let report = judged(&trained(), &recorded("rope_theta"), None);
    explained(&report, "A300", "is 10000 instead of 1000000");
    assert_eq!(report.explanations[0].code, "A300", "{:#?}", report.explanations);
}

/// Half more on q_norm is half more on every score of that layer.
#[test]
#[ignore = "solves for a factor in every tensor, half a minute; cargo test -p assay-tests --test promises probe -- --ignored"]
fn an_altered_q_norm_is_named_with_its_factor() {
    let report = judged(&trained(), &recorded("q_norm"), None);
    explained(&report, "A4D0", "layers.0.self_attn.");
    let factor = |text: &str| -> Option<f64> {
        let (_, rest) = text.split_once("q_norm.weight` is ")?;
        rest.split_once(" times")?.0.parse().ok()
    };
    let found = report.explanations.iter().find_map(|e| factor(&e.text));
    assert!(found.is_some_and(|f| (f - 1.5).abs() < 0.1), "{:#?}", report.explanations);
}

#[test]
fn an_edited_template_is_found_where_it_differs() {
    let report = judged(&trained(), &recorded("template"), None);
    assert!(codes(&report).contains(&"A472"), "{report:#?}");
    // What the server makes of its own prompt is right.
    assert_eq!(report.state, State::Right, "{report:#?}");
}

/// vLLM's CPU backend takes symmetric weights to have zero points of 8 and reads no label (golden/vllm/README.md): it is right for
/// v1 files, whatever they are called. Held against files that call themselves v2, it reads the other format's.
#[test]
#[ignore = "most of a minute; cargo test -p assay-tests --test promises probe -- --ignored"]
fn gptq_zero_points_of_the_other_format_are_named() {
    let copy = Copy::of("checkpoints/trained-qwen3");
    gptq::quantise(&copy, "gptq");
    right(copy.path(), "gptq");
    copy.json("config.json", |config| {
        config["quantization_config"]["checkpoint_format"] = "gptq_v2".into();
    });
    explained(&judged(copy.path(), &recorded("gptq_as_v2"), None), "A30E", "zero point");
}
