//! Admission: what a serving path asks before it launches a kernel.
//!
//! This crate states the question; who keeps the record of what was verified answers it. There is no
//! implementation here that admits everything: a path that must not be stopped launches with
//! [`Kernel::run`](crate::Kernel) and says so by that.

use assay_reference::Case;

use crate::backend::{Backend, Launched};
use crate::error::Error;
use crate::identity::{BackendKind, Identity};
use crate::kernels::Kernel;
use crate::options::LaunchOptions;

/// Leave to launch one identity, and on what grounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What may run.
    pub identity: Identity,
    /// What it was seen to do: conventions, the simplest first.
    pub conventions: Vec<String>,
    /// The evidence in words, for logs.
    pub evidence: String,
}

/// No leave to launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel} on {backend} is not admitted: {reason}")]
pub struct Refusal {
    /// The kernel.
    pub kernel: String,
    /// Where it would have run.
    pub backend: BackendKind,
    /// Why not, and what to do.
    pub reason: String,
}

/// A record of what was verified, as a serving path sees it.
pub trait Admit {
    /// Whether this identity may be launched.
    ///
    /// # Errors
    /// When there is no passing, current evidence for exactly this identity.
    fn admit(&self, identity: &Identity) -> Result<Admission, Refusal>;
}

/// A kernel on a backend that was admitted there: the one way to launch behind a gate.
pub struct Admitted<'a> {
    kernel: &'a Kernel,
    backend: &'a Backend,
    admission: Admission,
}

impl<'a> Admitted<'a> {
    /// Asks once for `kernel` as `backend` would run it. The identity is taken from the backend
    /// itself, not from the caller.
    ///
    /// # Errors
    /// [`Error::Refused`] when it is not admitted, or when the answer is about something else;
    /// those of [`Backend::identity`].
    pub fn new(
        kernel: &'a Kernel,
        backend: &'a Backend,
        record: &dyn Admit,
    ) -> Result<Self, Error> {
        let identity = backend.identity(kernel)?;
        let admission = record.admit(&identity)?;
        if admission.identity != identity {
            return Err(Error::Refused(Refusal {
                kernel: identity.kernel,
                backend: identity.backend,
                reason: "the admission is for another build".to_owned(),
            }));
        }
        Ok(Self { kernel, backend, admission })
    }

    /// On what grounds it was admitted.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Launches it on a case of its op.
    ///
    /// # Errors
    /// Those of the kernel's launcher.
    pub fn launch(&self, case: &Case, options: &LaunchOptions) -> Result<Launched, Error> {
        (self.kernel.run)(self.backend, case, options)
    }
}
