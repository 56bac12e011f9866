//! Chat templates render as transformers renders them, byte for byte, and hostile ones end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use assay_reference::checkpoint::chat::render_text;
use assay_reference::checkpoint::{ChatRequest, ChatTemplates, Tokenizer};
use serde_json::{Map, Value, json};

fn golden(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(relative)
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a golden file");
    serde_json::from_str(&text).expect("golden JSON")
}

/// A model folder as golden/scripts/chat.py makes it: the template where one kind of checkpoint
/// keeps it.
fn model(template: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let from = golden("checkpoints/trained-qwen3");
    std::fs::copy(from.join("tokenizer.json"), dir.path().join("tokenizer.json")).expect("a copy");
    let mut config = read(&from.join("tokenizer_config.json"));
    let text = |file: &str| {
        let path = golden("chat").join(template).join(file);
        Value::from(std::fs::read_to_string(path).expect("a template"))
    };
    config.as_object_mut().expect("an object").remove("chat_template");
    match template {
        "chatml" => {
            let file = golden("chat/chatml/chat_template.jinja");
            std::fs::copy(file, dir.path().join("chat_template.jinja")).expect("a copy");
        }
        "thinking" => config["chat_template"] = text("template.jinja"),
        _ => {
            config["chat_template"] = json!([
                { "name": "default", "template": text("template.jinja") },
                { "name": "tool_use", "template": text("tool_use.jinja") },
            ]);
            config["bos_token"] = json!({ "__type": "AddedToken", "content": "<|endoftext|>" });
        }
    }
    let path = dir.path().join("tokenizer_config.json");
    std::fs::write(path, config.to_string()).expect("a config");
    dir
}

fn request(case: &Value) -> ChatRequest {
    let list = |name: &str| case[name].as_array().cloned();
    let mut arguments: Map<String, Value> = case["extra"].as_object().cloned().unwrap_or_default();
    let template = arguments.remove("chat_template");
    let documents = arguments.remove("documents");
    ChatRequest {
        messages: list("messages").expect("messages"),
        tools: list("tools"),
        documents: documents.and_then(|d| d.as_array().cloned()),
        add_generation_prompt: case["add_generation_prompt"] == true,
        template: template.and_then(|t| t.as_str().map(str::to_owned)),
        arguments,
    }
}

/// How many cases rendered, and how many were refused by both.
fn check(cases: &[Value], models: &BTreeMap<&str, PathBuf>) -> (usize, usize) {
    let opened: BTreeMap<&str, (ChatTemplates, Tokenizer)> = models
        .iter()
        .map(|(name, dir)| {
            let templates = ChatTemplates::open(dir).expect("a template");
            assert_eq!(templates.warnings(), [""; 0]);
            (*name, (templates, Tokenizer::open(dir).expect("a tokenizer")))
        })
        .collect();
    let (mut rendered, mut refused) = (0, 0);
    for case in cases {
        let name = case["template"].as_str().expect("a template");
        let label = format!("{name} {} {}", case["name"], case["extra"]);
        let (templates, tokenizer) = &opened[name];
        let ours = templates.render(&request(case));
        match case["text"].as_str() {
            Some(text) => {
                let ours = ours.unwrap_or_else(|e| panic!("{label}: {e}"));
                assert_eq!(ours, text, "{label}");
                let ids = tokenizer.encode_rendered(&ours).expect("a text");
                let golden = case["ids"].as_array().expect("ids");
                let golden: Vec<u64> = golden.iter().filter_map(Value::as_u64).collect();
                assert_eq!(ids.into_iter().map(u64::from).collect::<Vec<u64>>(), golden, "{label}");
                rendered += 1;
            }
            None => {
                let error = ours.expect_err(&label).to_string();
                let theirs = case["error"].as_str().expect("an error");
                if let Some(raised) = theirs.strip_prefix("TemplateError: ") {
                    assert!(error.contains(raised) && error.contains("refuses"), "{label}: {error}");
                }
                refused += 1;
            }
        }
    }
    (rendered, refused)
}

#[test]
fn conversations_render_to_transformers_bytes_and_ids() {
    let dirs = ["chatml", "thinking", "distill"].map(|name| (name, model(name)));
    let models = dirs.iter().map(|(name, dir)| (*name, dir.path().to_path_buf())).collect();
    let golden = read(&golden("chat/cases.json"));
    let cases = golden["cases"].as_array().expect("cases");
    assert_eq!(check(cases, &models), (120, 4));
}

/// The templates of a released model, rendered by golden/scripts/chat.py --tokenizer into chat.json
/// of the same folder.
#[test]
fn a_released_models_template_renders_to_transformers_bytes_and_ids() {
    for variable in ["ASSAY_QWEN3_TOKENIZER", "ASSAY_R1_TOKENIZER"] {
        let Some(dir) = std::env::var_os(variable).map(PathBuf::from) else {
            eprintln!("skipped: {variable} is not set");
            continue;
        };
        let golden = read(&dir.join("chat.json"));
        let cases = golden["cases"].as_array().expect("cases");
        let (rendered, refused) = check(cases, &BTreeMap::from([("other", dir.clone())]));
        eprintln!("{variable}: {rendered} rendered alike, {refused} refused by both");
        assert!(rendered >= 60, "{rendered}");
    }
}

/// Templates in which minijinja and jinja2 are known to differ, and how. Each must still differ.
const KNOWN: &[(&str, &str)] = &[];

#[test]
fn small_templates_render_as_jinja2_renders_them() {
    let golden = read(&golden("chat/expressions.json"));
    let values = golden["values"].as_object().expect("values");
    let mut variables = values.clone();
    variables.insert("messages".into(), json!([]));
    variables.insert("tools".into(), Value::Null);
    variables.insert("documents".into(), Value::Null);
    variables.insert("add_generation_prompt".into(), json!(false));
    let mut wrong = Vec::new();
    let mut known = Vec::new();
    let cases = golden["cases"].as_array().expect("cases");
    for case in cases {
        let template = case["template"].as_str().expect("a template");
        let ours = render_text(template, Path::new("x.jinja"), &variables);
        let fits = match (&ours, case["text"].as_str()) {
            (Ok(ours), Some(theirs)) => ours == theirs,
            (Err(_), None) => true,
            _ => false,
        };
        if KNOWN.iter().any(|(t, _)| *t == template) {
            if !fits {
                known.push(template);
            }
        } else if !fits {
            wrong.push(format!("{template}\n  ours   {ours:?}\n  theirs {case}"));
        }
    }
    assert!(cases.len() > 500 && wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    let needless: Vec<&str> =
        KNOWN.iter().map(|(t, _)| *t).filter(|t| !known.contains(t)).collect();
    assert!(needless.is_empty(), "no longer different: {needless:?}");
}
