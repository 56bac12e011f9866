//! A case under construction.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

use super::{Generated, Values, generated};

/// A family's name, and whether its errors are not random.
pub(super) type Family = (&'static str, bool);

/// Values of standard deviation 1, or as the op sees them in a model.
pub(super) const UNIT: Family = ("unit", false);
/// Values whose every partial result is exact.
pub(super) const EXACT: Family = ("exact", true);
/// Outlier channels, large biases, huge activations.
pub(super) const OUTLIER: Family = ("outlier", false);
/// NaN, infinities, subnormals, zeros of either sign.
pub(super) const SPECIAL: Family = ("special", true);

/// The dtypes that models store activations in.
pub(super) const STORED: [Dtype; 2] = [Dtype::Bf16, Dtype::F16];

/// A case that gets its tensors one by one. Floating-point tensors have the output's dtype unless said
/// otherwise.
pub(super) struct Draft {
    op: &'static str,
    family: Family,
    label: String,
    seed: u64,
    params: Value,
    dtype: Dtype,
    tensors: Tensors,
}

impl Draft {
    /// Without tensors and with default params.
    pub(super) fn new(
        op: &'static str,
        family: Family,
        label: impl Into<String>,
        dtype: Dtype,
        seed: u64,
    ) -> Draft {
        let label = format!("{} {dtype}", label.into());
        Draft { op, family, label, seed, params: json!({}), dtype, tensors: Tensors::new() }
    }

    /// A source of values of its own.
    pub(super) fn values(&self) -> Values {
        Values::new(self.seed, &format!("{} {} {}", self.op, self.family.0, self.label))
    }

    /// The op's params.
    pub(super) fn params(mut self, params: Value) -> Draft {
        self.params = params;
        self
    }

    /// A tensor of the output's dtype.
    pub(super) fn with(self, name: &str, shape: &[usize], values: &[f64]) -> Draft {
        let dtype = self.dtype;
        self.tensor(name, Tensor::from_f64(dtype, shape, values))
    }

    /// An integer tensor.
    pub(super) fn ints(self, name: &str, shape: &[usize], values: &[i32]) -> Draft {
        self.tensor(name, Tensor::from_i32(shape, values))
    }

    /// Any tensor.
    pub(super) fn tensor(mut self, name: &str, tensor: Tensor) -> Draft {
        self.tensors.insert(name.into(), tensor);
        self
    }

    /// The case.
    pub(super) fn done(self) -> Generated {
        let Draft { op, family, label, seed, params, dtype, tensors } = self;
        generated(op, family, &label, seed, params, dtype, tensors)
    }
}
