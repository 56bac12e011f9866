//! Subjects: what is verified.

pub mod exec;
pub mod native;

use assay_reference::{Case, Result, Tensor};

/// Something that computes an op: a kernel on a backend, a program ([`exec`]), or one of the
/// [`native`] implementations.
pub trait Subject: Sync {
    /// The op that it claims to compute.
    fn op(&self) -> &str;

    /// Whether a case is within its contract.
    fn takes(&self, _case: &Case) -> bool {
        true
    }

    /// Its first output for a case.
    ///
    /// # Errors
    /// When it cannot run the case.
    fn run(&self, case: &Case) -> Result<Tensor>;
}
