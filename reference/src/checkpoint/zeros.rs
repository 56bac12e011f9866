//! What GPTQ data say about the format that their metadata name.
//!
//! The formats differ in the zero points alone: v1 stores one less than the real one, v2 the zero point
//! itself. A label that is wrong moves every weight by its scale, and nothing fails. Two things tell:
//!
//! - a symmetric layer stores one value everywhere, 2^(bits-1) - 1 in v1 and 2^(bits-1) in v2;
//! - of an asymmetric layer the stored zero points alone say nothing, since any value is possible in
//!   either format. With the codes they do: weights are centred on 0, so that the mean code of a group
//!   is its real zero point, and exceeds the stored one by 1 in v1 and by 0 in v2. That is evidence and
//!   no proof: it is given with its standard error, and is not decided within six of those.
//!
//! Source: <https://github.com/vllm-project/vllm/issues/38966>

use super::{Checkpoint, Config, Expected, Files, GptqFormat, Quantization, list};
use crate::error::{Error, Result};
use crate::ops::packed::{self, Reading};
use crate::tensor::Tensor;

/// What one layer's zero points and codes say.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredZeros {
    /// How often each value is stored, from 0 to 2^bits - 1.
    pub counts: Vec<usize>,
    /// By how much a group's mean code exceeds its stored zero point, on average.
    pub lean: f64,
    /// The standard error of that, over groups and columns.
    pub error: f64,
    /// The format that they are of; `None` when they do not decide.
    pub format: Option<GptqFormat>,
}

/// Standard errors within which nothing is decided: beyond six lies one normal value in 1e9.
const CONFIDENCE: f64 = 6.0;

impl StoredZeros {
    /// Reads the tensors of one layer.
    ///
    /// # Errors
    /// When they do not fit one another.
    pub fn read(
        bits: u32,
        qweight: &Tensor,
        qzeros: &Tensor,
        g_idx: &Tensor,
    ) -> Result<StoredZeros> {
        let (n, k, groups) = (qweight.cols(), g_idx.len(), qzeros.rows());
        let fits = packed::values(qweight.rows(), bits).is_some_and(|v| v >= k)
            && packed::values(qzeros.cols(), bits).is_some_and(|v| v >= n)
            && (0..k).all(|i| (0..groups as i64).contains(&g_idx.get_i64(i)));
        if !fits {
            let what = format!(
                "{:?} does not fit g_idx {:?} and qzeros {:?} at {bits} bits",
                qweight.shape(),
                g_idx.shape(),
                qzeros.shape()
            );
            return Err(Error::arg("gptq_dequant", "qweight", what));
        }
        let reading = Reading::plain(bits);
        let zero = |g: usize, c: usize| {
            reading.value(c, |w| qzeros.get_i64(g * qzeros.cols() + w)) as usize
        };
        let (mut sums, mut rows) = (vec![0.0; groups * n], vec![0.0; groups]);
        for i in 0..k {
            let g = g_idx.get_i64(i) as usize;
            rows[g] += 1.0;
            for (c, sum) in sums[g * n..(g + 1) * n].iter_mut().enumerate() {
                *sum += reading.value(i, |w| qweight.get_i64(w * n + c)) as f64;
            }
        }
        let mut counts = vec![0; 1 << bits];
        let mut leans = Vec::with_capacity(groups * n);
        for g in 0..groups {
            for c in 0..n {
                let stored = zero(g, c);
                counts[stored] += 1;
                if rows[g] > 0.0 {
                    leans.push(sums[g * n + c] / rows[g] - stored as f64);
                }
            }
        }
        let count = leans.len() as f64;
        let lean = leans.iter().sum::<f64>() / count;
        let variance = leans.iter().map(|l| (l - lean).powi(2)).sum::<f64>() / (count - 1.0);
        let error = (variance / count).sqrt();
        let format = format_of(&counts, bits).or_else(|| decided(lean, CONFIDENCE * error));
        Ok(StoredZeros { counts, lean, error, format })
    }

    /// The value that every zero point has, if there is one.
    pub fn single(&self) -> Option<usize> {
        single(&self.counts)
    }
}

fn single(counts: &[usize]) -> Option<usize> {
    let mut stored = counts.iter().enumerate().filter(|(_, n)| **n > 0);
    let first = stored.next().map(|(value, _)| value);
    first.filter(|_| stored.next().is_none())
}

/// By a single value that is one format's symmetric zero point.
fn format_of(counts: &[usize], bits: u32) -> Option<GptqFormat> {
    let middle = 1usize << (bits - 1);
    match single(counts)? {
        value if value + 1 == middle => Some(GptqFormat::V1),
        value if value == middle => Some(GptqFormat::V2),
        _ => None,
    }
}

/// By a lean that is known to within `radius`: nearer to 1, or to 0, and to nothing else.
fn decided(lean: f64, radius: f64) -> Option<GptqFormat> {
    let within = |center: f64| (lean - center).abs() + radius < 0.5;
    match (within(1.0), within(0.0)) {
        (true, _) => Some(GptqFormat::V1),
        (_, true) => Some(GptqFormat::V2),
        _ => None,
    }
}

/// A layer whose data contradict the label.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// The layer: `model.layers.0.mlp.down_proj`.
    pub layer: String,
    /// What its data say.
    pub zeros: StoredZeros,
}

/// GPTQ layers whose zero points and codes are of the other format than the config names. Reads every
/// quantised weight.
///
/// # Errors
/// When a tensor is missing or does not fit the others.
pub fn contradictions(checkpoint: &Checkpoint) -> Result<Vec<Contradiction>> {
    let Some(Quantization::Gptq(q)) = &checkpoint.config().quantization else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for name in checkpoint.names().filter(|n| n.ends_with(".qzeros")) {
        let layer = name.trim_end_matches(".qzeros");
        let part = |part: &str| checkpoint.tensor(&format!("{layer}.{part}"));
        let zeros =
            StoredZeros::read(q.bits, &part("qweight")?, &part("qzeros")?, &part("g_idx")?)?;
        if zeros.format.is_some_and(|f| f != q.format) {
            found.push(Contradiction { layer: layer.to_string(), zeros });
        }
    }
    Ok(found)
}

/// Whether every zero point of a layer is what the other format stores for a symmetric one.
pub(super) fn is_other_symmetric(bits: u32, format: GptqFormat, qzeros: &Tensor) -> bool {
    let other = (1u32 << (bits - 1)) - u32::from(format == GptqFormat::V2);
    let values = packed::values(qzeros.cols(), bits).unwrap_or(0);
    let is_other = |row: usize, i: usize| {
        let word = |w: usize| qzeros.get_i64(row * qzeros.cols() + w);
        Reading::plain(bits).value(i, word) == i64::from(other)
    };
    values > 0 && (0..qzeros.rows()).all(|row| (0..values).all(|i| is_other(row, i)))
}

/// A warning of GPTQ layers whose zero points are all what the other format stores for a symmetric one: the
/// label is wrong, or the layer is.
pub(super) fn wrong_label(config: &Config, files: &Files, expected: &[Expected]) -> Option<String> {
    let Some(Quantization::Gptq(q)) = &config.quantization else { return None };
    let other = |t: &Tensor| is_other_symmetric(q.bits, q.format, t);
    let names: Vec<&str> = expected
        .iter()
        .map(|e| e.name.as_str())
        .filter(|n| n.ends_with(".qzeros") && files.get(n).is_some_and(other))
        .collect();
    if names.is_empty() {
        return None;
    }
    let middle = 1u32 << (q.bits - 1);
    let (label, means, stored, truth) = match q.format {
        GptqFormat::V1 => ("gptq (v1)", "less one", middle, "gptq_v2"),
        GptqFormat::V2 => ("gptq_v2", "as they are", middle - 1, "gptq (v1)"),
    };
    Some(format!(
        "{}: checkpoint_format says {label}, which stores zero points {means}, but every one is \
         {stored}, as {truth} stores a symmetric one: the label contradicts the data; read as labelled, \
         each weight is off by its scale",
        list(names)
    ))
}
