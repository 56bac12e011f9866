//! A server of this test's own: right by the reference (that real servers are is shown by recordings), and then damaged
//! in what it answers, in ways that a recording of a sound server cannot show.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use assay_reference::Dtype;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::{Forward, Preset};
use assay_tests::damage::Copy;
use assay_tests::{cli, golden};
use assay_verify::http::Client;
use assay_verify::server::ask::{Questions, ask, until};
use assay_verify::server::exchange::Exchange;
use assay_verify::server::{Report, State};
use serde_json::{Value, json};

use super::{codes, judged};

pub(crate) type Answer = dyn Fn(&str, &Value) -> (u16, String) + Send + Sync;

/// Serves on a port of its own, each connection in a thread.
pub(crate) fn serve(answer: Arc<Answer>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || respond(&stream, &*answer));
        }
    });
    address
}

fn respond(mut stream: &TcpStream, answer: &Answer) {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    let _ = reader.read_line(&mut line);
    let path = line.split(' ').nth(1).unwrap_or("").to_owned();
    loop {
        line.clear();
        let read = reader.read_line(&mut line).unwrap_or(0);
        let header = line.trim().to_ascii_lowercase();
        if read == 0 || header.is_empty() {
            break;
        }
        if let Some(n) = header.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    let _ = reader.read_exact(&mut body);
    let (status, text) = answer(&path, &serde_json::from_slice(&body).unwrap_or(Value::Null));
    let location = if status == 302 { "Location: http://127.0.0.1:9/\r\n" } else { "" };
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{location}Connection: close\r\n\r\n{text}",
        text.len()
    );
}

/// The model: tiny-qwen3, in f32.
fn model() -> std::path::PathBuf {
    golden::path("checkpoints/tiny-qwen3")
}

/// log-softmax of each row behind `ids`.
fn rows(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<Vec<f64>> {
    let preset = Preset::named("f32").expect("a preset");
    let mut forward = Forward::<f32>::new(checkpoint, preset).expect("a forward");
    let logits = forward.step(ids, &mut |_, _| {}).expect("logits");
    let width = logits.len() / ids.len();
    let softmax = |row: &[f32]| {
        let sum: f64 = row.iter().map(|x| exponential(f64::from(*x))).sum();
        let norm = assay_reference::arith::math::ln(sum);
        row.iter().map(|x| f64::from(*x) - norm).collect()
    };
    logits.chunks(width).map(softmax).collect()
}

fn exponential(x: f64) -> f64 {
    assay_reference::arith::math::exp(x)
}

/// What vLLM answers to a completion, from the reference. `edit` changes a row, given the prompt's length and the row's.
pub(super) fn completion(
    checkpoint: &Checkpoint,
    request: &Value,
    edit: &dyn Fn(usize, usize, &mut Vec<f64>),
) -> Value {
    let mut ids: Vec<u32> = serde_json::from_value(request["prompt"].clone()).expect("ids");
    let (prompt, generate) = (ids.len(), request["max_tokens"].as_u64().unwrap_or(1));
    let entry = |row: &[f64], id: usize| json!({ "logprob": row[id], "rank": 1 });
    let top = |row: &[f64]| {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        order.truncate(3);
        order
    };
    let (mut own, mut rivals, mut scored) = (Vec::new(), Vec::new(), vec![Value::Null]);
    for step in 0..generate {
        let mut rows = rows(checkpoint, &ids);
        for (i, row) in rows.iter_mut().enumerate() {
            edit(prompt, i, row);
        }
        if step == 0 {
            for (i, row) in rows[..prompt - 1].iter().enumerate() {
                let next = ids[i + 1] as usize;
                let listed = top(row).into_iter().chain([next]);
                scored.push(listed.map(|id| (id.to_string(), entry(row, id))).collect());
            }
        }
        let last = &rows[ids.len() - 1];
        let best = top(last);
        own.push(json!(last[best[0]]));
        rivals.push(
            best.iter().map(|id| (format!("token_id:{id}"), json!(last[*id]))).collect::<Value>(),
        );
        ids.push(best[0] as u32);
    }
    let tokens: Vec<String> = ids[prompt..].iter().map(|i| format!("token_id:{i}")).collect();
    let wants = |field: &str| request.get(field).is_some();
    let mut choice =
        json!({ "text": "x", "token_ids": ids[prompt..], "prompt_token_ids": ids[..prompt] });
    if wants("logprobs") {
        choice["logprobs"] =
            json!({ "tokens": tokens, "token_logprobs": own, "top_logprobs": rivals });
    }
    if wants("prompt_logprobs") {
        choice["prompt_logprobs"] = json!(scored);
    }
    json!({ "choices": [choice] })
}

/// What a server answers to all, given what it makes of a completion.
pub(super) fn server(
    of: impl Fn(&Checkpoint, &Value) -> (u16, String) + Send + Sync + 'static,
) -> String {
    serving(&model(), of)
}

fn serving(
    dir: &Path,
    of: impl Fn(&Checkpoint, &Value) -> (u16, String) + Send + Sync + 'static,
) -> String {
    let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
    serve(Arc::new(move |path, body| match path {
        "/v1/models" => (200, json!({ "data": [{ "id": "tiny" }] }).to_string()),
        "/v1/completions" => of(&checkpoint, body),
        _ => (404, "{}".into()),
    }))
}

pub(super) fn ok(value: &Value) -> (u16, String) {
    (200, value.to_string())
}

/// Asks little, in f32, and judges.
pub(super) fn probed(url: &str) -> (Report, Vec<Exchange>) {
    probed_as(&model(), url)
}

fn probed_as(dir: &Path, url: &str) -> (Report, Vec<Exchange>) {
    let client = Client::new(url, None, Duration::from_secs(300)).expect("a client");
    let ids: Vec<u32> = (0..20).map(|i| (i * 97 + 5) % 320).collect();
    let questions = Questions {
        texts: vec![None; ids.len() + 1],
        lengths: vec![2, 7, 8, 9, 15],
        generate: 3,
        repeats: 2,
        batch: 3,
        messages: None,
        served_model: None,
        until: until(1200),
        ids,
    };
    let exchanges = ask(&client, &questions, &mut |_, _, _| {}).expect("answers");
    (judged(dir, &exchanges, Some(Dtype::F32)), exchanges)
}

fn only(report: &Report, state: State, code: &str) {
    assert_eq!(report.state, state, "{report:#?}");
    assert_eq!(codes(report), [code], "{report:#?}");
}

/// NaN for short prompts: 500 with log-probabilities alone; nulls; -9999; NaN in JSON. None is an error of transport.
#[test]
fn logits_that_are_no_numbers_are_a_finding_with_the_lengths_that_show_them() {
    let short = |body: &Value| body["prompt"].as_array().is_some_and(|p| p.len() <= 8);
    let refuses = server(move |c, body| {
        let wants = body.get("logprobs").is_some() || body.get("prompt_logprobs").is_some();
        match short(body) && wants {
            true => (500, json!({ "error": "Out of range float values" }).to_string()),
            false => ok(&completion(c, body, &|_, _, _| {})),
        }
    });
    let (report, _) = probed(&refuses);
    only(&report, State::NotFinite, "A4C0");
    let what = &report.findings[0].what;
    assert!(what.contains("500") && what.contains("2 to 8") && what.contains("9 to 20"), "{what}");

    for wrong in ["null", "-9999.0", "NaN", "-3.4028234663852886e38"] {
        let url = server(move |c, body| {
            let (status, text) = ok(&completion(c, body, &|_, _, _| {}));
            // The second position of every prompt.
            let mark = "\"token_logprobs\":[";
            let text = match (short(body), text.find(mark)) {
                (true, Some(at)) => {
                    let begin = at + mark.len();
                    let end = begin + text[begin..].find([',', ']']).expect("an end");
                    format!("{}{wrong}{}", &text[..begin], &text[end..])
                }
                _ => text,
            };
            (status, text)
        });
        let (report, _) = probed(&url);
        assert_eq!(report.state, State::NotFinite, "{wrong}: {report:#?}");
        assert!(report.findings[0].what.contains("2 to 8"), "{wrong}: {report:#?}");
    }
}

#[test]
fn constant_and_collapsed_logits_have_names_of_their_own() {
    let uniform = -assay_reference::arith::math::ln(320.0);
    let url = server(move |c, body| ok(&completion(c, body, &|_, _, row| row.fill(uniform))));
    let (report, _) = probed(&url);
    only(&report, State::Constant, "A4C1");
    let url = server(|c, body| {
        let collapse = |_: usize, _: usize, row: &mut Vec<f64>| {
            row.fill(-20.0);
            row[0] = -1e-6;
        };
        ok(&completion(c, body, &collapse))
    });
    only(&probed(&url).0, State::Collapsed, "A4C2");
}

/// Noise that depends on the row and the token: no forward is like that.
pub(super) fn noise(row: &mut [f64], by: f64) {
    for (i, x) in row.iter_mut().enumerate() {
        *x += by * (((i * 7919) % 101) as f64 / 101.0 - 0.5);
    }
}

#[test]
#[ignore = "most of a minute; cargo test -p assay-tests --test promises probe -- --ignored"]
fn a_sound_server_is_right_and_what_differs_by_length_batch_path_or_chance_is_told_apart() {
    let url = server(|c, body| ok(&completion(c, body, &|_, _, _| {})));
    let (report, exchanges) = probed(&url);
    assert_eq!((report.state, codes(&report)), (State::Right, vec![]), "{report:#?}");
    assert!(exchanges.iter().all(|e| e.error.is_none()), "{exchanges:#?}");

    let of = |edit: fn(usize, usize, &mut Vec<f64>)| {
        probed(&server(move |c, body| ok(&completion(c, body, &edit)))).0
    };
    let report = of(|prompt, _, row| {
        if prompt <= 8 {
            noise(row, 0.1)
        }
    });
    assert!(codes(&report).contains(&"A4C4"), "{report:#?}");
    assert!(report.findings[0].what.contains("2 to 8"), "{report:#?}");
    let report = of(|prompt, i, row| {
        if i >= prompt {
            noise(row, 0.1)
        }
    });
    assert!(codes(&report).contains(&"A4C8"), "{report:#?}");
    let report = of(|_, _, row| noise(row, 0.1));
    assert!(codes(&report).contains(&"A4C3"), "{report:#?}");
    assert!(report.explanations.is_empty(), "{report:#?}");
    assert!(report.notes.iter().any(|n| n.starts_with("unexplained")), "{report:#?}");

    // Every third answer to the request that is repeated.
    let count = AtomicUsize::new(0);
    let (report, _) = probed(&server(move |c, body| {
        let repeated =
            body["max_tokens"] == 4 && body["prompt"].as_array().map(Vec::len) == Some(20);
        let wrong = repeated && count.fetch_add(1, Ordering::Relaxed) == 1;
        ok(&completion(c, body, &|_, _, row| {
            if wrong {
                noise(row, 0.1)
            }
        }))
    }));
    assert!(codes(&report).contains(&"A4C5"), "{report:#?}");
}

/// Served from a copy with one bias lost, and with one tensor altered; asked about the checkpoint as it should be.
#[test]
#[ignore = "two searches, half a minute; cargo test -p assay-tests --test promises probe -- --ignored"]
fn an_altered_tensor_is_named() {
    let right = golden::path("checkpoints/tiny-qwen2");
    let altered = |tensor: &str, factor: f64| {
        let copy = Copy::of("checkpoints/tiny-qwen2");
        for file in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
            copy.tensors(file, |tensors| {
                if let Some(t) = tensors.get_mut(tensor) {
                    *t = t.map(|_, x| x * factor);
                }
            });
        }
        let url = serving(copy.path(), |c, body| ok(&completion(c, body, &|_, _, _| {})));
        let report = probed_as(&right, &url).0;
        assert_eq!(report.state, State::Wrong, "{report:#?}");
        report.explanations
    };
    let found = altered("model.layers.0.self_attn.k_proj.bias", 0.0);
    assert_eq!(found.first().map(|f| f.code.as_str()), Some("A309"), "{found:#?}");
    assert!(found[0].text.contains("layer 0"), "{found:#?}");
    let found = altered("model.layers.1.mlp.down_proj.weight", 1.25);
    let named = |text: &str| text.contains("layers.1.mlp.") && text.contains("1.25");
    assert!(found.iter().any(|f| f.code == "A4D0" && named(&f.text)), "{found:#?}");
}

/// What is no OpenAI-compatible server ends with a message and exit code 2; a slow or huge answer in time.
#[test]
fn what_is_no_server_is_said_within_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let record = dir.path().join("r.json").to_string_lossy().into_owned();
    let model = model().to_string_lossy().into_owned();
    let refused = |url: &str, named: &[&str]| {
        cli::refused(["probe", url, "--model", &model, "--record", &record], named);
    };
    refused(
        &serve(Arc::new(|_, _| (200, "<html>hello".into()))),
        &["/v1/models", "--served-model"],
    );
    refused(&serve(Arc::new(|_, _| (302, String::new()))), &["redirects"]);
    let slow = serve(Arc::new(|_, _| {
        std::thread::sleep(Duration::from_secs(4));
        (200, "{}".into())
    }));
    cli::refused(["probe", &slow, "--model", &model, "--timeout", "1"], &["timeout"]);
    refused("https://127.0.0.1:1", &["https"]);
    refused(&serve(Arc::new(|_, _| (401, "no".into()))), &["--api-key-env"]);

    // Garbage from completions: nothing could be compared.
    let garbage = serve(Arc::new(|path, _| match path {
        "/v1/models" => (200, json!({ "data": [{ "id": "tiny" }] }).to_string()),
        _ => (200, "[".repeat(2_000_000)),
    }));
    let run =
        cli::assay(["probe", &garbage, "--model", &model, "--lengths", "2", "--record", &record]);
    assert_eq!(run.code, 3, "{run:#?}");
    assert!(run.stdout.contains("nothing could be compared"), "{run:#?}");
    let replayed = cli::assay(["probe", "--replay", &record, "--model", &model]);
    assert_eq!(replayed.code, 3, "{replayed:#?}");
}

/// A server that repeats the key in all that it answers: it is in nothing that is printed, reported or recorded.
#[test]
fn the_key_is_shown_and_recorded_nowhere() {
    const KEY: &str = "sk-4f9c/1+7a==";
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str| dir.path().join(name);
    let (record, json) = (file("r.json"), file("report.json"));
    let talkative = |path: &str, _: &Value| match path {
        "/v1/models" => (200, json!({ "data": [{ "id": "tiny", "key": KEY }] }).to_string()),
        "/version" => (200, json!({ "version": format!("1 for {KEY}") }).to_string()),
        "/v1/completions" => {
            (400, json!({ "error": format!("Bearer {KEY} is refused") }).to_string())
        }
        _ => (500, format!("<html>{KEY}")),
    };
    let model = model();
    let probe = |url: &str, key: &str, more: &[&std::ffi::OsStr]| {
        let out = std::process::Command::new(cli::binary())
            .env("PROBE_KEY", key)
            .args(["probe", url, "--lengths", "2", "--api-key-env", "PROBE_KEY", "--model"])
            .arg(&model)
            .args(more)
            .output()
            .expect("assay starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let files = ["--record".as_ref(), record.as_os_str(), "--json".as_ref(), json.as_os_str()];
    let (code, stdout, stderr) = probe(&serve(Arc::new(talkative)), KEY, &files);
    assert_eq!(code, Some(3), "{stdout}{stderr}");
    let written = |path| std::fs::read_to_string(path).expect("a file");
    for text in [&stdout, &stderr, &written(&record), &written(&json)] {
        assert!(!text.contains(KEY) && !text.contains("4f9c"), "{text}");
    }
    assert!(stdout.contains("***") && written(&record).contains("1 for ***"), "{stdout}");

    // One that answers in words.
    let (code, _, stderr) = probe(&serve(Arc::new(|_, _| (200, KEY.into()))), KEY, &[]);
    assert!(code == Some(2) && stderr.contains("***") && !stderr.contains("4f9c"), "{stderr}");
    for (key, said) in
        [("short", "5 characters"), ("", "0 characters"), ("long enough\n", "white space")]
    {
        let (code, _, stderr) = probe("http://127.0.0.1:9", key, &[]);
        assert!(code == Some(2) && stderr.contains(said), "{key:?}: {stderr}");
    }
}
