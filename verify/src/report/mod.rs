//! Reports: text for people, JSON for machines (docs/json_report.md), HTML for sharing, JUnit XML for CI.

mod audit;
mod bisect;
mod gate;
pub mod html;
mod json;
pub mod junit;
mod probe;
pub mod svg;
mod table;
pub mod text;

pub use json::{Envelope, check_writable, write_json, write_text};
pub use table::Table;
