//! `embedding`: row ids\[t\] of the table.
//!
//! Shapes: ids \[T\], weight [V, H]; output [T, H]. A copy: exact. An id outside 0..V is refused.
//! Points: `output`.

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Added to every id, modulo V: a fault unless 0.
    pub offset: i64,
    /// Multiplied by sqrt(H), as Gemma does: a fault for Qwen.
    pub scaled: bool,
    /// Only the lower 16 bits of an id are used: a fault.
    pub ids_of_16_bits: bool,
}

/// The op.
#[derive(Debug)]
pub struct Embedding;

impl Op for Embedding {
    const NAME: &'static str = "embedding";
    const SUMMARY: &'static str = "token embedding lookup";
    const ARGS: &'static [ArgSpec] =
        &[ArgSpec::new("ids", "[T] integers"), ArgSpec::new("weight", "[V, H] table")];
    const POINTS: &'static [&'static str] = &["output"];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let ids = need(Self::NAME, tensors, "ids", false)?;
        let weight = need(Self::NAME, tensors, "weight", true)?;
        let &[v, h] = weight.shape() else {
            let what = format!("must be [V, H], is {:?}", weight.shape());
            return Err(Error::arg(Self::NAME, "weight", what));
        };
        if let Some(i) = (0..ids.len()).find(|&i| !(0..v as i64).contains(&ids.get_i64(i))) {
            let what =
                format!("id {} at index {i} is outside the vocabulary 0..{v}", ids.get_i64(i));
            return Err(Error::arg(Self::NAME, "ids", what));
        }
        Ok(OutSpec::output([ids.len(), h]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (ids, weight) = (inputs.req("ids"), inputs.req("weight"));
        let (v, h) = (weight.shape()[0] as i64, weight.cols());
        let rows = ids.shape().iter().product();
        Out::by_rows(tile, rows, |r| {
            let id = if params.ids_of_16_bits { ids.int(r) & 0xffff } else { ids.int(r) };
            let mut row = weight.row((id + params.offset).rem_euclid(v) as usize);
            if params.scaled {
                let by = R::constant((h as f64).sqrt());
                row.iter_mut().for_each(|x| *x = x.mul(by));
            }
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        Vec::new()
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = vec![Fault::new(
            "A100",
            "scaled",
            "embeddings are multiplied by sqrt(hidden)",
            |s: &mut Setup<Self>| s.params.scaled = true,
        )];
        for offset in [1, -1] {
            faults.push(
                Fault::new(
                    "A101",
                    "id_offset",
                    format!("token ids are shifted by {offset}"),
                    move |s: &mut Setup<Self>| s.params.offset = offset,
                )
                .keyed(format!("by {offset}")),
            );
        }
        if tensors.get("weight").is_some_and(|w| w.shape()[0] > 1 << 16) {
            faults.push(Fault::new(
                "A26B",
                "id_16_bit",
                "token ids are cut to 16 bits, so that 65536 and above read other rows",
                |s: &mut Setup<Self>| s.params.ids_of_16_bits = true,
            ));
        }
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A102", residual)
    }
}
