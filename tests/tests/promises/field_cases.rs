//! Cases from the field: subjects as they were reported, in plain f32 code that shares nothing with the
//! reference, end with the expected name, and their sound twins pass.

#![expect(clippy::print_stdout, reason = "the measured figures are the point of the long runs")]

mod d1;
mod d2;
mod d4;
mod d5;
mod forward;
mod kernels;
mod plain;
