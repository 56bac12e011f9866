//! The file: one JSON object a line, each chained to the one before by its hash.
//!
//! ```text
//! {"assay_ledger":1}
//! {"hash":"<sha256>","entry":{...}}
//! {"entries":1,"head":"<sha256>"}
//! ```
//!
//! A line's hash is the sha256 of the hash before it (64 hexadecimal digits; before the first entry,
//! the sha256 of the first line) and the bytes of its entry. Every byte of the file is either fixed, a
//! hash that is compared, or hashed: no edit goes unseen, and no prefix of a ledger is a ledger.

use std::path::Path;

use assay_hip::sha256;

use super::{Entry, LedgerError};

/// Version of the format.
pub(super) const VERSION: u64 = 1;
/// Longest line that is read.
const MAX_LINE: usize = 1 << 20;
/// Largest file that is read.
pub(super) const MAX_FILE: usize = 64 << 20;

const HASH: &str = "{\"hash\":\"";
const ENTRY: &str = "\",\"entry\":";
const ENTRIES: &str = "{\"entries\":";

/// A ledger that was read whole and found sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// The file without its trailer.
    body: Vec<u8>,
    head: String,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::new()
    }
}

fn first_line() -> String {
    format!("{{\"assay_ledger\":{VERSION}}}")
}

fn link(head: &str, entry: &[u8]) -> String {
    sha256([head.as_bytes(), entry].concat())
}

impl Ledger {
    /// Without entries.
    pub fn new() -> Ledger {
        let line = first_line();
        let head = sha256(&line);
        Ledger { entries: Vec::new(), body: (line + "\n").into_bytes(), head }
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The last link of the chain: it stands for everything before it.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Adds an entry at the end.
    ///
    /// # Errors
    /// [`LedgerError::TooLarge`] when the entry or the ledger exceeds what is read back.
    pub fn push(&mut self, entry: Entry, path: &Path) -> Result<(), LedgerError> {
        let too_large = |what: String| LedgerError::TooLarge { path: path.to_owned(), what };
        let json = serde_json::to_string(&entry)
            .map_err(|e| too_large(format!("the entry cannot be written as JSON: {e}")))?;
        let head = link(&self.head, json.as_bytes());
        let line = format!("{HASH}{head}{ENTRY}{json}}}\n");
        if line.len() > MAX_LINE {
            return Err(too_large(format!("an entry of {} bytes exceeds {MAX_LINE}", line.len())));
        }
        if self.body.len() + line.len() + MAX_TRAILER > MAX_FILE {
            return Err(too_large(format!("the ledger would exceed {MAX_FILE} bytes")));
        }
        self.body.extend_from_slice(line.as_bytes());
        self.entries.push(entry);
        self.head = head;
        Ok(())
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let trailer = trailer(self.entries.len(), &self.head);
        [&self.body, trailer.as_bytes(), b"\n"].concat()
    }

    /// Reads a file's bytes; `path` is for messages.
    ///
    /// # Errors
    /// When they are not exactly what [`Ledger::to_bytes`] gave.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Ledger, LedgerError> {
        let damaged = |line: usize, what: &str| LedgerError::Damaged {
            path: path.to_owned(),
            line,
            what: what.into(),
        };
        let mut lines = bytes.split_inclusive(|&b| b == b'\n');
        let first = lines.next().ok_or_else(|| damaged(1, "the file is empty"))?;
        let mut ledger = Ledger::new();
        if first != ledger.body {
            return Err(match newer(first) {
                Some(version) => LedgerError::Newer { path: path.to_owned(), version },
                None => damaged(1, "is not the first line of a ledger"),
            });
        }
        for (i, line) in lines.by_ref().enumerate() {
            let number = i + 2;
            if line.len() > MAX_LINE {
                return Err(damaged(number, "is longer than any that assay writes"));
            }
            let Some(line) = line.strip_suffix(b"\n") else {
                return Err(damaged(number, "ends in the middle"));
            };
            if line.starts_with(ENTRIES.as_bytes()) {
                if line != trailer(ledger.entries.len(), &ledger.head).as_bytes() {
                    return Err(damaged(number, "the trailer does not fit the lines before it"));
                }
                return match lines.next() {
                    None => Ok(ledger),
                    Some(_) => Err(damaged(number + 1, "there is more after the trailer")),
                };
            }
            ledger.read_line(line).map_err(|what| damaged(number, &what))?;
        }
        let last = ledger.entries.len() + 2;
        Err(damaged(last, "the trailer is missing, so that entries may be too"))
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), String> {
        let parts = line.strip_prefix(HASH.as_bytes()).and_then(|rest| {
            let (hash, rest) = rest.split_at_checked(64)?;
            Some((hash, rest.strip_prefix(ENTRY.as_bytes())?.strip_suffix(b"}")?))
        });
        let (hash, json) = parts.ok_or("is no entry of a ledger")?;
        let head = link(&self.head, json);
        if hash != head.as_bytes() {
            return Err("its hash does not fit its content and the lines before it".into());
        }
        let entry = serde_json::from_slice(json).map_err(|e| format!("is no entry: {e}"))?;
        self.body.extend_from_slice(line);
        self.body.push(b'\n');
        self.entries.push(entry);
        self.head = head;
        Ok(())
    }
}

/// Room for the last line.
const MAX_TRAILER: usize = 128;

fn trailer(entries: usize, head: &str) -> String {
    format!("{ENTRIES}{entries},\"head\":\"{head}\"}}")
}

/// The version that a first line states, if it is later than this build's.
fn newer(line: &[u8]) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_slice(line.get(..256).unwrap_or(line)).ok()?;
    value.get("assay_ledger")?.as_u64().filter(|&v| v > VERSION)
}
