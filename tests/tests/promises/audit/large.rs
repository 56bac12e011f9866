//! Only headers are read: a sparse checkpoint of Qwen3-32B's shape, 65 GB, takes seconds and little memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use assay_tests::cli;
use serde_json::{Map, Value, json};

const HIDDEN: u64 = 5120;
const LAYERS: u64 = 64;
const VOCAB: u64 = 151_936;

/// Writes a shard with a header and no data; gives the tensors' bytes.
fn shard(path: &Path, tensors: &[(String, Vec<u64>)]) -> u64 {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}),
        );
    }
    let text = Value::Object(header).to_string();
    let mut file = File::create(path).expect("a shard");
    file.write_all(&(text.len() as u64).to_le_bytes()).expect("written");
    file.write_all(text.as_bytes()).expect("written");
    file.set_len(8 + text.len() as u64 + end).expect("a sparse file");
    end
}

fn layer(i: u64) -> Vec<(String, Vec<u64>)> {
    let (q, kv, mlp) = (64 * 128, 8 * 128, 25_600);
    [
        ("input_layernorm.weight", vec![HIDDEN]),
        ("self_attn.q_proj.weight", vec![q, HIDDEN]),
        ("self_attn.k_proj.weight", vec![kv, HIDDEN]),
        ("self_attn.v_proj.weight", vec![kv, HIDDEN]),
        ("self_attn.o_proj.weight", vec![HIDDEN, q]),
        ("self_attn.q_norm.weight", vec![128]),
        ("self_attn.k_norm.weight", vec![128]),
        ("post_attention_layernorm.weight", vec![HIDDEN]),
        ("mlp.gate_proj.weight", vec![mlp, HIDDEN]),
        ("mlp.up_proj.weight", vec![mlp, HIDDEN]),
        ("mlp.down_proj.weight", vec![HIDDEN, mlp]),
    ]
    .into_iter()
    .map(|(name, shape)| (format!("model.layers.{i}.{name}"), shape))
    .collect()
}

/// The checkpoint; gives its size.
fn qwen3_32b(dir: &Path) -> u64 {
    fs::create_dir(dir).expect("a folder");
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN,
        "intermediate_size": 25_600, "num_hidden_layers": LAYERS, "num_attention_heads": 64, "num_key_value_heads": 8,
        "vocab_size": VOCAB, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
        "tie_word_embeddings": false, "max_position_embeddings": 40_960, "torch_dtype": "bfloat16", "eos_token_id": 151_645,
    });
    fs::write(dir.join("config.json"), config.to_string()).expect("written");
    let mut places = Map::new();
    let mut total = 0;
    let shards = 17;
    for s in 0..shards {
        let tensors = match s {
            16 => vec![
                ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
                ("model.norm.weight".to_owned(), vec![HIDDEN]),
                ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
            ],
            s => (4 * s..4 * s + 4).flat_map(layer).collect(),
        };
        let name = format!("model-{:05}-of-{shards:05}.safetensors", s + 1);
        places.extend(tensors.iter().map(|(t, _)| (t.clone(), json!(name))));
        total += shard(&dir.join(&name), &tensors);
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": places});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).expect("written");
    total
}

/// The highest memory of a process so far, in KiB, while it runs.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn sixty_five_gigabytes_in_seconds_and_below_200_megabytes() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("Qwen3-32B");
    let total = qwen3_32b(&dir);
    assert!(total > 60_000_000_000, "{total}");
    let binary = cli::binary();
    let start = Instant::now();
    let written = place.path().join("report.json");
    let mut child = Command::new(binary)
        .arg("audit")
        .arg(&dir)
        .arg("--json")
        .arg(&written)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("assay starts");
    // The kernel keeps the highest; what the process took after the last look is not seen.
    let mut most = 0;
    let status = loop {
        most = most.max(peak(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("its state") {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(status.code(), Some(1));
    let report = fs::read(&written).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    assert!(most > 0 && most < 200 * 1024, "{most} KiB");
    let findings = report["findings"].as_array().expect("findings");
    let mut codes: Vec<&str> = findings.iter().filter_map(|f| f["code"].as_str()).collect();
    codes.dedup();
    // The files were reserved and never written; the config lost its head_dim, as somebody's did.
    assert_eq!(codes, ["A40A", "A430", "A431"], "{findings:#?}");
    let text = report.to_string();
    for part in ["5120 / 64 = 80", "8192 rows = 64 heads x 128"] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(report["parameters"], 32_762_123_264u64);
    eprintln!("{total} bytes: {seconds:.2} s, {most} KiB");
}
