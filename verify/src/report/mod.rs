//! Reports: text for people, JSON for machines (docs/json_report.md), JUnit XML for CI.

mod gate;
mod json;
pub mod junit;
mod table;
pub mod text;

pub use json::{Envelope, JSON, check_writable, write_json};
pub use table::Table;
