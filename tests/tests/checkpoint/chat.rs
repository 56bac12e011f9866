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
                    assert!(
                        error.contains(raised) && error.contains("refuses"),
                        "{label}: {error}"
                    );
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

/// Rendered by jinja2, refused here: loud, so harmless.
const REFUSED: &[&str] = &[
    "{{ '%s-%d' % ('a', 3) }}",
    "{{ 'a'.encode() }}",
    "{{ +n }}",
    "{{ 'x'|int }}",
    "{{ xs|random is number }}",
    "{{ d.名 }}",
    "{{ d.get is callable }}",
    "{{ 'hello world'|wordcount }}",
    "{{ 'hello world foo'|truncate(9) }}",
    "{{ '<b>'|striptags }}",
    "{{ 'a'|center(5) ~ '|' }}",
    "{{ 'a b/ü'|urlencode }}",
    "{{ 1000000|filesizeformat }}",
    "{{ d|pprint }}",
    "{{ 'a b c'|wordwrap(3) }}",
    "{{ cycler('a', 'b').next() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}",
];

/// Refused by jinja2, rendered here.
const LENIENT: &[&str] = &[
    "{{ rows|sum(attribute='q') }}",
    "{{ 'a' < 1 }}",
    "{{ 1 in 'x' }}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% set ns = namespace() %}{% set ns._x = 5 %}{{ ns._x }}",
];

/// Rendered otherwise: objects that templates do not print, and floats beside `~`.
const OTHERWISE: &[&str] = &[
    "{{ rows|groupby('r') }}",
    "{{ range(3) is sequence }}",
    "{{ range(3) }}",
    "{{ lipsum is defined }}",
    "{{ n.real }}",
    "{{ fs[1] ~ '' }}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
];

/// Small templates, one for each construct in which engines could differ. Those that are known to
/// differ must still differ.
#[test]
fn small_templates_render_as_jinja2_renders_them() {
    let golden = read(&golden("chat/expressions.json"));
    let mut variables = golden["values"].as_object().expect("values").clone();
    variables.insert("messages".into(), json!([]));
    variables.insert("tools".into(), Value::Null);
    variables.insert("documents".into(), Value::Null);
    variables.insert("add_generation_prompt".into(), json!(false));
    let mut wrong = Vec::new();
    let cases = golden["cases"].as_array().expect("cases");
    for case in cases {
        let template = case["template"].as_str().expect("a template");
        let ours = render_text(template, Path::new("x.jinja"), &variables);
        let theirs = case["text"].as_str();
        let right = if REFUSED.contains(&template) {
            ours.is_err() && theirs.is_some()
        } else if LENIENT.contains(&template) {
            ours.is_ok() && theirs.is_none()
        } else if OTHERWISE.contains(&template) {
            ours.as_deref().ok().zip(theirs).is_some_and(|(a, b)| a != b)
        } else {
            ours.as_deref().ok() == theirs
        };
        if !right {
            wrong.push(format!("{template}\n  ours   {ours:?}\n  theirs {case}"));
        }
    }
    assert!(cases.len() > 500 && wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

fn refusal(template: &str) -> String {
    let mut variables = Map::new();
    variables.insert("messages".into(), json!([{ "role": "user", "content": "hi" }]));
    render_text(template, Path::new("models/x/chat_template.jinja"), &variables)
        .expect_err(template)
        .to_string()
}

/// Each ends within the budget and says why.
#[test]
fn hostile_templates_end() {
    let bombs = [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(200) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 99999999 * 99999999 }}",
        "{{ 'x'.center(99999999999) }}",
        "{{ 'x'.ljust(9223372036854775807) }}",
        "{{ ('x' * 90000000).replace('x', 'y' * 90000) }}",
        "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ range(99999)|list|tojson(indent=64) * 9999 }}",
        "{{ '%999999999d'|format(1) }}",
    ];
    for template in bombs {
        let start = std::time::Instant::now();
        let error = refusal(template);
        assert!(error.starts_with("models/x/chat_template.jinja: chat template"), "{error}");
        assert!(!error.contains('\n') && error.len() < 600, "{error}");
        assert!(start.elapsed().as_secs() < 60, "{template}: {:?}", start.elapsed());
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(refusal(&nested).contains("not a valid jinja2 template"));
    assert!(refusal("{% include '/etc/passwd' %}").contains("fails on this conversation"));
}

#[test]
fn a_refusal_gives_the_templates_words_and_line() {
    let error = refusal("\n\n{{ raise_exception('roles must alternate') }}");
    let expected = "models/x/chat_template.jinja: chat template `text` (line 3): the template \
                    refuses this conversation: roles must alternate";
    assert_eq!(error, expected);
    assert!(refusal("\n{% if %}").contains("(line 2)"));
}

#[test]
fn templates_are_read_from_where_transformers_reads_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).expect("a file");
    };
    let open = || ChatTemplates::open(dir.path());
    let request = |template: Option<&str>, tools: bool| ChatRequest {
        messages: vec![json!({ "role": "user", "content": null })],
        tools: tools.then(Vec::new),
        template: template.map(str::to_owned),
        ..ChatRequest::default()
    };
    assert!(open().unwrap_err().to_string().contains("there is no chat template"));

    write(
        "tokenizer_config.json",
        r#"{"chat_template": "config {{ bos_token }}|{{ eos_token }}",
        "bos_token": null, "eos_token": {"content": "<e>"}}"#,
    );
    let render = |template, tools| {
        open().expect("a template").render(&request(template, tools)).map_err(|e| e.to_string())
    };
    assert_eq!(render(None, true).unwrap(), "config |<e>");
    // Files of older tools win where the config lists no added tokens.
    write("special_tokens_map.json", r#"{"eos_token": "<m>"}"#);
    assert_eq!(render(None, false).unwrap(), "config |<m>");
    let listed = r#"{"added_tokens_decoder": {}, "chat_template": "config {{ bos_token }}|{{ eos_token }}", "eos_token": "<e>"}"#;
    write("tokenizer_config.json", listed);
    assert_eq!(render(None, false).unwrap(), "config |<e>");

    write("chat_template.jinja", "file{{ messages[0].content is defined }}");
    assert_eq!(render(None, false).unwrap(), "fileFalse");
    let warnings = open().expect("a template").warnings().to_vec();
    assert!(
        warnings.len() == 1 && warnings[0].contains("different chat templates"),
        "{warnings:?}"
    );
    std::fs::create_dir(dir.path().join("additional_chat_templates")).expect("a folder");
    write("additional_chat_templates/tool_use.jinja", "tools");
    assert_eq!(render(None, false).unwrap(), "fileFalse");
    assert_eq!(render(None, true).unwrap(), "tools");
    assert_eq!(render(Some("tool_use"), false).unwrap(), "tools");
    assert!(render(Some("rag"), false).unwrap_err().contains("`default`, `tool_use`"));

    for (config, named) in [
        (r#"{"chat_template": 5}"#, "must be a string"),
        (r#"{"chat_template": [{"name": "a"}]}"#, "`template`"),
        (r#"{"chat_template": "x", "eos_token": 3}"#, "`eos_token`"),
    ] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("tokenizer_config.json"), config).expect("a file");
        let error = ChatTemplates::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json") && error.contains(named), "{error}");
    }
}

#[test]
fn conversations_that_are_none_are_refused() {
    let parse =
        |text: &str| ChatRequest::parse(text, Path::new("chat.json")).map_err(|e| e.to_string());
    for (text, named) in [
        ("{", "is not valid JSON"),
        ("3", "array of messages"),
        ("[]", "no message"),
        ("{}", "no `messages`"),
        ("[3]", "message 0"),
        (r#"[{"role": "user"}, {"content": "x"}]"#, "message 1"),
        (r#"{"messages": [{"role": "user"}], "tools": {}}"#, "`tools`"),
        (r#"{"messages": [{"role": "user"}], "tool": []}"#, "`tool`"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with("chat.json: ") && error.contains(named), "{text}: {error}");
    }
    let both = parse(r#"{"messages": [{"role": "user"}], "tools": [{"a": 1}]}"#).unwrap();
    assert_eq!((both.messages.len(), both.tools.map(|t| t.len())), (1, Some(1)));
}
