//! Helpers for the promises in `tests/`.
