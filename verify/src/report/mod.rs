//! Reports: text for people, JSON for machines (docs/json_report.md), HTML for sharing.

pub mod html;
mod json;
mod table;
pub mod text;

pub use json::{Envelope, check_writable, write_json, write_text};
pub use table::Table;
