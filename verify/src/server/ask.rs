//! What is asked of a server: first what it offers, then prompts on both sides of where kernels change, the same
//! request again and again, alone and beside others, and prompts whose beginning it has seen.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};

use super::exchange::{Exchange, STOPPED};
use crate::http::Client;

/// Prompt lengths at which kernels and tiles change: rows 1, 8, 16, 24, 32, 48, 50 and 64 (GPTQ's fused kernels, skinny GEMMs),
/// blocks of 16 and 32 keys, and one to either side.
pub const LENGTHS: &[usize] =
    &[1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 48, 49, 50, 51, 63, 64, 65];

/// Answers in a row that did not come before no more is asked.
const GIVE_UP: usize = 3;
/// Requests that were not sent which are named.
const NAMED: usize = 8;

/// What to ask.
#[derive(Clone, Debug)]
pub struct Questions {
    /// Token ids of the longest prompt; the others are its beginnings.
    pub ids: Vec<u32>,
    /// Their text, where there is a tokenizer, for servers that take no ids: `texts[n]` is that of the first n ids, if it
    /// is read back as these.
    pub texts: Vec<Option<String>>,
    /// Prompt lengths.
    pub lengths: Vec<usize>,
    /// Tokens to generate where decoding is looked at.
    pub generate: usize,
    /// Times that one request is repeated.
    pub repeats: usize,
    /// Requests at a time in the batch.
    pub batch: usize,
    /// A conversation, where there is a chat template.
    pub messages: Option<Value>,
    /// The model's name at the server.
    pub served_model: Option<String>,
    /// When to stop asking.
    pub until: Instant,
}

/// How a server tells log-probabilities, the most telling first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// vLLM's `prompt_logprobs`: every position of a prompt, with rivals.
    Prompt,
    /// `echo` with `logprobs`: the same, as OpenAI's completions had it.
    Echo,
    /// `logprobs` of what is generated, with token ids.
    Generated,
    /// The same without anything that OpenAI's servers do not know.
    Bare,
    /// None.
    Nothing,
}

struct Asking<'a> {
    client: &'a Client,
    q: &'a Questions,
    model: String,
    form: Form,
    /// Whether prompts may be token ids.
    ids: bool,
    exchanges: Vec<Exchange>,
    /// Requests in a row without an answer.
    silent: usize,
    /// Names of what was not asked any more.
    unasked: Vec<String>,
    progress: &'a mut dyn FnMut(usize, usize, &str),
}

/// Asks everything. `progress` hears (requests so far, requests in all, what).
///
/// # Errors
/// When the server cannot be reached at all.
pub fn ask(
    client: &Client,
    q: &Questions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> anyhow::Result<Vec<Exchange>> {
    let mut a = Asking {
        client,
        q,
        model: String::new(),
        form: Form::Prompt,
        ids: true,
        exchanges: Vec::new(),
        silent: 0,
        unasked: Vec::new(),
        progress,
    };
    a.begin()?;
    a.discover();
    a.lengths();
    a.decode();
    a.repeats();
    a.batch();
    a.cached();
    a.chat();
    a.stopped();
    Ok(a.exchanges)
}

impl Asking<'_> {
    fn begin(&mut self) -> anyhow::Result<()> {
        let models = self.send("models", "GET", "/v1/models", Value::Null);
        if let Some(e) = &models.error {
            anyhow::bail!("{e}");
        }
        let first = models.response.pointer("/data/0/id").and_then(Value::as_str);
        let name = self.q.served_model.clone().or_else(|| first.map(str::to_owned));
        ensure!(
            models.status != 401 && models.status != 403,
            "/v1/models: the server wants a key (it answered {}): give --api-key-env",
            models.status
        );
        let Some(name) = name else {
            anyhow::bail!(
                "/v1/models: names no model (the server answered {}); is this an OpenAI-compatible server? If so give --served-model",
                models.head()
            );
        };
        self.model = name;
        self.send("version", "GET", "/version", Value::Null);
        Ok(())
    }

    /// Whether there is no use in asking on.
    fn over(&self) -> bool {
        self.silent >= GIVE_UP || Instant::now() >= self.q.until
    }

    fn send(&mut self, name: &str, method: &str, path: &str, request: Value) -> Exchange {
        let about = self.about();
        (self.progress)(self.exchanges.len(), about, name);
        let exchange = exchange(self.client, name, method, path, request);
        self.keep(exchange)
    }

    fn keep(&mut self, exchange: Exchange) -> Exchange {
        self.silent = if exchange.error.is_some() { self.silent + 1 } else { 0 };
        self.exchanges.push(exchange.clone());
        exchange
    }

    /// About how many requests there will be.
    fn about(&self) -> usize {
        12 + self.q.lengths.len() + self.q.repeats + self.q.batch
    }

    /// The body of a completion of the first `n` ids; `None` where it cannot be asked.
    fn body(&self, n: usize, generate: usize, form: Form) -> Option<Value> {
        let prompt = match self.ids {
            true => json!(self.q.ids.get(..n)?),
            false => json!(self.q.texts.get(n)?.as_deref()?),
        };
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": generate, "temperature": 0, "seed": 0,
        });
        match form {
            Form::Prompt => {
                body["prompt_logprobs"] = json!(3);
                body["logprobs"] = json!(3);
                body["return_token_ids"] = json!(true);
                body["return_tokens_as_token_ids"] = json!(true);
            }
            Form::Echo => {
                body["echo"] = json!(true);
                body["logprobs"] = json!(3);
            }
            Form::Generated => {
                body["logprobs"] = json!(3);
                body["return_token_ids"] = json!(true);
                body["return_tokens_as_token_ids"] = json!(true);
            }
            Form::Bare => body["logprobs"] = json!(3),
            Form::Nothing => body["return_token_ids"] = json!(true),
        }
        Some(body)
    }

    /// A completion. When log-probabilities fail on the server's side, the same is asked without: an answer then says that
    /// they could not be told.
    fn complete(&mut self, name: &str, n: usize, generate: usize, form: Form) -> Option<Exchange> {
        let body = self.body(n, generate, form)?;
        if self.over() {
            self.unasked.push(name.into());
            return None;
        }
        let e = self.send(name, "POST", "/v1/completions", body);
        if e.failed_inside() && form != Form::Nothing && !self.over() {
            let mut plain = self.body(n, generate, Form::Nothing)?;
            if let Some(fields) = plain.as_object_mut() {
                fields.remove("return_token_ids");
            }
            self.send(&format!("{name}, without logprobs"), "POST", "/v1/completions", plain);
        }
        Some(e)
    }

    /// Finds out in which form the server tells log-probabilities. One that fails on the server's side may be what it does not
    /// offer, or numbers that it cannot write: if no other form works, it is the one to go on with.
    fn discover(&mut self) {
        let n = self.q.ids.len().min(12);
        let forms = [Form::Prompt, Form::Echo, Form::Generated, Form::Bare, Form::Nothing];
        let mut failed = None;
        for ids in [true, false] {
            self.ids = ids;
            for form in forms {
                let generate = if form == Form::Echo { 1 } else { 4 };
                let name = format!("offers {}", words(form));
                let Some(e) = self.complete(&name, n, generate, form) else { continue };
                if e.failed_inside() {
                    failed.get_or_insert(form);
                }
                if e.ok() && offers(&e.response, form) {
                    self.form = failed.filter(|_| form == Form::Nothing).unwrap_or(form);
                    return;
                }
            }
        }
        self.form = Form::Nothing;
    }

    fn lengths(&mut self) {
        self.complete("the whole prompt", self.q.ids.len(), 1, self.form);
        for &n in &self.q.lengths.clone() {
            if n < self.q.ids.len() {
                self.complete(&format!("length {n}"), n, 1, self.form);
            }
        }
    }

    /// The form for what is generated: without the prompt's, which keeps some servers from using their cache.
    fn generated(&self) -> Form {
        match self.form {
            Form::Prompt | Form::Echo => Form::Generated,
            other => other,
        }
    }

    fn decode(&mut self) {
        for n in [12, 50] {
            if n <= self.q.ids.len() {
                self.complete(&format!("decode after {n}"), n, self.q.generate, self.generated());
            }
        }
    }

    fn repeats(&mut self) {
        let n = self.q.ids.len().min(40);
        for i in 1..=self.q.repeats {
            self.complete(&format!("repeat {i}"), n, 4, self.form);
        }
    }

    /// The same request many times at once.
    fn batch(&mut self) {
        let n = self.q.ids.len().min(40);
        if self.q.batch == 0 {
            return;
        }
        let Some(body) = self.body(n, 4, self.form) else { return };
        if self.over() {
            self.unasked.push(format!("batch of {}", self.q.batch));
            return;
        }
        let about = self.about();
        (self.progress)(self.exchanges.len(), about, "batch");
        let client = self.client;
        let all: Vec<Exchange> = std::thread::scope(|scope| {
            let one = |i: usize| {
                let body = body.clone();
                let name = format!("batch {i}");
                scope.spawn(move || exchange(client, &name, "POST", "/v1/completions", body))
            };
            let handles: Vec<_> = (1..=self.q.batch).map(one).collect();
            handles.into_iter().filter_map(|h| h.join().ok()).collect()
        });
        for e in all {
            self.keep(e);
        }
    }

    /// Beginnings and continuations of what the server has just seen, on both sides of its blocks.
    fn cached(&mut self) {
        let form = self.generated();
        let all = self.q.ids.len();
        self.complete("cache, first", all.min(80), 1, form);
        for n in [32, 33, 47, 48, 64, 80, all] {
            if n <= all {
                self.complete(&format!("cache {n}"), n, 2, form);
            }
        }
    }

    fn chat(&mut self) {
        let Some(messages) = &self.q.messages else { return };
        if self.over() {
            self.unasked.push("chat".into());
            return;
        }
        let messages = messages.clone();
        let render =
            json!({ "model": self.model, "messages": messages, "add_generation_prompt": true });
        self.send("tokenize_chat", "POST", "/tokenize", render);
        if let Some(text) = self.q.texts.last().cloned().flatten() {
            let body = json!({ "model": self.model, "prompt": text, "add_special_tokens": false });
            self.send("tokenize", "POST", "/tokenize", body);
        }
        let mut body = json!({
            "model": self.model, "messages": messages, "max_tokens": 8, "temperature": 0, "seed": 0,
            "logprobs": true, "top_logprobs": 3, "return_token_ids": true,
        });
        let e = self.send("chat", "POST", "/v1/chat/completions", body.clone());
        if !e.ok() && e.error.is_none() && !self.over() {
            for field in ["logprobs", "top_logprobs", "return_token_ids", "seed"] {
                if let Some(fields) = body.as_object_mut() {
                    fields.remove(field);
                }
            }
            self.send("chat, without logprobs", "POST", "/v1/chat/completions", body);
        }
    }

    /// Keeps that asking ended early, and what was left out by it: a recording says so too.
    fn stopped(&mut self) {
        if self.unasked.is_empty() {
            return;
        }
        let why = match self.silent >= GIVE_UP {
            true => format!("{GIVE_UP} requests in a row had no answer"),
            false => "the time was over (--max-seconds)".into(),
        };
        let mut names: Vec<String> =
            self.unasked.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
        if self.unasked.len() > NAMED {
            names.push(format!("and {} more", self.unasked.len() - NAMED));
        }
        let error = format!("{why}: not asked any more: {}", names.join(", "));
        self.exchanges.push(Exchange {
            name: STOPPED.into(),
            method: String::new(),
            path: String::new(),
            request: Value::Null,
            status: 0,
            response: Value::Null,
            not_numbers: 0,
            error: Some(error),
        });
    }
}

fn words(form: Form) -> &'static str {
    match form {
        Form::Prompt => "prompt_logprobs",
        Form::Echo => "echo with logprobs",
        Form::Generated => "logprobs",
        Form::Bare => "logprobs alone",
        Form::Nothing => "completions",
    }
}

/// Whether an answer has what its form asked for.
fn offers(response: &Value, form: Form) -> bool {
    let choice = &response["choices"][0];
    let scored = choice["logprobs"]["token_logprobs"].as_array().map_or(0, Vec::len);
    match form {
        Form::Prompt => {
            choice["prompt_logprobs"].is_array() || response["prompt_logprobs"].is_array()
        }
        Form::Echo => scored > 1,
        Form::Generated | Form::Bare => scored > 0,
        Form::Nothing => choice["text"].is_string(),
    }
}

fn exchange(client: &Client, name: &str, method: &str, path: &str, request: Value) -> Exchange {
    let reply = if method == "GET" { client.get(path) } else { client.post(path, &request) };
    let mut e = Exchange {
        name: name.into(),
        method: method.into(),
        path: path.into(),
        request,
        status: 0,
        response: Value::Null,
        not_numbers: 0,
        error: None,
    };
    match reply {
        Ok(reply) => e.answered(reply.status, &reply.body),
        Err(error) => e.error = Some(error.to_string()),
    }
    e
}

/// The longest time that asking may take.
pub fn until(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}
