use serde_json::json;

use super::*;

/// The rows of an answer with `told` tokens to a request for four.
fn rows(choice: &Value, echo: bool) -> Evidence {
    let exchange = serde_json::from_value(json!({
        "name": "hand", "method": "POST", "path": "/v1/completions", "status": 200,
        "request": { "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "echo": echo },
        "response": { "choices": [choice] },
    }));
    read(&[exchange.expect("an exchange")], None, &|_| None)
}

fn scored(n: u32) -> Value {
    let tokens: Vec<String> = (0..n).map(|i| format!("token_id:{i}")).collect();
    json!({ "logprobs": { "tokens": tokens, "token_logprobs": vec![-0.5; n as usize] } })
}

/// A server decides how much it answers, and each row has all tokens before it.
#[test]
fn more_tokens_than_were_asked_for_are_not_read() {
    let ids: Vec<u32> = (0..100).collect();
    for (choice, echo, kept) in [
        (scored(4), false, 4),
        (scored(100), false, 4),
        // The prompt, of which the first has nothing before it, and what was generated.
        (scored(7), true, 6),
        (scored(100), true, 6),
        (json!({ "token_ids": ids }), false, 4),
    ] {
        let evidence = rows(&choice, echo);
        assert_eq!(evidence.rows.len(), kept, "{choice}");
        let counted: usize = evidence.rows.iter().map(|r| r.prefix.len()).sum();
        assert_eq!(evidence.tokens, counted);
        let more = choice.to_string().len() > 1000 || choice["token_ids"].is_array();
        assert_eq!(evidence.unused.len(), usize::from(more), "{:?}", evidence.unused);
    }
}
