//! Cases from the field, emulated: each ends with the right name, each sound twin passes.

#[path = "field_cases/d4.rs"]
mod d4;
#[path = "field_cases/d5.rs"]
mod d5;
#[path = "field_cases/forward.rs"]
mod forward;
