//! Replay: a failing case kept in a file, with what the subject gave for it, so that the judgement can
//! be repeated anywhere and the kernel run on it again.
//!
//! - [`Replay`]: the file (docs/case_format.md);
//! - [`Bench`]: a kernel source, compiled, on which single cases are tried;
//! - [`capture`]: the smallest case of a suite that shows what its report found;
//! - [`shrink`]: a smaller case that still shows it.

mod bench;
mod crop;
mod file;
mod shrink;
#[cfg(test)]
mod tests;

pub use bench::{Bench, Trial, capture};
pub use file::Replay;
pub use shrink::{Shrunk, shrink};
