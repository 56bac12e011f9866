//! Tokenizer, end tokens, chat template; and `assay template` against captures and a server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use assay_tests::damage::Copy;
use assay_tests::{cli, golden};
use serde_json::{Value, json};

use super::found;

const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

fn trained() -> Copy {
    Copy::of("checkpoints/trained-qwen3")
}

#[test]
fn tokenizers_that_do_not_fit() {
    let copy = trained();
    copy.bytes(TOKENIZER, |b| b.truncate(b.len() / 2));
    found(&copy, &["A460"], &[TOKENIZER]);
    let copy = trained();
    copy.json(TOKENIZER, |t| {
        t["added_tokens"]
            .as_array_mut()
            .expect("tokens")
            .push(json!({"id": 1024, "content": "<|new|>", "special": true}));
    });
    found(&copy, &["A461"], &["ids up to 1024", "1024 rows"]);
}

#[test]
fn end_tokens_that_disagree() {
    let copy = trained();
    copy.json(GENERATION, |g| g["eos_token_id"] = json!(1020));
    found(&copy, &["A463", "A464"], &["1020", "<|im_end|>"]);
    let copy = trained();
    copy.json(GENERATION, |g| g["eos_token_id"] = json!([1023, 5000]));
    found(&copy, &["A462"], &["5000"]);
    let copy = trained();
    for file in [GENERATION, "config.json"] {
        copy.json(file, |g| {
            g.remove("eos_token_id");
        });
    }
    found(&copy, &["A465"], &[]);
    let copy = trained();
    copy.bytes(GENERATION, |b| b.push(b'x'));
    found(&copy, &["A46A"], &[GENERATION]);
}

#[test]
fn chat_templates_that_cannot_be_used() {
    let template = |copy: &Copy, text: Option<&str>| {
        copy.json(TOKENIZER_CONFIG, |c| match text {
            Some(text) => c["chat_template"] = json!(text),
            None => {
                c.remove("chat_template");
            }
        });
    };
    let copy = trained();
    template(&copy, None);
    found(&copy, &["A466"], &[]);
    let copy = trained();
    template(&copy, Some("{% for m in messages %}{{ m.content }}"));
    found(&copy, &["A467"], &[TOKENIZER_CONFIG]);
    let copy = trained();
    template(&copy, Some("{% for m in messages %}<|user|>{{ m.content }}<|im_end|>{% endfor %}"));
    found(&copy, &["A469"], &["`<|user|>`"]);
    let copy = trained();
    fs::write(copy.file("chat_template.jinja"), "{{ messages[0].content }}").expect("written");
    found(&copy, &["A468"], &[]);
}

/// What the template of the trained checkpoint makes of one user turn, written by hand.
const PROMPT: &str = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n";

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let messages = json!([{"role": "user", "content": "1+1?"}]);
        fs::write(folder.path().join("messages.json"), messages.to_string()).expect("written");
        Place { folder }
    }

    fn run(&self, more: &[&str]) -> cli::Run {
        let model = golden::path("checkpoints/trained-qwen3").display().to_string();
        let messages = self.folder.path().join("messages.json").display().to_string();
        cli::assay(["template", &model, "--messages", &messages].iter().chain(more))
    }

    fn captured(&self, bytes: &[u8]) -> cli::Run {
        let path = self.folder.path().join("captured");
        fs::write(&path, bytes).expect("written");
        self.run(&["--captured", &path.display().to_string()])
    }

    fn ids(&self) -> Vec<u32> {
        let run = self.run(&["--json", "-"]);
        let json: Value = serde_json::from_str(&run.stdout).expect("JSON");
        assert_eq!(json["text"], PROMPT);
        serde_json::from_value(json["ids"].clone()).expect("ids")
    }
}

#[test]
fn a_captured_prompt_is_compared_byte_by_byte() {
    let place = Place::new();
    assert_eq!(place.captured(PROMPT.as_bytes()).code, 0);
    let quoted = json!(PROMPT).to_string();
    assert_eq!(place.captured(quoted.as_bytes()).code, 0);
    let ids = place.ids();
    assert_eq!(place.captured(json!(ids).to_string().as_bytes()).code, 0);

    let other = PROMPT.replace("<|im_end|>\n", "<|im_end|>");
    let run = place.captured(other.as_bytes());
    assert_eq!(run.code, 1, "{run:#?}");
    // Behind "<|im_start|>user\n1+1?<|im_end|>".
    for part in ["A470", "byte 31", "line 2"] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    let mut more = ids;
    more.insert(0, 1021);
    let run = place.captured(json!(more).to_string().as_bytes());
    assert!(
        run.code == 1 && run.stdout.contains("A471") && run.stdout.contains("token 0"),
        "{run:#?}"
    );
}

/// A server of one thread that answers every request with what `answer` makes of its path and body.
fn serve(answer: impl Fn(&str, &Value) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(&stream);
            let (mut line, mut length) = (String::new(), 0);
            let _ = reader.read_line(&mut line);
            let path = line.split(' ').nth(1).unwrap_or("").to_owned();
            loop {
                line.clear();
                let _ = reader.read_line(&mut line);
                let header = line.trim().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some(n) = header.strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap_or(0);
                }
            }
            let mut body = vec![0; length];
            let _ = reader.read_exact(&mut body);
            let (status, text) =
                answer(&path, &serde_json::from_slice(&body).unwrap_or(Value::Null));
            let location = if status == 302 { "Location: http://127.0.0.1:9/\r\n" } else { "" };
            let _ = write!(
                stream,
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{location}Connection: close\r\n\r\n{text}",
                text.len()
            );
        }
    });
    address
}

#[test]
fn a_servers_prompt_is_compared_through_its_tokenize() {
    let place = Place::new();
    let ids = place.ids();
    let models = json!({"data": [{"id": "tiny"}]}).to_string();
    let with = |text: Vec<u32>, chat: Vec<u32>| {
        let models = models.clone();
        serve(move |path, body| match path {
            "/v1/models" => (200, models.clone()),
            "/tokenize" if body["prompt"] == PROMPT => (200, json!({"tokens": text}).to_string()),
            "/tokenize" if body["messages"].is_array() => {
                (200, json!({"tokens": chat}).to_string())
            }
            _ => (400, "{}".into()),
        })
    };
    let run = place.run(&["--server", &with(ids.clone(), ids.clone())]);
    assert_eq!(run.code, 0, "{run:#?}");
    // The server's template leaves the last line end out.
    let less = ids[..ids.len() - 1].to_vec();
    let run = place.run(&["--server", &format!("{}/v1/", with(ids.clone(), less.clone()))]);
    assert!(
        run.code == 1 && run.stdout.contains("A472") && !run.stdout.contains("A473"),
        "{run:#?}"
    );
    let run = place.run(&["--server", &with(less.clone(), less)]);
    assert!(
        run.code == 1 && run.stdout.contains("A472") && run.stdout.contains("A473"),
        "{run:#?}"
    );
    // No /tokenize: nothing was compared, which is no pass.
    let models = models.clone();
    let none = serve(
        move |path, _| {
            if path == "/v1/models" { (200, models.clone()) } else { (404, "{}".into()) }
        },
    );
    assert_eq!(place.run(&["--server", &none]).code, 3);
    // Nor is it when the rest is the same: a capture, the tokenizer without the template.
    fs::write(place.folder.path().join("captured"), PROMPT).expect("written");
    let captured = place.folder.path().join("captured").display().to_string();
    let run = place.run(&["--captured", &captured, "--server", &none]);
    assert!(run.code == 3 && run.stdout.contains("the same bytes"), "{run:#?}");
    let tokenizer = serve(move |path, body| match path {
        "/v1/models" => (200, json!({"data": [{"id": "tiny"}]}).to_string()),
        _ if body["prompt"] == PROMPT => (200, json!({"tokens": ids}).to_string()),
        _ => (400, "{}".into()),
    });
    let run = place.run(&["--server", &tokenizer]);
    assert!(run.code == 3 && run.stdout.contains("takes no messages"), "{run:#?}");
    // Redirects are not followed, other schemes are refused, and nobody there is an error.
    let away = serve(|_, _| (302, String::new()));
    for url in [away.as_str(), "https://127.0.0.1:1", "http://127.0.0.1:1", "ftp://x"] {
        let run = place.run(&["--server", url]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{run:#?}");
    }
}

/// A key goes to the server, and is shown nowhere, not even when the server repeats it.
#[test]
fn a_key_is_sent_and_never_shown() {
    let place = Place::new();
    let url = serve(|_, _| (401, "{\"error\": \"bad key sk-secret-1\"}".into()));
    let model = golden::path("checkpoints/trained-qwen3");
    let output = std::process::Command::new(cli::binary())
        .args(["template".as_ref(), model.as_os_str(), "--messages".as_ref()])
        .arg(place.folder.path().join("messages.json"))
        .args(["--server", &url, "--api-key-env", "ASSAY_TEST_KEY"])
        .env("ASSAY_TEST_KEY", "sk-secret-1")
        .output()
        .expect("assay starts");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("401") && text.contains("***") && !text.contains("sk-secret"), "{text}");
}
