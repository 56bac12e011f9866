//! The values of the weights: NaN and infinities, zeros, runs of zeros.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use assay_reference::Dtype;
use assay_reference::checkpoint::{Config, expected};
use rayon::prelude::*;

use super::files::Files;
use super::found::Found;

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 20;
/// Tensors between two reports of progress.
const BATCH: usize = 32;
/// The shortest run of zero bytes that is looked at: what a broken download is known to leave
/// (<https://github.com/hiyouga/LlamaFactory/issues/5826> and others).
const SHORTEST: u64 = 8;

/// What one tensor's values are.
#[derive(Clone, Debug, Default)]
struct Values {
    count: u64,
    not_finite: u64,
    first_not_finite: Option<u64>,
    zeros: u64,
    /// The longest run of zeros: first element, and how many.
    run: (u64, u64),
    /// Whether every element is the first one.
    constant: bool,
    first: Vec<u8>,
    current: u64,
}

/// Reads every tensor.
pub(super) fn check(
    files: &Files,
    config: Option<&Config>,
    out: &mut Found,
    step: &mut dyn FnMut(u64, u64, &str),
) {
    let read: Option<BTreeSet<String>> =
        config.map(|c| expected(c).into_iter().map(|e| e.name).collect());
    let is_read = |n: &str| read.as_ref().is_none_or(|r| r.contains(n));
    let names: Vec<&String> = files.tensors.keys().filter(|n| is_read(n)).collect();
    let total: u64 = names.iter().filter_map(|n| files.bytes_of(n)).map(|b| b.2).sum();
    let mut done = 0;
    for batch in names.chunks(BATCH) {
        let found: Vec<Option<Values>> = batch.par_iter().map(|n| scan(files, n)).collect();
        for (name, values) in batch.iter().zip(found) {
            done += files.bytes_of(name).map_or(0, |b| b.2);
            match values {
                Some(values) => judge(files, name, &values, out),
                None => out.unchecked(format!("{}: its values cannot be read", files.place(name))),
            }
        }
        step(done, total, batch.last().map_or("", |n| n));
    }
}

fn judge(files: &Files, name: &str, v: &Values, out: &mut Found) {
    let place = || files.place(name);
    let dims = files.shape(name).unwrap_or(&[]);
    if v.not_finite > 0 {
        let first = v.first_not_finite.unwrap_or(0);
        let what = format!(
            "{} of {} values are NaN or infinite, the first is element {first}",
            v.not_finite, v.count
        );
        out.add("data.not_finite", place(), what);
    }
    let ends = |with: &[&str]| with.iter().any(|s| name.ends_with(s));
    let is_weight = ends(&[".weight", ".qweight", ".weight_packed", ".bias"]);
    // One scale may be all that a tensor has, and equal ones are nothing odd.
    let is_scale = ends(&[".scales", ".weight_scale", ".weight_scale_inv"]);
    if !(is_weight && v.count > 1 || is_scale && v.count > 0) {
        return;
    }
    if v.zeros == v.count {
        let what = match v.count {
            1 => "its only value is zero".to_owned(),
            n => format!("all {n} values are zero"),
        };
        out.add("data.all_zero", place(), what);
    } else if v.constant && is_weight && dims.len() > 1 {
        out.add("data.constant", place(), format!("all {} values are the same", v.count));
    } else if v.constant && is_weight {
        out.note(format!("{}: all {} values are the same", place(), v.count));
    } else if let Some(what) = run(name, dims, v) {
        out.add("data.zero_run", place(), what);
    }
}

/// What to say of the longest run of zeros, when chance does not make it.
///
/// With p the share of zeros elsewhere, a run of r among n elements has a chance below n p^r. Below 1e-12 it is
/// said: one false alarm in 1e7 checkpoints of 1e5 tensors.
fn run(name: &str, dims: &[u64], v: &Values) -> Option<String> {
    let (at, length) = v.run;
    let size = v.first.len() as u64;
    if length * size < SHORTEST {
        return None;
    }
    let others = (v.zeros - length + 1) as f64;
    let p = others / (v.count - length + 1) as f64;
    let mut chance = v.count as f64;
    for _ in 0..length.min(256) {
        chance *= p;
    }
    let columns = dims.last().copied().unwrap_or(1).max(1);
    // Whole rows of an embedding or a head are tokens that were never trained.
    let whole_rows = (name.contains("embed_tokens") || name.starts_with("lm_head"))
        && at.is_multiple_of(columns)
        && length.is_multiple_of(columns);
    if chance > 1e-12 || whole_rows {
        return None;
    }
    let place = if at == 0 {
        "at its beginning".to_owned()
    } else if at + length == v.count {
        "at its end".to_owned()
    } else {
        format!("from element {at} on")
    };
    Some(format!(
        "{length} zeros in a row ({} bytes) {place}, among {} values with {} other zeros",
        length * size,
        v.count,
        v.zeros - length
    ))
}

fn scan(files: &Files, name: &str) -> Option<Values> {
    let (path, at, len) = files.bytes_of(name)?;
    let dtype = files.dtype(name)?;
    let size = dtype.size();
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(at)).ok()?;
    let mut reader = file.take(len - len % size as u64);
    let mut values = Values { constant: true, ..Values::default() };
    let mut buffer = vec![0; BLOCK];
    let mut filled = 0;
    loop {
        let n = reader.read(&mut buffer[filled..]).ok()?;
        filled += n;
        let whole = filled - filled % size;
        values.read(&buffer[..whole], dtype);
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
        if n == 0 {
            return Some(values);
        }
    }
}

impl Values {
    fn read(&mut self, bytes: &[u8], dtype: Dtype) {
        match dtype {
            Dtype::Bf16 => {
                self.each(bytes, |b: &[u8; 2]| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80)
            }
            Dtype::F16 => self.each(bytes, |b: &[u8; 2]| u16::from_le_bytes(*b) & 0x7c00 == 0x7c00),
            Dtype::F32 => self.each(bytes, |b: &[u8; 4]| !f32::from_le_bytes(*b).is_finite()),
            Dtype::F64 => self.each(bytes, |b: &[u8; 8]| !f64::from_le_bytes(*b).is_finite()),
            Dtype::F8E4m3 => self.each(bytes, |b: &[u8; 1]| b[0] & 0x7f == 0x7f),
            Dtype::I32 => self.each(bytes, |_: &[u8; 4]| false),
            Dtype::I64 => self.each(bytes, |_: &[u8; 8]| false),
            Dtype::U8 => self.each(bytes, |_: &[u8; 1]| false),
        }
    }

    fn each<const N: usize>(&mut self, bytes: &[u8], bad: impl Fn(&[u8; N]) -> bool) {
        let elements = bytes.as_chunks::<N>().0;
        if self.first.is_empty()
            && let Some(first) = elements.first()
        {
            self.first = first.to_vec();
        }
        let first: [u8; N] = self.first.as_slice().try_into().unwrap_or([0; N]);
        for e in elements {
            if bad(e) {
                self.not_finite += 1;
                self.first_not_finite.get_or_insert(self.count);
            }
            if *e == [0; N] {
                self.zeros += 1;
                self.current += 1;
                if self.current > self.run.1 {
                    self.run = (self.count + 1 - self.current, self.current);
                }
            } else {
                self.current = 0;
            }
            self.constant &= *e == first;
            self.count += 1;
        }
    }
}
