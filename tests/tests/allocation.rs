//! A hostile file cannot ask for memory: what opening it allocates is bounded by the bytes it has.
//!
//! Counted are all bytes ever asked for, freed or not, by this thread. They stay below [`PER_BYTE`] times
//! the folder's size plus [`CONSTANT`]. Numbers of a header or config are never sizes of allocations;
//! the factor is what JSON costs: an array `[0,0,...` holds a value in two bytes that takes 32 (24 of
//! them used) in memory, the vector that grows to hold it asks for twice that in all, and what is parsed
//! is copied at most once more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use assay_reference::checkpoint::{Checkpoint, Config, Files, Shard, write};
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

const PER_BYTE: usize = 128;
/// Paths, folder listings, error texts, vectors with an entry for each of up to 4096 layers.
const CONSTANT: usize = 1 << 18;

struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // A thread that ends has no counter any more.
    let _ = ASKED.try_with(|asked| asked.set(asked.get().saturating_add(bytes)));
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by nature: this one passes on to the system's"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a call asks for.
fn asked<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = ASKED.get();
    let out = call();
    (out, ASKED.get() - before)
}

/// Bytes of the files in a folder.
fn size(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).expect("a folder");
    entries.map(|e| e.expect("an entry").metadata().expect("a file").len() as usize).sum()
}

#[track_caller]
fn bounded<T>(what: &str, bytes: usize, call: impl FnOnce() -> T) -> T {
    let (out, asked) = asked(call);
    let limit = PER_BYTE * bytes + CONSTANT;
    assert!(asked <= limit, "{what}: {asked} bytes asked for by a file of {bytes}");
    out
}

fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn the_counter_counts() {
    let (v, n) = asked(|| vec![0u8; 12345]);
    assert_eq!((v.len(), n), (12345, 12345));
}

#[test]
fn hostile_headers_ask_for_no_more_than_their_bytes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.safetensors");
    let max = u64::MAX;
    let entry = |name: &str, shape: &str, end: u64| {
        format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}")
    };
    let many =
        |n: usize| (0..n).map(|i| entry(&format!("{i}"), "[0]", 0)).collect::<Vec<_>>().join(",");
    let mut files: Vec<(&str, Vec<u8>)> = vec![
        ("a huge tensor", raw(&format!("{{{}}}", entry("t", "[1099511627776]", 1 << 40)), 0)),
        ("a huge shape", raw(&format!("{{{}}}", entry("t", &format!("[{max},{max}]"), max)), 0)),
        (
            "an empty tensor of huge shape",
            raw(&format!("{{{}}}", entry("t", &format!("[0,{max}]"), 0)), 0),
        ),
        (
            "many dimensions",
            raw(&format!("{{\"t\":{{\"dtype\":\"U8\",\"shape\":[{}1]", "1,".repeat(100_000)), 0),
        ),
        ("many tensors", raw(&format!("{{{}}}", many(3000)), 0)),
        (
            "many tensors, the last one wrong",
            raw(&format!("{{{},{}}}", many(3000), entry("x", "[1]", 2)), 2),
        ),
        ("deep", raw(&format!("{{\"t\":{}", "[".repeat(100_000)), 0)),
        ("a long name", raw(&format!("{{{}}}", entry(&"n".repeat(100_000), "[1]", 9)), 1)),
        (
            "a long name of controls",
            raw(&format!("{{{}}}", entry(&"\\u0001".repeat(20_000), "[1]", 1)), 1),
        ),
        (
            "a long dtype",
            raw(
                &format!(
                    "{{\"t\":{{\"dtype\":\"{}\",\"shape\":[],\"data_offsets\":[0,1]}}}}",
                    "F".repeat(100_000)
                ),
                1,
            ),
        ),
        (
            "much metadata",
            raw(
                &format!(
                    "{{\"__metadata__\":{{{}\"x\":\"\"}}}}",
                    (0..5000).map(|i| format!("\"{i}\":\"\",")).collect::<String>()
                ),
                0,
            ),
        ),
        ("unknown fields", raw(&format!("{{\"t\":{{\"{}\":1}}}}", "u".repeat(100_000)), 0)),
    ];
    for lie in [1 << 20, 99_999_999, 100_000_001, 1 << 40, u64::MAX] {
        let mut bytes = raw("{}", 0);
        bytes[..8].copy_from_slice(&u64::to_le_bytes(lie));
        files.push(("a header length that lies", bytes));
    }
    for (what, bytes) in files {
        std::fs::write(&path, &bytes).expect("writable");
        let outcome = bounded(what, bytes.len(), || Shard::open(&path).map(|s| s.tensors().len()));
        let valid = ["many tensors", "much metadata"].contains(&what);
        assert_eq!(outcome.is_ok(), valid, "{what}: {outcome:?}");
    }
}

/// A tensor of 64 MB costs its entry in the header: it is mapped, and its values are not touched.
#[test]
fn tensors_are_not_copied() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.safetensors");
    let header = "{\"t\":{\"dtype\":\"U8\",\"shape\":[67108864],\"data_offsets\":[0,67108864]}}";
    std::fs::write(&path, raw(header, 0)).expect("writable");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
    file.set_len(8 + header.len() as u64 + (64 << 20)).expect("sparse");
    let shard =
        bounded("a large tensor", header.len(), || Shard::open(&path)).expect("a valid file");
    assert_eq!(shard.data_bytes(), 64 << 20);
}

#[test]
fn hostile_json_asks_for_no_more_than_its_bytes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let texts = [
        format!("{{\"a\":[{}0]}}", "0,".repeat(50_000)),
        format!("{{\"a\":[{}[]]}}", "[],".repeat(50_000)),
        format!("{{\"a\":[{}{{}}]}}", "{},".repeat(30_000)),
        format!("{{\"a\":[{}{{}}]}}", "{\"\":0},".repeat(20_000)),
        format!("{{{}\"z\":0}}", (0..20_000).map(|i| format!("\"{i}\":0,")).collect::<String>()),
        format!("{{\"a\":\"{}\"}}", "\\u0001".repeat(20_000)),
        format!("{{\"architectures\":[{}\"x\"]}}", "\"\",".repeat(50_000)),
        format!(
            "{{\"weight_map\":{{{}\"z\":\"z.safetensors\"}}}}",
            (0..20_000).map(|i| format!("\"{i}\":\"{i}.safetensors\",")).collect::<String>()
        ),
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
    ];
    for text in &texts {
        let start: String = text.chars().take(40).collect();
        std::fs::write(dir.path().join("config.json"), text).expect("writable");
        assert!(bounded(&start, text.len(), || Config::open(dir.path())).is_err());
        std::fs::remove_file(dir.path().join("config.json")).expect("there");
        std::fs::write(dir.path().join("model.safetensors.index.json"), text).expect("writable");
        assert!(bounded(&start, text.len(), || Files::open(dir.path())).is_err());
    }
}

/// A Qwen3 of one tiny layer, whose config asks for more.
#[test]
fn hostile_configs_ask_for_no_more_than_the_folders_bytes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 2,
        "hidden_act": "silu", "hidden_size": 2, "intermediate_size": 2,
        "max_position_embeddings": 8, "num_attention_heads": 1, "num_hidden_layers": 1,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 4,
        "num_experts": 1, "num_experts_per_tok": 1, "norm_topk_prob": true,
        "moe_intermediate_size": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "eos_token_id": 1,
    });
    let mut tensors = BTreeMap::new();
    let mut put = |name: &str, shape: &[usize]| {
        let n = shape.iter().product();
        tensors.insert(name.to_string(), Tensor::from_f64(Dtype::Bf16, shape, &vec![1.0; n]));
    };
    put("model.embed_tokens.weight", &[4, 2]);
    put("model.norm.weight", &[2]);
    for norm in
        ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
    {
        put(&format!("model.layers.0.{norm}.weight"), &[2]);
    }
    for m in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        put(&format!("model.layers.0.self_attn.{m}.weight"), &[2, 2]);
    }
    put("model.layers.0.mlp.gate.weight", &[1, 2]);
    for m in ["gate_proj", "up_proj", "down_proj"] {
        put(&format!("model.layers.0.mlp.experts.0.{m}.weight"), &[2, 2]);
    }
    write(&dir.path().join("model.safetensors"), &tensors, &BTreeMap::new()).expect("writable");
    let open = |config: &Value| {
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("writable");
        bounded(&config.to_string(), size(dir.path()), || Checkpoint::open(dir.path()).map(|_| ()))
    };
    open(&config).expect("a valid checkpoint");
    for edits in [
        json!({ "num_hidden_layers": 4096 }),
        json!({ "num_experts": 4096 }),
        json!({ "num_hidden_layers": 4096, "num_experts": 4096 }),
        json!({ "num_hidden_layers": 4096, "decoder_sparse_step": 4096 }),
        json!({ "num_hidden_layers": 30, "num_experts": 3 }),
        json!({ "num_hidden_layers": 2, "num_experts": 5 }),
        json!({ "vocab_size": 1 << 24, "hidden_size": 1 << 20, "intermediate_size": 1 << 20 }),
        json!({ "num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 4096 }),
        json!({ "max_position_embeddings": 1 << 30 }),
    ] {
        let mut hostile = config.clone();
        for (field, value) in edits.as_object().expect("an object") {
            hostile[field] = value.clone();
        }
        let outcome = open(&hostile);
        let fits = hostile["max_position_embeddings"] != 8;
        match outcome {
            Ok(()) => assert!(fits, "{edits} was accepted"),
            Err(e) => {
                let text = e.to_string();
                let fields = edits.as_object().expect("an object");
                let named = fields.keys().any(|f| text.contains(f)) || text.contains("tensor `");
                assert!(!fits && named, "{edits}: {text}");
            }
        }
    }
}
