//! Single answers of a right server edited: each kind of fault that is seen in the answers has its own name.

use std::sync::atomic::{AtomicUsize, Ordering};

use assay_verify::server::{Report, State};
use serde_json::{Value, json};

use super::codes;
use super::transport::{completion, noise, ok, probed, server};

/// The report on a server that answers rightly but for the `choice` of requests with one generated token.
fn edited(edit: fn(&mut Value)) -> Report {
    let url = server(move |c, body| {
        let mut answer = completion(c, body, &|_, _, _| {});
        if body["max_tokens"] == 1 && body.get("logprobs").is_some() {
            edit(&mut answer["choices"][0]);
        }
        ok(&answer)
    });
    probed(&url).0
}

/// The numbers are right, and what is made of them is not: no forward has to be sought.
#[test]
fn tokens_that_are_not_the_likeliest_and_probabilities_that_are_none_have_names() {
    let report = edited(|choice| {
        let top = choice["logprobs"]["top_logprobs"][0].as_object().expect("rivals");
        let (token, own) = top.iter().nth(1).expect("a second");
        let (token, own) = (token.clone(), own.clone());
        let id: u32 = token["token_id:".len()..].parse().expect("an id");
        choice["token_ids"] = json!([id]);
        choice["logprobs"]["tokens"] = json!([token]);
        choice["logprobs"]["token_logprobs"] = json!([own]);
    });
    assert_eq!((report.state, codes(&report)), (State::Right, vec!["A4C9"]), "{report:#?}");

    let report =
        edited(|choice| choice["logprobs"]["top_logprobs"][0]["token_id:4000"] = json!(-9.0));
    assert_eq!((report.state, codes(&report)), (State::Right, vec!["A4CA"]), "{report:#?}");
    assert!(report.findings[0].what.contains("token 4000"), "{report:#?}");
}

/// The report on a server that adds noise to the answers that `wrong` chooses; it hears the body, and how many requests of
/// 4 tokens behind the whole prompt came before: the repeats are two, and the batch comes after them.
fn noisy(wrong: fn(&Value, usize) -> bool) -> Report {
    let count = AtomicUsize::new(0);
    let url = server(move |c, body| {
        let whole = body["max_tokens"] == 4 && body["prompt"].as_array().map(Vec::len) == Some(20);
        let nth = if whole { count.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let wrong = wrong(body, nth);
        let edit = |_: usize, _: usize, row: &mut Vec<f64>| {
            if wrong {
                noise(row, 0.1);
            }
        };
        ok(&completion(c, body, &edit))
    });
    probed(&url).0
}

#[test]
#[ignore = "two searches, some ten seconds; cargo test -p assay-tests --test promises probe -- --ignored"]
fn a_batch_and_a_cached_beginning_are_named() {
    let report = noisy(|_, nth| nth >= 2);
    assert!(codes(&report).contains(&"A4C6"), "{report:#?}");
    assert!(report.findings[0].what.contains("3 of 3 requests at once"), "{report:#?}");
    // Two tokens are asked behind what is cached, and nowhere else.
    let report = noisy(|body, _| body["max_tokens"] == 2);
    assert!(codes(&report).contains(&"A4C7"), "{report:#?}");
}
