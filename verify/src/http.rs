//! A small HTTP client for servers of models: time limits, a few retries, no redirects, no proxy, and nothing sent
//! to anybody but the address given. Plain http only: a service behind https is reached through a local tunnel.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// The longest answer that is read, bytes: the log-probabilities of 8192 tokens are a tenth of it.
pub(crate) const MAX_BYTES: u64 = 32 << 20;
/// Times that a request is sent when the connection fails or a gateway says that it is busy.
const TRIES: u32 = 3;
/// The pause before the second try; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// Characters that a key has at least: it is replaced wherever it occurs, so it must occur nowhere by chance.
const SHORTEST_KEY: usize = 8;

/// A server.
pub struct Client {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
}

/// What it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// When the status is not 2xx, or the body is no JSON; with the beginning of the body.
    pub fn json(&self, what: &str) -> anyhow::Result<Value> {
        let head: String = String::from_utf8_lossy(&self.body).chars().take(300).collect();
        ensure!(
            (200..300).contains(&self.status),
            "{what}: the server answered {}: {}",
            self.status,
            head.escape_debug()
        );
        serde_json::from_slice(&self.body).map_err(|e| {
            anyhow::anyhow!("{what}: the answer is no JSON ({e}): {}", head.escape_debug())
        })
    }
}

impl Client {
    /// A client of the server at `url` (`http://127.0.0.1:8000`, with or without `/v1`). `key` is sent as a bearer
    /// token and never shown: every answer that holds it has `***` in its place.
    ///
    /// # Errors
    /// When the address is no plain http one, or holds a user, a query or a fragment; when the key is too short to be
    /// told from other text, or is none that a header can hold.
    pub fn new(url: &str, key: Option<String>, limit: Duration) -> anyhow::Result<Client> {
        let shown = || url.escape_debug().to_string();
        if url.starts_with("https://") {
            bail!(
                "{}: https is not supported; give an http address, for instance of an ssh tunnel (ssh -L 8000:localhost:8000 HOST)",
                shown()
            );
        }
        let Some(rest) = url.strip_prefix("http://").filter(|r| !r.is_empty()) else {
            bail!("{}: expected an address like http://127.0.0.1:8000", shown());
        };
        ensure!(
            !rest.contains(['@', '?', '#']) && !rest.contains(char::is_whitespace),
            "expected an address like http://127.0.0.1:8000 without user, query or fragment; give a key with --api-key-env"
        );
        if let Some(key) = &key {
            let length = key.chars().count();
            ensure!(
                length >= SHORTEST_KEY,
                "--api-key-env: the key has {length} characters; one of fewer than {SHORTEST_KEY} occurs in answers by chance, and could not be kept out of what is shown and recorded"
            );
            ensure!(
                key.chars().all(|c| c.is_ascii_graphic()),
                "--api-key-env: the key holds white space or what is not ASCII, which no header can hold; is a line end at its end?"
            );
        }
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(limit))
            .timeout_connect(Some(limit.min(Duration::from_secs(10))))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .proxy(None)
            .user_agent(concat!("assay/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Client { agent: config.into(), base, key })
    }

    /// A client with the key that the environment variable `name` holds.
    ///
    /// # Errors
    /// As [`Client::new`], or when the variable is not set.
    pub fn from_env(url: &str, name: Option<&str>, limit: Duration) -> anyhow::Result<Client> {
        let key = |v| {
            std::env::var(v).with_context(|| format!("--api-key-env {v}: this variable is not set"))
        };
        Client::new(url, name.map(key).transpose()?, limit)
    }

    /// The address, as far as it is used.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends `body` to `path` (`/v1/completions`).
    ///
    /// # Errors
    /// When the server cannot be reached within the time limit, redirects, or answers too much. An error status is
    /// no error: it is evidence.
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Reply> {
        let text = body.to_string();
        self.tried(path, || {
            let request = self.agent.post(format!("{}{path}", self.base));
            let request = request.header("Content-Type", "application/json");
            match &self.key {
                Some(key) => request.header("Authorization", format!("Bearer {key}")).send(&text),
                None => request.send(&text),
            }
        })
    }

    /// Gets `path` (`/v1/models`).
    ///
    /// # Errors
    /// As [`Client::post`].
    pub fn get(&self, path: &str) -> anyhow::Result<Reply> {
        self.tried(path, || {
            let request = self.agent.get(format!("{}{path}", self.base));
            match &self.key {
                Some(key) => request.header("Authorization", format!("Bearer {key}")).call(),
                None => request.call(),
            }
        })
    }

    fn tried(
        &self,
        path: &str,
        send: impl Fn() -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> anyhow::Result<Reply> {
        let mut pause = PAUSE;
        for attempt in 1..=TRIES {
            let last = attempt == TRIES;
            match send() {
                Ok(mut response) => {
                    let status = response.status().as_u16();
                    if (300..400).contains(&status) {
                        bail!(
                            "{}{path}: the server redirects ({status}), which is not followed: give the final address",
                            self.base
                        );
                    }
                    // What a gateway says while the server behind it starts or is busy.
                    if !last && matches!(status, 429 | 502 | 503 | 504) {
                        std::thread::sleep(pause);
                        pause *= 2;
                        continue;
                    }
                    let body = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec();
                    return match body {
                        Ok(body) => Ok(Reply { status, body: self.redacted(body) }),
                        Err(e) => Err(self.error(path, &e)),
                    };
                }
                // A request that timed out may still be computed: it is not sent again.
                Err(e @ ureq::Error::Timeout(_)) => return Err(self.error(path, &e)),
                Err(e) if last => return Err(self.error(path, &e)),
                Err(_) => {
                    std::thread::sleep(pause);
                    pause *= 2;
                }
            }
        }
        bail!("{}{path}: no answer", self.base)
    }

    /// Bytes without the key, which some servers repeat when they refuse it: all that is seen of an answer.
    fn redacted(&self, bytes: Vec<u8>) -> Vec<u8> {
        let Some(key) = &self.key else { return bytes };
        if !bytes.windows(key.len()).any(|w| w == key.as_bytes()) {
            return bytes;
        }
        String::from_utf8_lossy(&bytes).replace(key.as_str(), "***").into_bytes()
    }

    fn error(&self, path: &str, e: &ureq::Error) -> anyhow::Error {
        let text =
            format!("{}{path}: {e}; is the server running, and is this its address?", self.base);
        let shown = self.redacted(text.into_bytes());
        anyhow::anyhow!("{}", String::from_utf8_lossy(&shown))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}, key {})", self.base, if self.key.is_some() { "***" } else { "none" })
    }
}
