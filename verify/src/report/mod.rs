//! Reports: text for people, JSON for machines (docs/json_report.md).

mod gate;
mod json;
mod table;
pub mod text;

pub use json::{Envelope, check_writable, write_json};
pub use table::Table;
