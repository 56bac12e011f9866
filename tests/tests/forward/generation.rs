//! Greedy decoding, text to text, equals transformers' on a trained model.

use assay_reference::checkpoint::Tokenizer;
use assay_reference::ops::Basis;
use assay_reference::qwen::generate::Stop;
use assay_reference::qwen::{Forward, Preset, generate};
use serde_json::Value;

use crate::support::{checkpoint, golden};

fn ids(v: &Value) -> Vec<u32> {
    let array = v.as_array().expect("an array");
    array.iter().map(|i| i.as_u64().expect("an id") as u32).collect()
}

fn check<R: Basis>(preset: &str, expects: impl Fn(&Value) -> bool) {
    let checkpoint = checkpoint("trained-qwen3");
    let tokenizer = Tokenizer::open(checkpoint.dir()).expect("a tokenizer");
    let preset = Preset::named(preset).expect("a preset");
    let text = std::fs::read_to_string(golden("generations.json")).expect("a golden file");
    let all: Value = serde_json::from_str(&text).expect("golden JSON");
    let eos = ids(&all["eos_token_ids"]);
    assert_eq!(checkpoint.config().eos_token_ids, eos);
    let max_new = all["max_new_tokens"].as_u64().expect("a number") as usize;
    let generations = all["generations"].as_array().expect("an array");
    assert_eq!(generations.len(), 14);
    for g in generations.iter().filter(|g| expects(g)) {
        let prompt = g["prompt"].as_str().expect("a prompt");
        let prompt_ids = tokenizer.encode(prompt).expect("text");
        assert_eq!(prompt_ids, ids(&g["prompt_ids"]), "{prompt}");
        let mut forward = Forward::<R>::new(&checkpoint, preset).expect("a complete checkpoint");
        let mut streamed = Vec::new();
        let (out, stop) =
            generate(&mut forward, &prompt_ids, max_new, &eos, &mut |_, _| {}, |id| {
                streamed.push(id);
            })
            .expect("a prompt");
        // The golden ids end with the end token, which generate reports apart.
        let mut whole = out.clone();
        match stop {
            Stop::Eos(id) => {
                assert_eq!(g["finish_reason"], "eos", "{prompt}");
                whole.push(id);
            }
            Stop::Length => assert_eq!(g["finish_reason"], "length", "{prompt}"),
        }
        assert_eq!(whole, ids(&g["continuation_ids"]), "{prompt}");
        assert_eq!(streamed, out, "{prompt}");
        let continuation = tokenizer.decode(&out).expect("known ids");
        assert_eq!(continuation, g["continuation"].as_str().expect("text"), "{prompt}");
    }
}

#[test]
fn f32_continues_every_prompt_as_transformers_does() {
    check::<f32>("f32", |_| true);
}

#[test]
fn float64_continues_every_prompt_as_transformers_does() {
    check::<f64>("oracle-f64", |_| true);
}

/// With gaps above 1 between the best and the second logit, bf16's noise decides nothing.
#[test]
fn bf16_continues_clear_prompts_as_transformers_does() {
    check::<f32>("transformers-bf16", |g| g["smallest_margin_f64"].as_f64() > Some(1.0));
}
