//! Helpers for the promises in `tests/`.

pub mod cli;
pub mod damage;
pub mod golden;
pub mod subject;
