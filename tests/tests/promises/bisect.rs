//! `assay bisect`: two faults at once are both named, clean runs convict nothing, constants are estimated, and the
//! guilty switches of an engine are found in few restarts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::rope::Angle;
use assay_reference::qwen::variant::faults;
use assay_reference::qwen::{Forward, ForwardFault, Node, Preset};
use assay_reference::trace::{self, Manifest, Trace};
use assay_reference::{Dtype, Tensor};
use assay_tests::damage::Copy;
use assay_tests::{cli, golden};
use assay_verify::bisect::{Bisect, Given, Outcome, bisect};
use serde_json::Value;

mod cases;
mod server;
mod switches;

/// The report on a golden checkpoint or a damaged copy of one.
#[track_caller]
fn of(model: &Path, trace: Option<&Trace>) -> Bisect {
    let given = Given { trace, ..Given::default() };
    bisect(model, &given, &mut |_, _, _| {}).expect("a report")
}

fn found(report: &Bisect) -> Vec<&str> {
    report.evidence().map(|e| e.name.as_str()).collect()
}

fn word(report: &Bisect, suspect: &str) -> &'static str {
    let row = report.suspects.iter().find(|r| r.suspect == suspect);
    row.unwrap_or_else(|| panic!("no suspect `{suspect}`")).outcome.word()
}

#[track_caller]
fn clean(checkpoint: &str, trace: &str) {
    let (model, trace) = (golden::path("checkpoints").join(checkpoint), golden::trace(trace));
    let report = of(&model, Some(&trace));
    assert_eq!(found(&report), [""; 0], "{checkpoint}: {report:#?}");
    assert!(report.headline.contains("nothing convicted"), "{}", report.headline);
    assert!(report.story.contains("not cleared: "), "{}", report.story);
    for suspect in [
        "files",
        "config against the tensors",
        "logits' state",
        "each op of the engine",
        "the forward as a whole",
    ] {
        assert_eq!(word(&report, suspect), "cleared", "{checkpoint}: {suspect}");
    }
    // Without a server, kernels or a prompt nothing is known of these.
    for suspect in [
        "dispatch boundaries",
        "kernels on the model's own weights",
        "prompt as the service renders it",
    ] {
        assert_eq!(word(&report, suspect), "not testable", "{checkpoint}: {suspect}");
    }
}

#[test]
fn a_right_recording_of_a_sound_checkpoint_convicts_nothing() {
    clean("gqa7-qwen2", "gqa7-qwen2/bf16");
}

#[test]
#[ignore = "a minute: six checkpoints; cargo test -p assay-tests bisect -- --ignored"]
fn right_recordings_of_six_checkpoints_convict_nothing() {
    for name in
        ["tiny-qwen2", "tiny-qwen3", "trained-qwen3", "gptq-qwen3", "yarn-qwen3", "moe-qwen3"]
    {
        clean(name, &format!("{name}/bf16"));
    }
}

/// The altered config of one of the incidents behind assay: another class, and no head_dim.
fn head_size_80(model: &Copy) {
    model.json("config.json", |c| {
        c.insert("architectures".into(), Value::from(vec!["Qwen2ForCausalLM"]));
        c.insert("model_type".into(), "qwen2".into());
        c.remove("head_dim");
    });
}

#[test]
fn a_damaged_config_and_a_wrong_op_are_both_named_and_the_page_says_so_first() {
    let model = Copy::of("checkpoints/tiny-qwen3");
    head_size_80(&model);
    let dir = tempfile::tempdir().expect("a folder");
    let (html, json) = (dir.path().join("r.html"), dir.path().join("r.json"));
    let trace = golden::path("traces/faults/fault-12");
    let before = assay_tests::damage::entries(model.path());
    let args = ["bisect".as_ref(), model.path().as_os_str(), "--trace".as_ref(), trace.as_os_str()];
    let files = ["--html".as_ref(), html.as_os_str(), "--json".as_ref(), json.as_os_str()];
    let run = cli::assay(args.into_iter().chain(files));
    assert_eq!(run.code, 1, "{run:#?}");
    assert_eq!(assay_tests::damage::entries(model.path()), before, "nothing is written there");
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a report")).expect("JSON");
    let text = |key: &str| report[key].as_str().expect("a text").to_string();
    for name in ["config.architecture", "config.head_dim", "rms_norm.half_lanes"] {
        for (place, text) in
            [("headline", text("headline")), ("story", text("story")), ("text", run.stdout.clone())]
        {
            assert!(text.contains(name), "{name} is not in the {place}: {text}");
        }
    }
    let mended = report["mended"].to_string();
    assert!(mended.contains("head_dim 128"), "{mended}");
    let page = fs::read_to_string(&html).expect("a page");
    let (first, matrix) = page.split_once("Every suspect").expect("a matrix");
    for part in ["What is wrong", "rms_norm.half_lanes", "config.head_dim", "What to do"] {
        assert!(first.contains(part), "{part} is not on the first screen");
    }
    assert!(
        matrix.contains("layers.1.post_norm")
            && !page.contains("http://")
            && !page.contains("src=")
    );
}

/// What a bisect says of one of the faulty recordings, and that it says nothing else.
#[track_caller]
fn ends_with_its_name(fault: &Value) {
    let name = |key: &str| fault[key].as_str().expect("a name");
    let model = golden::path("checkpoints").join(name("checkpoint"));
    let trace = golden::trace(&format!("faults/{}", name("name")));
    let report = of(&model, Some(&trace));
    let all = found(&report);
    assert_eq!(all, [name("expected_fault")], "{}: {report:#?}", name("name"));
}

fn recordings(wanted: &[&str]) {
    let all = golden::json("faults.json");
    let all = all["faults"].as_array().expect("faults");
    let of =
        |f: &&Value| wanted.is_empty() || wanted.contains(&f["name"].as_str().expect("a name"));
    all.iter().filter(of).for_each(ends_with_its_name);
}

#[test]
fn a_faulty_recording_ends_with_the_name_of_its_fault_alone() {
    recordings(&["fault-08"]);
}

#[test]
#[ignore = "minutes: all sixteen; cargo test -p assay-tests bisect -- --ignored"]
fn every_faulty_recording_ends_with_the_name_of_its_fault_alone() {
    recordings(&[]);
}

type Keep = fn(&str) -> bool;

fn all(_: &str) -> bool {
    true
}

fn logits(probe: &str) -> bool {
    probe == "logits"
}

/// What a forward with these faults computes of a few tokens, as an engine would record it. `keep`: which probes.
fn recorded(
    checkpoint: &Checkpoint,
    wrong: Option<&ForwardFault>,
    keep: Keep,
    dir: &Path,
) -> Trace {
    let tokens: Vec<u32> = (0..16).map(|i| (i * 37 + 11) % 250).collect();
    let preset = Preset::named("f32").expect("a preset");
    let config = checkpoint.config();
    let mut wiring = assay_reference::qwen::Wiring::new(config, Angle::F32);
    if let Some(fault) = wrong {
        wiring = fault.wiring(config, Angle::F32);
    }
    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    let mut see = |node: &Node, x: &[f32]| {
        if keep(&node.probe) {
            let data: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let shape = node.view.shape(tokens.len(), node.width);
            tensors.insert(node.probe.clone(), Tensor::from_f64(Dtype::F32, &shape, &data));
        }
    };
    let mut forward = Forward::<f32>::wired(checkpoint, preset, wiring).expect("its weights");
    forward.step(&tokens, &mut see).expect("tokens");
    let manifest = Manifest {
        assay_trace: trace::VERSION,
        producer: BTreeMap::from([("name".into(), "assay-tests".into())]),
        dtype: Dtype::F32,
        architecture: config.architecture.class().into(),
        segments: vec![(0, tokens.len())],
        tokens,
        layers: config.num_hidden_layers,
        files: Vec::new(),
        notes: String::new(),
        ranks_differ: Vec::new(),
        probes: BTreeMap::new(),
    };
    trace::save(dir, manifest, &tensors).expect("a new folder");
    Trace::open(dir).expect("what was saved")
}

#[test]
fn a_constant_that_no_list_has_is_estimated_from_ops_and_from_logits() {
    let checkpoint = golden::checkpoint("gqa7-qwen2");
    let model = golden::path("checkpoints/gqa7-qwen2");
    let dir = tempfile::tempdir().expect("a folder");
    let theta = ForwardFault::theta(checkpoint.config(), 3e5);
    let eps = ForwardFault::eps(checkpoint.config(), 3e-6);
    for (nth, fault, keep, name, value) in [
        (0, &theta, all as Keep, "rope.wrong_theta", "theta is 300000 instead of 1000000"),
        (1, &theta, logits as Keep, "forward.rope_theta", "theta is 300000 instead of 1000000"),
        (2, &eps, all as Keep, "rms_norm.wrong_eps", "eps is 3e-6 instead of 1e-6"),
        (3, &eps, logits as Keep, "forward.rms_norm_eps", "eps is 3e-6 instead of 1e-6"),
    ] {
        let trace = recorded(&checkpoint, Some(fault), keep, &dir.path().join(format!("{nth}")));
        let report = of(&model, Some(&trace));
        let told: Vec<(&str, &str)> =
            report.evidence().map(|e| (e.name.as_str(), e.what.as_str())).collect();
        let [(found, what)] = told[..] else { panic!("{name}: {told:#?}") };
        assert!(found == name && what.contains(value), "{name}: {told:#?}");
    }
}

#[test]
fn two_wrong_forwards_at_once_are_both_named_from_logits() {
    let checkpoint = golden::checkpoint("gqa7-qwen2");
    let all = faults(checkpoint.config());
    let one = |label: &str| all.iter().find(|f| f.label() == label).expect("in the catalogue");
    let both = one("forward.bias_dropped (k)").and(one("forward.gate_up_swapped"));
    let dir = tempfile::tempdir().expect("a folder");
    let trace = recorded(&checkpoint, Some(&both), logits as Keep, &dir.path().join("t"));
    let report = of(&golden::path("checkpoints/gqa7-qwen2"), Some(&trace));
    let mut names = found(&report);
    names.sort_unstable();
    assert_eq!(names, ["forward.bias_dropped", "forward.gate_up_swapped"], "{report:#?}");
}

/// Logits that are no numbers, all equal, or led by one token, and what an answer shows of that.
#[test]
fn the_state_of_the_logits_is_told_with_the_op_that_it_begins_at() {
    let copy = Copy::of("traces/gqa7-qwen2/bf16");
    let edit = |file: &str, probe: &str, value: f64| {
        copy.tensors(file, |t| {
            let old = t.get(probe).expect("a probe");
            let mut data = old.to_f64();
            let n = data.len();
            data[n / 2] = value;
            let new = Tensor::from_f64(old.dtype(), old.shape(), &data);
            t.insert(probe.into(), new);
        });
    };
    edit("layer-00001.safetensors", "layers.1.o_proj", f64::NAN);
    edit("global.safetensors", "logits", f64::NAN);
    let trace = Trace::open(copy.path()).expect("a trace");
    let report = of(&golden::path("checkpoints/gqa7-qwen2"), Some(&trace));
    let state = report.evidence().find(|e| e.name == "logits.not_finite").expect("the state");
    assert_eq!(state.r#where, "layers.1.o_proj");
    assert!(
        state.what.contains("layers.1.attention") && state.what.contains("are finite"),
        "{}",
        state.what
    );

    let answer = "!".repeat(200);
    let given = Given { answer: Some(&answer), ..Given::default() };
    let model = golden::path("checkpoints/trained-qwen3");
    let report = bisect(&model, &given, &mut |_, _, _| {}).expect("a report");
    assert_eq!(found(&report), ["answer.collapsed"]);
    assert!(report.headline.contains("no suspect"), "{}", report.headline);
    assert!(report.actions.iter().any(|a| a.contains("--trace")), "{:#?}", report.actions);
}

#[test]
fn a_shape_that_the_engine_has_alone_is_said_and_the_rest_is_judged() {
    let copy = Copy::of("traces/faults/fault-12");
    let model = golden::path("checkpoints/tiny-qwen3");
    let width = std::cell::Cell::new(0);
    copy.tensors("layer-00000.safetensors", |t| {
        let old = t.get("layers.0.q_proj").expect("a probe");
        let (rows, cols) = (old.shape()[0], old.len() / old.shape()[0] / 2);
        width.set(cols);
        let data = old.to_f64()[..rows * cols].to_vec();
        let half = Tensor::from_f64(old.dtype(), &[rows, cols], &data);
        t.insert("layers.0.q_proj".into(), half);
    });
    copy.json("manifest.json", |m| {
        let shape = &mut m["probes"]["layers.0.q_proj"]["shape"];
        *shape = Value::from(vec![shape[0].as_u64().expect("rows") as usize, width.get()]);
    });
    let report = of(&model, Some(&Trace::open(copy.path()).expect("a trace")));
    let names = found(&report);
    assert_eq!(names, ["trace.shape", "rms_norm.half_lanes"], "{report:#?}");
    let other =
        of(&golden::path("checkpoints/tiny-qwen2"), Some(&golden::trace("faults/fault-12")));
    assert_eq!(found(&other), ["trace.other_model"]);
}

#[test]
fn a_truncated_shard_leaves_what_needs_the_weights_not_testable() {
    let model = Copy::of("checkpoints/tiny-qwen3");
    let shard = assay_tests::damage::entries(model.path())
        .into_iter()
        .map(|(name, _)| name)
        .find(|n| n.ends_with(".safetensors"))
        .expect("a shard");
    model.bytes(&shard, |b| b.truncate(b.len() - 1000));
    let report = of(model.path(), Some(&golden::trace("faults/fault-12")));
    assert_eq!(found(&report), ["file.truncated"]);
    let row = report.suspects.iter().find(|r| r.suspect == "each op of the engine").expect("a row");
    let Outcome::NotTestable { needs } = &row.outcome else { panic!("{row:?}") };
    assert!(needs.contains(&shard), "{needs}");
}

#[test]
fn the_command_line_refuses_what_makes_no_sense() {
    let model = golden::path("checkpoints/gqa7-qwen2");
    let model = model.to_str().expect("UTF-8");
    for (args, parts) in [
        (vec!["bisect", "/nowhere"], vec!["/nowhere"]),
        (vec!["bisect", model, "--trace", "/nowhere"], vec!["/nowhere"]),
        (vec!["bisect", model, "--switches"], vec!["--switches"]),
        (vec!["bisect", model, "--recording", "/nowhere"], vec!["/nowhere"]),
        (vec!["bisect", model, "--server", "https://127.0.0.1:1"], vec!["https"]),
        (vec!["bisect", model, "--dtype", "f32"], vec!["--server URL"]),
        (vec!["bisect", "--switches", "--engine", "none"], vec!["none"]),
        (vec!["bisect", "--switches", "--with", "NO_SUCH"], vec!["NO_SUCH"]),
        (vec!["bisect", "--switches", "--seen", "wrong,right"], vec!["--seen"]),
    ] {
        cli::refused(args, &parts);
    }
}

/// An audit that could not look at a suspect does not clear it.
#[test]
fn what_the_audit_cannot_look_at_is_not_cleared() {
    let headless = Copy::of("checkpoints/tiny-qwen3");
    headless.tensors("model.safetensors", |t| {
        *t = std::mem::take(t)
            .into_iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix("model.")?.to_owned(), tensor)))
            .collect();
    });
    assert_eq!(word(&of(headless.path(), None), "tensors"), "not testable");
    let without = Copy::of("checkpoints/tiny-qwen3");
    without.bytes("config.json", |b| b.truncate(b.len() / 2));
    assert_eq!(word(&of(without.path(), None), "tensors"), "not testable");
    assert_eq!(word(&of(without.path(), None), "chat template"), "not testable");
}

/// A prompt from a log: the same, edited, and of a model that cannot render it, which is no reason to say nothing else.
#[test]
fn a_captured_prompt_is_compared_where_the_model_renders_the_conversation() {
    let dir = tempfile::tempdir().expect("a folder");
    let (messages, captured) = (dir.path().join("chat.json"), dir.path().join("prompt.txt"));
    fs::write(&messages, r#"[{"role": "user", "content": "1+1?"}]"#).expect("written");
    let says = |model: &Path, prompt: &str| {
        fs::write(&captured, prompt).expect("written");
        let args: [&std::ffi::OsStr; 8] = [
            "bisect".as_ref(),
            model.as_os_str(),
            "--messages".as_ref(),
            messages.as_os_str(),
            "--captured".as_ref(),
            captured.as_os_str(),
            "--json".as_ref(),
            "-".as_ref(),
        ];
        let run = cli::assay(args);
        let report: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:#?}"));
        let rows = report["suspects"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|r| r["suspect"] == "prompt as the service renders it");
        (run.code, row.expect("the prompt").to_string())
    };
    let model = golden::path("checkpoints/trained-qwen3");
    let right = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n";
    let (code, row) = says(&model, right);
    assert!(code == 0 && row.contains("the same bytes"), "{code}: {row}");
    let (code, row) = says(&model, &right.replace("user\n", "user "));
    assert!(code == 1 && row.contains("prompt.text_differs"), "{code}: {row}");
    let without = Copy::of("checkpoints/trained-qwen3");
    fs::remove_file(without.file("tokenizer_config.json")).expect("removed");
    let (_, row) = says(without.path(), right);
    assert!(row.contains("that render this conversation"), "{row}");
}
