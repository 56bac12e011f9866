//! Cases from the field: subjects as they were reported, in plain f32 code that shares nothing with the
//! reference, end with the expected name, and their sound twins pass.

#![expect(clippy::print_stdout, reason = "the measured figures are the point of the long runs")]

#[path = "field_cases/d1.rs"]
mod d1;
#[path = "field_cases/d2.rs"]
mod d2;
#[path = "field_cases/d4.rs"]
mod d4;
#[path = "field_cases/d5.rs"]
mod d5;
#[path = "field_cases/forward.rs"]
mod forward;
#[path = "field_cases/plain.rs"]
mod plain;
