//! What a few exchanges show, made by hand: nothing is asked, and no log-probability has to be computed.

use std::path::Path;

use assay_reference::Dtype;
use assay_tests::damage::Copy;
use assay_tests::golden;
use assay_verify::server::exchange::Exchange;
use assay_verify::server::{Report, State};
use serde_json::{Value, json};

use super::{codes, judged};

fn exchange(name: &str, path: &str, request: &Value, response: &Value) -> Exchange {
    serde_json::from_value(json!({
        "name": name, "method": "POST", "path": path, "status": 200, "request": request, "response": response,
    }))
    .expect("an exchange")
}

fn completion(prompt: &[u32], choice: &Value) -> Exchange {
    let request = json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 });
    exchange("hand", "/v1/completions", &request, &json!({ "choices": [choice] }))
}

fn tiny(exchanges: &[Exchange]) -> Report {
    judged(&golden::path("checkpoints/tiny-qwen3"), exchanges, Some(Dtype::F32))
}

#[track_caller]
fn says(report: &Report, part: &str) {
    assert!(report.not_tested.iter().any(|n| n.contains(part)), "{part}: {report:#?}");
}

#[test]
fn other_ids_than_those_given_are_a_changed_prompt() {
    let report = tiny(&[completion(&[5, 6, 7], &json!({ "prompt_token_ids": [316, 5, 6, 7] }))]);
    assert_eq!(codes(&report), ["A4CC"], "{report:#?}");
    assert!(report.findings[0].what.contains("3 token ids were given and 4 ran"), "{report:#?}");
}

/// A conversation that does not render here, and an answer without ids, are not compared; nor is any text.
#[test]
fn what_tokenize_says_that_cannot_be_compared_is_not_tested() {
    let trained = golden::path("checkpoints/trained-qwen3");
    let empty = json!({ "messages": [], "add_generation_prompt": true });
    let hello = json!({ "prompt": "hello", "add_special_tokens": false });
    let all = [
        exchange("tokenize_chat", "/tokenize", &empty, &json!({ "tokens": [1, 2] })),
        exchange("tokenize", "/tokenize", &hello, &json!({ "count": 2 })),
    ];
    let report = judged(&trained, &all, None);
    assert_eq!(codes(&report), [""; 0], "{report:#?}");
    says(&report, "tokenize_chat: the template does not render");
    says(&report, "tokenize: the answer has no token ids");
    says(&report, "the text of answers");
}

/// A row for each token that the server took, when it tells nothing of their probabilities.
fn taken(dir: &Path, token: u32) -> Report {
    judged(dir, &[completion(&[5, 6, 7], &json!({ "token_ids": [token] }))], Some(Dtype::F32))
}

/// Of 320 tokens one is the likeliest behind a prompt, or few between which rounding decides.
#[test]
fn a_token_that_the_reference_holds_for_unlikely_is_a_finding() {
    let model = golden::path("checkpoints/tiny-qwen3");
    let reports: Vec<Report> = (0..3).map(|t| taken(&model, t)).collect();
    let found = reports.iter().filter(|r| codes(r) == ["A4D2"] && r.state == State::Wrong).count();
    assert!(found >= 2, "{reports:#?}");
    // No token of the model's at all.
    assert_eq!(codes(&taken(&model, 4000)), ["A4D2"]);
}

/// A reference that gives NaN says nothing about a server.
#[test]
fn a_reference_that_is_not_finite_accuses_nobody() {
    let copy = Copy::of("checkpoints/tiny-qwen3");
    copy.tensors("model.safetensors", |t| {
        let name = "model.norm.weight";
        let edited = t[name].map(|_, _| f64::NAN);
        t.insert(name.into(), edited);
    });
    let report = taken(copy.path(), 0);
    assert_eq!((report.state, codes(&report)), (State::Unknown, vec![]), "{report:#?}");
    says(&report, "the reference forward itself is not finite");
}
