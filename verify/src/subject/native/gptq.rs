//! `gptq_dequant`: w\[k, n\] = (q - z) s with q packed along K, z along N, scales by group.

use assay_reference::{Dtype, Result, Tensor};

use super::packed::{Fields, Quantised, Slots, Source, word_count};
use super::run::Run;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[
    ("scale", &["f16", "stored"]),
    ("weight", &["direct", "via_f16", "fma_f16"]),
    ("wrap", &["none", "modulo", "word"]),
];

/// Orders in which a word's values can be misread.
pub(super) const ORDERS: Keys = Keys::OneOf(&["from the top", "in AWQ's order"]);

pub(super) const FAULTS: &[Known] = &[
    ("zero_without_plus_one", Keys::None),
    ("zero_with_plus_one", Keys::None),
    ("g_idx_ignored", Keys::None),
    ("nibble_order", ORDERS),
    ("zero_nibble_order", ORDERS),
    ("packing_axis", Keys::None),
    ("width_misread", Keys::Number),
    ("zero_wrap", Keys::None),
    ("zero_carry", Keys::None),
    ("scale_group_off_by_one", Keys::None),
    ("zero_group_off_by_one", Keys::None),
    ("zero_assumed_symmetric", Keys::None),
    ("negated", Keys::None),
    ("straddle", Keys::None),
    ("zero_straddle", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("minus_one_as_stride", Keys::None),
    ("partial_group_scale", Keys::Any),
    ("zero_of_next_word", Keys::None),
    ("value_bit_flipped", Keys::None),
    ("one_zero_point_off", Keys::None),
    ("zero_point_prescaled", Keys::None),
    ("gain", Keys::Number),
];

/// `gptq_dequant`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let it = read(&Source { run: *run, prefix: "", params: run.params })?;
    run.output(&it.shape(), it.weight(run))
}

/// Takes a weight apart.
pub(super) fn read(source: &Source<'_>) -> Result<Quantised> {
    let run = source.run;
    let bits = source.params["bits"].as_u64().unwrap_or(4) as usize;
    let (qweight, qzeros) = (source.words("qweight")?, source.words("qzeros")?);
    let scales = source.arg("scales")?;
    let &[groups, n] = scales.shape() else { return run.refuse("scales must have two dimensions") };
    let scales = source.floats("scales")?;
    let k = qweight.len() / n * 32 / bits;
    let group = source.groups(k, "g_idx")?;
    let zeros = Zeros::read(source, bits, &qzeros, groups, n);
    let read_bits = run.count("width_misread").unwrap_or(bits);
    let fields = Fields {
        bits: read_bits,
        slots: Slots::misread(run.key("nibble_order")),
        torn: run.is("straddle"),
    };
    let (along_n, row_words) = (run.is("packing_axis"), word_count(n, bits));
    let [mut q, mut z, mut s] = [(); 3].map(|()| Vec::with_capacity(k * n));
    let partial = last_partial(source, k);
    for i in 0..k {
        let own = if Some(group[i]) == partial { group[i] - 1 } else { group[i] };
        let next = (own + 1).min(groups - 1);
        let sg = if run.is("scale_group_off_by_one") { next } else { own };
        let zg = if run.is("zero_group_off_by_one") { next } else { sg };
        // A stride of -1 walks back through the columns, block by block.
        let back = if run.is("minus_one_as_stride") { i / 64 % n } else { 0 };
        for c in 0..n {
            let mut value = if along_n {
                fields.get(c, |w| qweight[i * row_words + w])
            } else {
                fields.get(i, |w| qweight[w * n + c])
            };
            if run.is("value_bit_flipped") && (i, c) == (k / 2, n / 2) {
                value ^= 1;
            }
            q.push(value as f32);
            z.push(zeros.of(&run, zg, c));
            s.push(scales[sg * n + (c + n - back) % n]);
        }
    }
    if run.chose("scale", "stored") || run.param("scales_stored") == true {
        s.iter_mut().for_each(|x| *x = run.stored(*x));
    }
    let via = run.chose("weight", "via_f16").then_some(Dtype::F16);
    let indexed = source.has("g_idx");
    let group_size = (!indexed).then(|| source.group_size(k));
    Ok(Quantised { k, n, out_in: false, q, z, s, group_size, via })
}

/// The last group if it is partial and that is what is wrong.
pub(super) fn last_partial(source: &Source<'_>, k: usize) -> Option<usize> {
    let size = source.group_size(k);
    let applies = source.run.is("partial_group_scale") && !k.is_multiple_of(size) && k > size;
    applies.then(|| k / size)
}

/// The zero points, decoded.
struct Zeros {
    n: usize,
    values: Vec<f32>,
    per_word: usize,
}

impl Zeros {
    fn read(source: &Source<'_>, bits: usize, words: &[u32], groups: usize, n: usize) -> Zeros {
        let run = source.run;
        let row = word_count(n, bits);
        let read_bits = run.count("width_misread").unwrap_or(bits);
        let fields = Fields {
            bits: read_bits,
            slots: Slots::misread(run.key("zero_nibble_order")),
            torn: run.is("zero_straddle"),
        };
        let v1 = source.params["format"] == "v1";
        let plus_one = (v1 && !run.is("zero_without_plus_one")) || run.is("zero_with_plus_one");
        // A 1 in each field of a word, which whole-word arithmetic adds.
        let ones = match bits {
            2 => 0x5555_5555,
            4 => 0x1111_1111,
            _ => 0x0101_0101u32,
        };
        let by_word = bits != 3 && (run.is("zero_carry") || run.chose("wrap", "word"));
        let modulo = run.is("zero_wrap")
            || run.chose("wrap", "modulo")
            || (bits == 3 && run.chose("wrap", "word"));
        let mut values = Vec::with_capacity(groups * n);
        for g in 0..groups {
            let word = |w: usize| words[g * row + w];
            for c in 0..n {
                let z = match () {
                    () if run.is("zero_assumed_symmetric") => 1 << (bits - 1),
                    () if plus_one && by_word => fields.get(c, |w| word(w).wrapping_add(ones)),
                    () if plus_one && modulo => (fields.get(c, word) + 1) % (1 << bits),
                    () => fields.get(c, word) + u32::from(plus_one),
                };
                values.push(z as f32);
            }
        }
        if run.is("one_zero_point_off") {
            values[groups / 2 * n + n / 2] += 1.0;
        }
        // Columns whose zero points are packed together: one word, or three words for 3 bits.
        let per_word = if bits == 3 { 32 } else { 32 / bits };
        Zeros { n, values, per_word }
    }

    fn of(&self, run: &Run<'_>, group: usize, column: usize) -> f32 {
        let there = column + self.per_word;
        let c = if run.is("zero_of_next_word") && there < self.n { there } else { column };
        self.values[group * self.n + c]
    }
}
