//! `assay run`: chats, sampling, log probabilities, batches, selected probes, and what it refuses.

use std::ffi::OsString;
use std::path::Path;

use assay_reference::arith::math::{exp, ln};
use assay_reference::trace::Trace;
use assay_reference::{Dtype, Tensor};
use assay_tests::cli::{self, Run};
use assay_tests::damage::{Copy, entries};
use assay_tests::golden;
use serde_json::{Value, json};

fn line(model: &Path, args: &[&str]) -> Vec<OsString> {
    let start = [OsString::from("run"), model.into()];
    start.into_iter().chain(args.iter().map(OsString::from)).collect()
}

fn trained() -> std::path::PathBuf {
    golden::path("checkpoints/trained-qwen3")
}

/// A run of the trained model that must succeed.
#[track_caller]
fn run(args: &[&str]) -> Run {
    let run = cli::assay(line(&trained(), args));
    assert_eq!(run.code, 0, "{run:#?}");
    run
}

/// Its JSON report.
#[track_caller]
fn report(args: &[&str]) -> Value {
    let run = run(&[args, &["--json", "-"]].concat());
    let report: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON on stdout");
    assert_eq!((&report["assay_report"], &report["command"]), (&json!(1), &json!("run")));
    report
}

#[track_caller]
fn refused(args: &[&str], named: &[&str]) {
    cli::refused(line(&trained(), args), named);
}

/// The golden prompts of conversations were written out by hand in the corpus's script.
#[test]
fn a_chat_is_answered_as_transformers_answers() {
    let golden = golden::json("generations.json");
    let all = golden["generations"].as_array().expect("an array");
    let prompt = "<|im_start|>user\n1+1等于几？<|im_end|>\n<|im_start|>assistant\n";
    let expected = all.iter().find(|g| g["prompt"] == prompt).expect("a golden chat");
    let out = run(&["--chat", "1+1等于几？"]);
    assert_eq!(out.stdout.trim_end(), expected["continuation"].as_str().expect("text"));

    let printed = run(&["--chat", "1+1等于几？", "--print-prompt"]);
    let ids: Vec<String> =
        expected["prompt_ids"].as_array().expect("ids").iter().map(Value::to_string).collect();
    assert_eq!(printed.stdout, format!("{prompt}[{} tokens: {}]\n", ids.len(), ids.join(",")));

    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("chat.json");
    let messages = json!({ "messages": [{ "role": "user", "content": "1+1等于几？" }] });
    std::fs::write(&file, messages.to_string()).expect("a file");
    let file = file.to_str().expect("UTF-8");
    assert_eq!(run(&["--messages", file]).stdout, out.stdout);
}

#[test]
fn a_system_message_and_template_arguments_reach_the_template() {
    let copy = Copy::of("checkpoints/trained-qwen3");
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}\
                    {{ enable_thinking }}|{{ n + 1 }}|{{ s }}|{{ tools|length }}|{{ eos_token }}";
    std::fs::write(copy.file("chat_template.jinja"), template).expect("a file");
    std::fs::write(copy.file("tools.json"), r#"[{"a": 1}, {"b": 2}]"#).expect("a file");
    let tools = copy.file("tools.json");
    let args = [
        "--chat",
        "hi",
        "--system",
        "be",
        "--no-thinking",
        "--template-arg",
        "n=1",
        "--template-arg",
        "s=x=y",
        "--tools",
        tools.to_str().expect("UTF-8"),
        "--print-prompt",
    ];
    let out = cli::assay(line(copy.path(), &args));
    assert_eq!(out.code, 0, "{out:#?}");
    assert!(out.stdout.starts_with("system:be;user:hi;False|2|x=y|2|<|im_end|>\n["), "{out:#?}");
    // tokenizer_config.json holds another template.
    assert!(out.stderr.contains("warning: ") && out.stderr.contains("different chat templates"));
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let sample = |seed: &str, more: &[&str]| {
        let args = ["--ids", "5,17,250", "--generate", "12", "--sample", "--temperature", "3"];
        run(&[&args[..], &["--seed", seed], more].concat())
    };
    let (a, b, c) = (sample("7", &[]), sample("7", &[]), sample("8", &[]));
    assert_eq!(a.stdout, b.stdout);
    assert_ne!(a.stdout, c.stdout);
    assert!(a.stderr.contains("temperature 3, top-k 50") && a.stderr.contains("seed 7"), "{a:#?}");
    // Keeping one token, or a temperature of 0, is greedy decoding, whatever the seed.
    let greedy = run(&["--ids", "5,17,250", "--generate", "12"]).stdout;
    assert_eq!(sample("7", &["--top-k", "1"]).stdout, greedy);
    assert_eq!(sample("8", &["--top-p", "0"]).stdout, greedy);
    assert_eq!(sample("9", &["--min-p", "1"]).stdout, greedy);
}

#[test]
fn sampling_takes_the_generation_configs_settings() {
    let copy = Copy::of("checkpoints/trained-qwen3");
    copy.json("generation_config.json", |m| {
        m.insert("temperature".into(), json!(0.6));
        m.insert("top_k".into(), json!(20));
        m.insert("top_p".into(), json!(0.95));
        m.insert("max_new_tokens".into(), json!(3));
    });
    let args = ["--ids", "5,17", "--sample", "--top-p", "0.5", "--json", "-"];
    let out = cli::assay(line(copy.path(), &args));
    assert_eq!(out.code, 0, "{out:#?}");
    let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let expected = json!({
        "greedy": false, "temperature": 0.6, "top_k": 20, "top_p": 0.5, "min_p": 0.0,
        "repetition_penalty": 1.0,
    });
    assert_eq!(report["sampling"], expected);
    assert_eq!(report["seed"], 0);
    assert!(report["runs"][0]["ids"].as_array().expect("ids").len() <= 3);
    // Without --sample it is greedy, and the file's settings are not used.
    let plain = cli::assay(line(copy.path(), &["--ids", "5,17", "--json", "-"]));
    let report: Value = serde_json::from_str(&plain.stdout).expect("JSON");
    assert_eq!((&report["sampling"]["greedy"], &report["seed"]), (&json!(true), &Value::Null));

    copy.json("generation_config.json", |m| drop(m.insert("top_p".into(), json!(1.5))));
    cli::refused(
        line(copy.path(), &["--ids", "5", "--sample"]),
        &["generation_config.json", "top_p", "1.5"],
    );
}

/// transformers' float64 logits of the last of 12 tokens, and ours in f64 (within 1e-11 of their
/// scale, see golden/README.md): log probabilities inherit twice that.
#[test]
fn log_probabilities_are_those_of_transformers_logits() {
    let trace = golden::trace("trained-qwen3/f64");
    let tokens: Vec<String> = trace.manifest().tokens.iter().map(u32::to_string).collect();
    let logits = trace.get("logits").expect("logits").to_f64();
    let logits = &logits[logits.len() - 1024..];
    let scale = logits.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
    let sum: f64 = logits.iter().map(|x| exp(x - max)).sum();
    let expected: Vec<f64> = logits.iter().map(|x| x - max - ln(sum)).collect();

    let ids = tokens.join(",");
    let report =
        report(&["--ids", &ids, "--generate", "1", "--basis", "f64", "--logprobs", "1024"]);
    let step = &report["runs"][0]["logprobs"][0];
    let best = step["best"].as_array().expect("the most likely tokens");
    assert_eq!(best.len(), 1024);
    let mut total = 0.0;
    let mut before = 0.0;
    for b in best {
        let (id, ours) =
            (b["token"].as_u64().expect("an id"), b["logprob"].as_f64().expect("ln p"));
        let theirs = expected[id as usize];
        assert!((ours - theirs).abs() <= 2e-11 * scale, "{id}: {ours} against {theirs}");
        assert!(ours <= before, "descending");
        (before, total) = (ours, total + exp(ours));
    }
    assert!((total - 1.0).abs() < 1e-12, "{total}");
    assert_eq!((&step["token"], &step["logprob"]), (&best[0]["token"], &best[0]["logprob"]));
}

#[test]
fn log_probabilities_are_tabled() {
    let out = run(&["--prompt", "7+8=", "--logprobs", "2"]);
    let lines: Vec<&str> = out.stdout.lines().collect();
    assert_eq!(lines[0], "15");
    assert!(lines[1].starts_with("step  token  logprob  text"), "{out:#?}");
    // Two tokens and the end token.
    assert_eq!(lines.len(), 5, "{out:#?}");
    assert!(lines[2].contains("\"1\"") && lines[4].contains("<|endoftext|>"), "{out:#?}");
}

#[test]
fn a_prompt_in_chunks_and_in_a_batch_has_the_same_bits() {
    let args = ["--generate", "4", "--logprobs", "3"];
    let both = report(&[&args[..], &["--prompt", "Before sunrise", "--prompt", "7+8="]].concat());
    assert_eq!(both["runs"].as_array().expect("runs").len(), 2);
    for (i, prompt) in ["Before sunrise", "7+8="].iter().enumerate() {
        for more in [&[][..], &["--chunk", "1"], &["--chunk", "2"]] {
            let alone = report(&[&args[..], &["--prompt", prompt], more].concat());
            assert_eq!(alone["runs"][0], both["runs"][i], "{prompt} {more:?}");
        }
    }
}

#[test]
fn prompts_are_read_from_files() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let lines = write("prompts.txt", "7+8=\n\n6*9=\n");
    let out = run(&["--prompts", &lines]);
    assert_eq!(out.stdout, "--- prompt 0 ---\n15\n--- prompt 1 ---\n54\n");
    let json = "\"7+8=\"\n[5, 17]\n{\"prompt\": \"6*9=\"}\n{\"ids\": [1]}\n\
                [{\"role\": \"user\", \"content\": \"x\"}]\n{\"messages\": [{\"role\": \"a\"}]}\n";
    let mixed = write("prompts.jsonl", json);
    let out = cli::assay(line(&trained(), &["--prompts", &mixed, "--print-prompt"]));
    // The last message has no content, which the template adds to a string.
    assert_eq!((out.code, out.stdout.as_str()), (2, ""), "{out:#?}");
    assert!(out.stderr.contains("prompts.jsonl:6") && out.stderr.contains("chat template"));
    let mixed = write("prompts.jsonl", json.rsplit_once("{\"mess").expect("six lines").0);
    let report = report(&["--prompts", &mixed, "--generate", "2"]);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 5);
    assert_eq!((&runs[0]["text"], &runs[2]["text"]), (&json!("15"), &json!("54")));
    assert_eq!((&runs[1]["prompt_ids"], &runs[1]["prompt"]), (&json!([5, 17]), &Value::Null));
    assert_eq!(runs[4]["prompt"], "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");

    let bad = write("bad.jsonl", "\"x\"\n{\"text\": 1}\n");
    refused(&["--prompts", &bad], &["bad.jsonl:2", "`messages`"]);
    let empty = write("empty.txt", "\n \n");
    refused(&["--prompts", &empty], &["empty.txt", "no prompt"]);
    refused(&["--prompts", "/no/such/file"], &["/no/such/file"]);
}

#[test]
fn a_trace_holds_the_probes_that_were_asked_for() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let target = dir.path().join("t");
    let to = target.to_str().expect("UTF-8");
    let probes = ["--probes", "layers.*.attention", "--probes", "logit?"];
    run(&[&["--ids", "5,17,250", "--generate", "2", "--trace", to][..], &probes].concat());
    let trace = Trace::open(&target).expect("a whole trace");
    let names: Vec<&str> = trace.names().collect();
    assert_eq!(names, ["layers.0.attention", "layers.1.attention", "logits"]);
    assert_eq!(trace.manifest().segments, [(0, 3), (3, 4)]);
    assert_eq!(trace.get("logits").expect("logits").shape(), [4, 1024]);

    // A batch: a folder each.
    let target = dir.path().join("batch");
    let to = target.to_str().expect("UTF-8");
    let batch = ["--prompt", "7+8=", "--prompt", "6*9=", "--generate", "1", "--trace", to];
    run(&[&batch[..], &["--probes", "final_norm"]].concat());
    for i in ["0", "1"] {
        let trace = Trace::open(&target.join(i)).expect("a whole trace");
        assert_eq!(trace.names().collect::<Vec<&str>>(), ["final_norm"]);
        assert_eq!(trace.manifest().tokens.len(), 4);
    }
    assert_eq!(entries(&target).len(), 2);

    let other = dir.path().join("none");
    let to = other.to_str().expect("UTF-8");
    let ids = ["--ids", "5", "--trace", to];
    refused(&[&ids[..], &["--probes", "layers.*.mlp"]].concat(), &["layers.*.mlp", "final_norm"]);
    refused(&[&ids[..], &["--probes", "a["]].concat(), &["a["]);
    assert!(!other.exists());
}

/// What a service shows as `!!!!`: the text means nothing, and the exit code says so.
#[test]
fn broken_logits_are_a_finding() {
    for (weight, word, text) in [(0.0, "all equal", "!!!\n"), (3e38, "NaN", "!!!\n")] {
        let copy = Copy::of("checkpoints/trained-qwen3");
        copy.tensors("model.safetensors", |t| {
            let norm = t.get_mut("model.norm.weight").expect("the final norm");
            *norm = Tensor::from_f64(Dtype::Bf16, norm.shape(), &vec![weight; norm.shape()[0]]);
        });
        let out = cli::assay(line(copy.path(), &["--ids", "5,17", "--generate", "3"]));
        assert_eq!((out.code, out.stdout.as_str()), (1, text), "{out:#?}");
        let finding = format!("finding: the logits are {word} at step 0 and 2 more");
        assert!(out.stderr.contains(&finding), "{out:#?}");
        let args = ["--ids", "5,17", "--generate", "0", "--json", "-"];
        let out = cli::assay(line(copy.path(), &args));
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        assert_eq!((out.code, &report["result"]), (1, &json!("findings")));
        assert!(report["runs"][0]["broken"][0]["logits"].as_str().expect("text").contains(word));
    }
}

#[test]
fn settings_that_make_no_sense() {
    let sample = |more: &[&str], named: &[&str]| {
        refused(&[&["--ids", "5", "--sample"][..], more].concat(), named);
    };
    sample(&["--temperature", "-1"], &["temperature", "-1"]);
    sample(&["--temperature", "nan"], &["temperature"]);
    sample(&["--top-p", "1.1"], &["top_p", "1.1"]);
    sample(&["--min-p", "-0.5"], &["min_p"]);
    refused(&["--ids", "5", "--repetition-penalty", "0"], &["repetition_penalty"]);
    refused(&["--ids", "5", "--logprobs", "1", "--generate", "0"], &["--logprobs"]);
    refused(&["--ids", "5", "--no-thinking"], &["--no-thinking", "--chat"]);
    refused(&["--chat", "x", "--template-arg", "novalue"], &["novalue", "NAME=VALUE"]);
    refused(&["--chat", "x", "--template-arg", "messages=[]"], &["messages"]);
    refused(&["--chat", "x", "--template", "rag"], &["rag", "default"]);
    // clap's own refusals take several lines.
    for args in [
        &["--ids", "5", "--temperature", "1"][..],
        &["--ids", "5", "--prompt", "x"],
        &["--ids", "5", "--probes", "logits"],
        &["--ids", "5", "--chunk", "0"],
    ] {
        let out = cli::assay(line(&trained(), args));
        assert_eq!((out.code, out.stdout.as_str()), (2, ""), "{args:?}: {out:#?}");
    }
}

#[test]
fn conversations_that_cannot_be_rendered() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    refused(&["--messages", &write("a.json", "[{]")], &["a.json", "JSON"]);
    refused(&["--messages", &write("b.json", "[]")], &["b.json", "no message"]);
    refused(&["--messages", &write("c.json", "[{\"content\": 1}]")], &["c.json", "message 0"]);
    refused(&["--messages", "/no/such.json"], &["/no/such.json"]);
    refused(&["--chat", "x", "--tools", &write("t.json", "{}")], &["t.json", "array"]);

    let copy = Copy::of("checkpoints/trained-qwen3");
    copy.json("tokenizer_config.json", |m| drop(m.remove("chat_template")));
    cli::refused(line(copy.path(), &["--chat", "x"]), &["chat_template.jinja", "no chat template"]);
    std::fs::write(copy.file("chat_template.jinja"), "{{ raise_exception('no thanks') }}").unwrap();
    cli::refused(line(copy.path(), &["--chat", "x"]), &["chat_template.jinja", "no thanks"]);
    std::fs::write(copy.file("chat_template.jinja"), "{% for %}").unwrap();
    cli::refused(line(copy.path(), &["--chat", "x"]), &["not a valid jinja2 template"]);
    std::fs::write(copy.file("chat_template.jinja"), "{% if false %}x{% endif %}").unwrap();
    cli::refused(line(copy.path(), &["--chat", "x"]), &["prompt is empty"]);
    std::fs::remove_file(copy.file("tokenizer.json")).unwrap();
    cli::refused(line(copy.path(), &["--chat", "x"]), &["tokenizer.json"]);
}

/// transformers applies some settings of generation_config.json to greedy text too.
#[test]
fn what_greedy_decoding_leaves_out_is_said() {
    let copy = Copy::of("checkpoints/trained-qwen3");
    copy.bytes("generation_config.json", |bytes| {
        let mut all: Value = serde_json::from_slice(bytes).expect("golden JSON");
        all["repetition_penalty"] = json!(1.3);
        all["suppress_tokens"] = json!([88]);
        *bytes = all.to_string().into_bytes();
    });
    let args = ["--ids", "5,6,5", "--generate", "2"];
    let out = cli::assay(line(copy.path(), &args));
    assert_eq!(out.code, 0, "{out:#?}");
    assert!(out.stderr.contains("sets suppress_tokens to [88]"), "{out:#?}");
    assert!(out.stderr.contains("--repetition-penalty"), "{out:#?}");
    let given = [&args[..], &["--repetition-penalty", "1.3"]].concat();
    let out = cli::assay(line(copy.path(), &given));
    assert!(!out.stderr.contains("repetition_penalty to"), "{out:#?}");
}

/// A head has more rows than there are tokens; a model that picks one of those is wrong, and says so
/// without losing its report.
#[test]
fn a_token_that_nobody_can_read_is_a_finding() {
    let copy = Copy::of("checkpoints/trained-qwen3");
    copy.bytes("tokenizer.json", |bytes| {
        let mut all: Value = serde_json::from_slice(bytes).expect("golden JSON");
        let vocab = all["model"]["vocab"].as_object_mut().expect("a vocabulary");
        vocab.retain(|_, id| id != 20);
        *bytes = all.to_string().into_bytes();
    });
    let args = ["--ids", "22,10,23,28", "--generate", "4", "--json", "-"];
    let out = cli::assay(line(copy.path(), &args));
    assert_eq!(out.code, 1, "{out:#?}");
    assert!(out.stderr.contains("finding: the model chose token 20"), "{out:#?}");
    let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
    assert_eq!(
        (&report["result"], &report["runs"][0]["undecodable"]),
        (&json!("findings"), &json!([20]))
    );
}
