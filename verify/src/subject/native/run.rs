//! What an op's implementation is given: the case, its choices, and how it stores.

use assay_reference::{Case, Dtype, Error, Result, Tensor};
use serde_json::Value;

use super::scalar::{Store, floats, tensor};
use super::{Chain, Native};

/// One run.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) native: &'a Native,
    pub(super) case: &'a Case,
}

impl<'a> Run<'a> {
    pub(super) fn chain(&self) -> &'a Chain {
        &self.native.chain
    }

    /// The dtype in which the model keeps its tensors.
    pub(super) fn dtype(&self) -> Dtype {
        self.case.dtype
    }

    /// Whether a knob has a value.
    pub(super) fn chose(&self, knob: &str, value: &str) -> bool {
        self.choice(knob) == Some(value)
    }

    /// A knob's value, if it is not left at its default.
    pub(super) fn choice(&self, knob: &str) -> Option<&'a str> {
        let all = &self.native.conventions;
        all.iter().find(|(k, _)| k == knob).map(|(_, v)| v.as_str())
    }

    /// Whether this is what is wrong.
    pub(super) fn is(&self, slug: &str) -> bool {
        self.key(slug).is_some()
    }

    /// The fault's key, if this is what is wrong.
    pub(super) fn key(&self, slug: &str) -> Option<&'a str> {
        self.native.fault.as_ref().filter(|(s, _)| s == slug).map(|(_, k)| k.as_str())
    }

    /// The number in the fault's key.
    pub(super) fn number(&self, slug: &str) -> Option<f64> {
        self.key(slug).and_then(number)
    }

    pub(super) fn count(&self, slug: &str) -> Option<usize> {
        self.number(slug).map(|x| x as usize)
    }

    pub(super) fn refuse<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        Err(Error::Request(format!("native `{}`: {what}", self.case.op)))
    }

    /// An argument.
    pub(super) fn arg(&self, name: &str) -> Result<&'a Tensor> {
        match self.case.tensors.get(name) {
            Some(t) => Ok(t),
            None => self.refuse(format!("argument `{name}` is missing")),
        }
    }

    /// A floating-point argument.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>> {
        floats(self.arg(name)?, name)
    }

    /// An integer argument.
    pub(super) fn ints(&self, name: &str) -> Result<Vec<i64>> {
        let t = self.arg(name)?;
        Ok((0..t.len()).map(|i| t.get_i64(i)).collect())
    }

    /// A field of the params.
    pub(super) fn param(&self, name: &str) -> &'a Value {
        &self.case.params[name]
    }

    /// A number of the params.
    pub(super) fn param_f64(&self, name: &str) -> Option<f64> {
        self.param(name).as_f64()
    }

    /// A required number of the params.
    pub(super) fn required(&self, name: &str) -> Result<f64> {
        match self.param_f64(name) {
            Some(x) => Ok(x),
            None => self.refuse(format!("params need a number `{name}`: {}", self.case.params)),
        }
    }

    /// Rounds to the model's dtype as a correct store does.
    pub(super) fn stored(&self, x: f32) -> f32 {
        Store::Nearest.round(self.dtype(), x)
    }

    /// Rounds to the model's dtype if a knob has a value.
    pub(super) fn stored_if(&self, knob: &str, value: &str, x: f32) -> f32 {
        if self.chose(knob, value) { self.stored(x) } else { x }
    }

    /// The factor of a gain at a point: `output 1.02`, or `1.02` for the output.
    pub(super) fn gain(&self, point: &str) -> Option<f32> {
        let key = self.key("gain")?;
        let here = match key.split_once(' ') {
            Some((p, _)) => p == point,
            None => point == "output",
        };
        if here { number(key).map(|x| x as f32) } else { None }
    }

    /// Multiplies by a gain at a point, if that is what is wrong.
    pub(super) fn amplify(&self, point: &str, values: &mut [f32]) {
        if let Some(gain) = self.gain(point) {
            values.iter_mut().for_each(|x| *x *= gain);
        }
    }

    /// The output, stored as this implementation does.
    pub(super) fn output(&self, shape: &[usize], values: Vec<f32>) -> Result<Tensor> {
        self.output_as(self.dtype(), shape, values)
    }

    /// The output in a dtype of its own.
    pub(super) fn output_as(
        &self,
        dtype: Dtype,
        shape: &[usize],
        mut values: Vec<f32>,
    ) -> Result<Tensor> {
        self.amplify("output", &mut values);
        if self.is("store_via_f16") {
            values.iter_mut().for_each(|x| *x = Store::Nearest.round(Dtype::F16, *x));
        }
        let store = match () {
            () if self.is("truncating_store") => Store::Truncate,
            () if self.is("ties_away_store") => Store::TiesAway,
            () => Store::Nearest,
        };
        values.iter_mut().for_each(|x| *x = store.round(dtype, *x));
        tensor(dtype, shape, &values)
    }
}

/// The first number in a text: 32 of `tile 32`, 1e-5, -1 of `by -1`.
pub(super) fn number(text: &str) -> Option<f64> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))
        .find_map(|word| word.parse::<f64>().ok().filter(|x| x.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn keys_have_numbers() {
        let cases = [
            ("tile 32", 32.0),
            ("1e-5", 1e-5),
            ("by -1", -1.0),
            ("0e0", 0.0),
            ("every 8 unfused", 8.0),
        ];
        for (text, want) in cases {
            assert_eq!(number(text), Some(want), "{text}");
        }
        assert_eq!(number("odd"), None);
    }
}
