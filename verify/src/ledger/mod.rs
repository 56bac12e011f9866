//! The ledger: which build of which kernel passed what, where; and the gate that reads it
//! (docs/ledger.md).
//!
//! - [`Entry`]: what one check found about one build; [`Evidence`]: on which cases, and the bits;
//! - [`Ledger`]: entries in a file, chained by hash and closed by a trailer;
//! - [`Requirement`], [`decide`]: what a service needs and whether it has it; [`Gate`] answers
//!   [`Admit`](assay_hip::Admit);
//! - [`compare`]: two ledgers;
//! - [`mapped_objects`]: what a foreign kernel's process runs.
//!
//! It detects accidents, not forgery: whoever can write the file can write a consistent one.

mod chain;
mod compare;
mod entry;
mod error;
mod evidence;
mod gate;
mod maps;
mod probe;
mod require;
mod store;
mod suite;
#[cfg(test)]
mod tests;
mod time;

pub use chain::Ledger;
pub use compare::{Change, Comparison, compare};
pub use entry::{Entry, Outcome, Result as Ended};
pub use error::LedgerError;
pub use evidence::{Cell, Evidence, cell};
pub use gate::{Decision, Gate, Status, decide, emulated, survey};
pub use maps::{MappedObject, mapped_objects, objects_key};
pub use probe::OP as PROBE_OP;
pub use require::{Limited, Requirement, Requirements};
pub use store::{append, check_writable};
pub use suite::Suite;
