//! A server's answers in a bisect: what a probe finds is evidence of the suspects that need a server, and no server at
//! all leaves the others as they are.

use std::sync::Arc;
use std::time::Duration;

use assay_reference::Dtype;
use assay_tests::{cli, golden};
use assay_verify::bisect::{Bisect, Given, Outcome, Server, Source, bisect};
use assay_verify::http::Client;
use assay_verify::server::exchange::{Exchange, load};
use serde_json::{Value, json};

use super::{found, word};
use crate::probe::transport::serve;

const ROWS: [&str; 4] = [
    "prompt as the service renders it",
    "logits' state",
    "dispatch boundaries",
    "the server's log-probabilities",
];

fn of(checkpoint: &str, source: Source<'_>, dtype: Option<Dtype>) -> Bisect {
    let server = Some(Server { source, dtype });
    let model = golden::path("checkpoints").join(checkpoint);
    bisect(&model, &Given { server, ..Given::default() }, &mut |_, _, _| {}).expect("a report")
}

fn recorded() -> Vec<Exchange> {
    load(&golden::path("vllm/clean.json")).expect("a recording")
}

#[test]
fn what_sound_vllm_answered_clears_the_servers_rows_with_limits() {
    let report = of("trained-qwen3", Source::Recorded(&recorded()), None);
    assert_eq!(found(&report), [""; 0], "{report:#?}");
    for suspect in ROWS {
        assert_eq!(word(&report, suspect), "cleared", "{report:#?}");
    }
    let row = report.suspects.iter().find(|r| r.suspect == ROWS[2]).expect("a row");
    let Outcome::Cleared { by, limits } = &row.outcome else { panic!("{row:?}") };
    assert!(by.contains("49, 50, 51"), "{by}");
    assert!(limits.iter().any(|l| l.starts_with("a batch")), "{limits:?}");
    assert!(limits.iter().any(|l| l.contains("chunked prefill")), "{limits:?}");
}

/// Changes every number called `logprob` in a JSON value.
fn numbers(value: &mut Value, edit: &dyn Fn(f64) -> f64) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field.as_f64()) {
                    ("logprob", Some(x)) => *field = json!(edit(x)),
                    _ => numbers(field, edit),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|i| numbers(i, edit)),
        _ => {}
    }
}

/// What vLLM answered to prompts of 2, 13, 49, 50 and 51 ids, and every number within those of up to 13 edited.
fn short_prompts(edit: &dyn Fn(f64) -> f64) -> Vec<Exchange> {
    let mut all = recorded();
    all.retain(|e| e.request.get("prompt_logprobs").is_some() && e.name != "length_1");
    for e in &mut all {
        if e.request["prompt"].as_array().is_some_and(|p| p.len() <= 13) {
            numbers(&mut e.response, edit);
        }
    }
    all
}

#[test]
fn numbers_that_are_wrong_below_a_length_convict_the_dispatch_boundary() {
    let all = short_prompts(&|x| x - 2.0);
    let report = of("trained-qwen3", Source::Recorded(&all), None);
    let row = report.suspects.iter().find(|r| r.suspect == ROWS[2]).expect("a row");
    let codes: Vec<&str> = row.outcome.evidence().iter().map(|e| e.code.as_str()).collect();
    assert_eq!(codes, ["A4C4"], "{report:#?}");
    assert!(row.outcome.evidence()[0].what.contains("49 to 51"), "{row:#?}");
    assert!(report.headline.contains("server.length_dependent"), "{}", report.headline);

    // Clamped, as engines write what is no number.
    let report = of("trained-qwen3", Source::Recorded(&short_prompts(&|_| -9999.0)), None);
    assert_eq!(found(&report), ["server.logits_not_finite", "server.length_dependent"]);
    assert_eq!(word(&report, ROWS[1]), "CONVICTED");
    assert_eq!(word(&report, ROWS[2]), "CONVICTED");
    assert!(report.story.contains("The symptom: "), "{}", report.story);
}

/// What vLLM answered over a config with another theta: one fault, and its symptom is no second one.
#[test]
fn a_wrong_forward_that_explains_the_answers_is_the_fault() {
    let all = load(&golden::path("vllm/rope_theta.json")).expect("a recording");
    let report = of("trained-qwen3", Source::Recorded(&all), None);
    assert_eq!(found(&report), ["forward.rope_theta", "server.wrong"], "{report:#?}");
    let headline = "one fault: forward.rope_theta at the server";
    assert!(report.headline.starts_with(headline), "{}", report.headline);
    assert_eq!(word(&report, ROWS[2]), "not testable");
}

/// A running server, all of whose tokens are equally likely.
#[test]
fn a_running_server_is_asked() {
    let answer = |path: &str, body: &Value| {
        if path == "/v1/models" {
            return (200, json!({ "data": [{ "id": "tiny" }] }).to_string());
        }
        let Some(ids) = body["prompt"].as_array().filter(|_| path == "/v1/completions") else {
            return (404, "{}".into());
        };
        let uniform = -assay_reference::arith::math::ln(320.0);
        let told = |id: &Value| json!({ (id.to_string()): { "logprob": uniform } });
        let mut prompt: Vec<Value> = ids.iter().map(told).collect();
        prompt[0] = Value::Null;
        let choice = json!({ "text": "x", "prompt_token_ids": ids, "prompt_logprobs": prompt });
        (200, json!({ "choices": [choice] }).to_string())
    };
    let client = Client::new(&serve(Arc::new(answer)), None, Duration::from_secs(60));
    let client = client.expect("a client");
    let report = of("tiny-qwen3", Source::Live(&client), Some(Dtype::F32));
    assert_eq!(found(&report), ["server.logits_constant"], "{report:#?}");
    assert!(report.headline.contains("no suspect"), "{}", report.headline);
    assert_eq!(word(&report, ROWS[2]), "not testable");
}

#[test]
fn a_server_that_cannot_be_reached_is_not_testable_and_the_others_are_tested() {
    let client = Client::new("http://127.0.0.1:9", None, Duration::from_secs(2));
    let client = client.expect("a client");
    let report = of("tiny-qwen3", Source::Live(&client), None);
    assert_eq!(found(&report), [""; 0], "{report:#?}");
    for suspect in ROWS {
        let row = report.suspects.iter().find(|r| r.suspect == suspect).expect("a row");
        let Outcome::NotTestable { needs } = &row.outcome else { panic!("{row:?}") };
        assert!(
            needs.contains("127.0.0.1:9") && needs.contains("is the server running"),
            "{needs}"
        );
    }
    assert_eq!(word(&report, "files"), "cleared");
    let model = golden::path("checkpoints/tiny-qwen3");
    let model = model.to_str().expect("UTF-8");
    let run = cli::assay(["bisect", model, "--server", "http://127.0.0.1:9", "--timeout", "2"]);
    assert_eq!(run.code, 0, "{run:#?}");
    assert!(run.stdout.contains("127.0.0.1:9"), "{}", run.stdout);
}
