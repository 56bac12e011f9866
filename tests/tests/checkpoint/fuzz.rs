//! Damaged and hostile files: nothing panics, and a file is refused with the place named, or read right.

#[path = "fuzz/config.rs"]
mod config;
#[path = "fuzz/index.rs"]
mod index;
#[path = "fuzz/quantisation.rs"]
mod quantisation;
#[path = "fuzz/reading.rs"]
mod reading;
#[path = "fuzz/shard.rs"]
mod shard;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};

/// So many cases; failures are kept beside the source, to be committed.
fn cases(n: u32) -> ProptestConfig {
    ProptestConfig {
        cases: n,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// Values of every type, from what a field might rightly hold to what breaks readers.
fn values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(4),
        json!(8),
        json!(16),
        json!(4096),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1_u64 << 53),
        json!(0.5),
        json!(1.0),
        json!(4.0),
        json!(1e-6),
        json!(1e-5),
        json!(-1e-6),
        json!(1e4),
        json!(1e6),
        json!(1e300),
        json!(1e-300),
        json!(""),
        json!("x"),
        json!("4"),
        json!("NaN"),
        json!("Infinity"),
        json!("null"),
        json!("silu"),
        json!("bfloat16"),
        json!("float16"),
        json!("qwen2"),
        json!("gptq"),
        json!("gptq_v2"),
        json!("\u{0}\u{202e}\n"),
        json!("9".repeat(5000)),
        json!([]),
        json!([null]),
        json!([0]),
        json!([1, 1]),
        json!([0, 1, 2, 3]),
        json!([-1]),
        json!([2, 5]),
        json!([[[[{}]]]]),
        json!(["Qwen2ForCausalLM"]),
        json!(["Qwen3ForCausalLM"]),
        json!(["Qwen3MoeForCausalLM"]),
        json!(["full_attention", "full_attention"]),
        json!(["full_attention", "sliding_attention"]),
        json!(["sliding_attention"]),
        json!({}),
        json!({ "": null }),
        json!({ "rope_theta": 1e6 }),
        json!({ "rope_theta": 1e4, "rope_type": "default" }),
        json!({ "rope_type": "default" }),
        json!({ "type": "linear", "factor": 2.0 }),
        json!({ "rope_type": "linear", "type": "yarn", "factor": 2.0 }),
        json!({ "rope_type": "linear", "factor": -2.0 }),
        json!({ "rope_type": "linear" }),
        json!({ "rope_type": "dynamic", "factor": 4 }),
        json!({ "rope_type": "dynamic", "factor": 1e300 }),
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 }),
        json!({ "rope_type": "yarn", "factor": 4.0 }),
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "beta_fast": 1, "beta_slow": 32 }),
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "beta_fast": 16, "beta_slow": 2, "truncate": false, "attention_factor": 1.25 }),
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "mscale": 1.0 }),
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "mscale": 2.0, "mscale_all_dim": 1.0 }),
        json!({ "rope_type": "llama3", "factor": 8.0 }),
        json!({ "rope_type": 1, "bits": "4" }),
    ]
}
