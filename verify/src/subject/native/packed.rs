//! What the quantised formats share: bit fields in words, and w = (q - z) s.

use assay_reference::{Dtype, Result, Tensor};
use serde_json::Value;

use super::run::Run;
use super::scalar::{Store, floats};

/// Where a format's tensors are: in the case, or under a prefix in it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) run: Run<'a>,
    /// What stands before each argument's name.
    pub(super) prefix: &'a str,
    /// The params of the dequantisation.
    pub(super) params: &'a Value,
}

impl<'a> Source<'a> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.run.case.tensors.contains_key(&format!("{}{name}", self.prefix))
    }

    pub(super) fn arg(&self, name: &str) -> Result<&'a Tensor> {
        self.run.arg(&format!("{}{name}", self.prefix))
    }

    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>> {
        floats(self.arg(name)?, name)
    }

    /// Packed words, or any other 32-bit integers, as they lie in memory.
    pub(super) fn words(&self, name: &str) -> Result<Vec<u32>> {
        let t = self.arg(name)?;
        if t.dtype() != Dtype::I32 {
            return Ok((0..t.len()).map(|i| t.get_i64(i) as u32).collect());
        }
        let four = |c: &[u8]| u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        Ok(t.bytes().chunks_exact(4).map(four).collect())
    }

    /// The group of each of `k` inputs: from an index if there is one, else in sequence.
    pub(super) fn groups(&self, k: usize, index: &str) -> Result<Vec<usize>> {
        if self.has(index) && !self.run.is("g_idx_ignored") {
            return Ok(self.words(index)?.into_iter().map(|g| g as usize).collect());
        }
        let size = self.group_size(k);
        Ok((0..k).map(|i| i / size).collect())
    }

    pub(super) fn group_size(&self, k: usize) -> usize {
        match self.params["group_size"].as_i64() {
            Some(size) if size > 0 => size as usize,
            _ => k.max(1),
        }
    }
}

/// In which order the values of a word lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// The first in the lowest bits.
    Low,
    /// The first in the highest bits.
    Top,
    /// Value j in this slot of eight.
    Of([usize; 8]),
}

/// Slot i of AWQ's words holds value AWQ\[i\].
pub(super) const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// The slot of each value under AWQ's order.
pub(super) const AWQ_SLOT: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Slots {
    /// By a fault's key.
    pub(super) fn misread(key: Option<&str>) -> Slots {
        match key {
            None => Slots::Low,
            Some("from the top") => Slots::Top,
            Some(_) => Slots::Of(AWQ_SLOT),
        }
    }
}

/// How a stream of packed values is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) bits: usize,
    pub(super) slots: Slots,
    /// Whether bits that lie in a second word are missing.
    pub(super) torn: bool,
}

impl Fields {
    /// Value i of a stream whose words `word` gives.
    pub(super) fn get(&self, i: usize, word: impl Fn(usize) -> u32) -> u32 {
        // Three bits fill whole words only together.
        let run = if 32 % self.bits == 0 { 32 / self.bits } else { 32 };
        let i = match self.slots {
            Slots::Low => i,
            Slots::Top => i / run * run + (run - 1 - i % run),
            Slots::Of(slot) => i / 8 * 8 + slot[i % 8],
        };
        let (first, shift) = (i * self.bits / 32, i * self.bits % 32);
        let mut value = word(first) >> shift;
        if shift + self.bits > 32 && !self.torn {
            value |= word(first + 1) << (32 - shift);
        }
        value & (u32::MAX >> (32 - self.bits))
    }
}

/// 32-bit words that a stream of `n` values needs.
pub(super) fn word_count(n: usize, bits: usize) -> usize {
    (n * bits).div_ceil(32)
}

/// A quantised weight taken apart, in its format's own layout [rows, cols].
pub(super) struct Quantised {
    /// Inputs.
    pub(super) k: usize,
    /// Outputs.
    pub(super) n: usize,
    /// Whether rows are outputs ([N, K]) and not inputs.
    pub(super) out_in: bool,
    /// Values, signed as the format has them.
    pub(super) q: Vec<f32>,
    /// Zero points of each value.
    pub(super) z: Vec<f32>,
    /// Scales of each value.
    pub(super) s: Vec<f32>,
    /// Inputs of a group, if groups are in sequence.
    pub(super) group_size: Option<usize>,
    /// The dtype that a weight passes through before it is stored.
    pub(super) via: Option<Dtype>,
}

impl Quantised {
    /// The weight in f32, in the format's own layout.
    pub(super) fn weight(&self, run: &Run<'_>) -> Vec<f32> {
        let negated = run.is("negated");
        let prescaled = run.is("zero_point_prescaled");
        let divided = run.is("scale_divided");
        let parts = self.q.iter().zip(&self.z).zip(&self.s);
        let mut out: Vec<f32> = parts
            .map(|((q, z), s)| match () {
                () if negated => (z - q) * s,
                () if divided => q / s,
                () if prescaled => q * s - run.stored(z * s),
                () => (q - z) * s,
            })
            .collect();
        run.amplify("weight", &mut out);
        if let Some(via) = self.via {
            out.iter_mut().for_each(|w| *w = Store::Nearest.round(via, *w));
        }
        out
    }

    /// The shape of the weight.
    pub(super) fn shape(&self) -> [usize; 2] {
        if self.out_in { [self.n, self.k] } else { [self.k, self.n] }
    }
}

/// The quantised formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Gptq,
    Awq,
    CompressedTensors,
    Fp8,
}

impl Format {
    /// Takes a weight apart.
    pub(super) fn read(self, source: &Source<'_>) -> Result<Quantised> {
        match self {
            Format::Gptq => super::gptq::read(source),
            Format::Awq => super::awq::read(source),
            Format::CompressedTensors => super::ct::read(source),
            Format::Fp8 => super::fp8::read(source),
        }
    }
}
