//! What an audit can find: stable codes, and for each what it means to whoever serves the checkpoint.

mod config;
mod files;
mod quant;
mod server;
mod text;

/// A kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Stable code, `A431`. Codes are never reused.
    pub code: &'static str,
    /// Stable name, `config.head_dim`.
    pub name: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// How it would look when served.
    pub served: &'static str,
    /// What to do.
    pub advice: &'static str,
}

/// Every kind of finding, the most decisive first: files, tensors, config, quantisation, text; then those of a server.
pub fn all() -> impl Iterator<Item = &'static Code> {
    files::CODES
        .iter()
        .chain(config::CODES)
        .chain(quant::CODES)
        .chain(text::CODES)
        .chain(server::CODES)
}

/// The kind called `name`, and its place in [`all`].
pub(super) fn named(name: &str) -> Option<(usize, &'static Code)> {
    all().enumerate().find(|(_, c)| c.name == name)
}
