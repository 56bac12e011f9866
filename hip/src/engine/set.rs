//! The kernels that an engine may launch, each on its backend.

use std::collections::BTreeMap;

use crate::backend::Backend;
use crate::emu::{Compiler, Mode};
use crate::error::Error;
use crate::kernels::{Kernel, kernels};
use crate::matrix::Matrix;

/// The kernels of this crate on one backend each.
#[derive(Clone)]
pub struct Kernels(BTreeMap<&'static str, Backend>);

impl Kernels {
    /// All kernels, compiled for the emulator as for hardware with these matrix instructions; those
    /// that `replaced` names from another source.
    ///
    /// # Errors
    /// When there is no C++ compiler or a source does not compile.
    pub fn emulated(replaced: &BTreeMap<&str, String>, matrix: Matrix) -> Result<Self, Error> {
        let plain = Compiler::find()?;
        let matched = plain.clone().with_matrix(matrix);
        let mut out = BTreeMap::new();
        for kernel in kernels() {
            let source = replaced.get(kernel.name).map_or(kernel.source, String::as_str);
            let has_path = Matrix::builds(source).contains(&matrix);
            let compiler = if has_path { &matched } else { &plain };
            let module = compiler.compile(source, Mode::Plain)?;
            out.insert(kernel.name, Backend::Emulated(module));
        }
        Ok(Kernels(out))
    }

    /// All kernels, on the first HIP device.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn device() -> Result<Self, Error> {
        let device = Backend::device()?;
        Ok(Kernels(kernels().iter().map(|k| (k.name, device.clone())).collect()))
    }

    /// Where a kernel runs.
    #[must_use]
    pub fn backend(&self, kernel: &Kernel) -> Option<&Backend> {
        self.0.get(kernel.name)
    }
}
