//! The paged cache: `attention_paged` reads it, `kv_store` writes it.

use assay_reference::{Dtype, Result, Tensor};

use super::attention::Heads;
use super::run::Run;
use super::scalar::{Fp8, Store, tensor};
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[("partials", &["f32", "stored_256", "stored_512"])];

pub(super) const FAULTS: &[Known] = &[
    ("block_id_truncated", Keys::OneOf(&["unsigned", "signed"])),
    ("block_table_off_by_one", Keys::OneOf(&["next entry", "previous entry", "next block"])),
    ("partial_block_dropped", Keys::None),
    ("stale_slot_read", Keys::None),
    ("context_one_short", Keys::None),
    ("partition_not_rescaled", Keys::Number),
    ("partition_dropped", Keys::Number),
    ("partitions_weighted_equally", Keys::Number),
    ("block_size_assumed", Keys::Number),
    ("cache_layout", Keys::None),
    ("caches_swapped", Keys::None),
];

pub(super) const STORE_KNOBS: &[(&str, &[&str])] = &[("scale", &["divided", "reciprocal"])];

pub(super) const STORE_FAULTS: &[Known] = &[
    ("slot_off_by_one", Keys::Number),
    ("heads_transposed", Keys::OneOf(&["in the block", "in the token"])),
    ("k_and_v_swapped", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("padding_written", Keys::None),
    ("last_token_dropped", Keys::None),
    ("scale_ignored", Keys::None),
    ("scale_multiplied", Keys::None),
    ("other_slots_cleared", Keys::None),
    ("gain", Keys::Number),
];

/// `attention_paged`.
pub(super) fn attention(run: &Run<'_>) -> Result<Tensor> {
    let (&[t, hq, d], &[_, size, hkv, _]) = (run.arg("q")?.shape(), run.arg("k_cache")?.shape())
    else {
        return run.refuse("q must be [T, Hq, D] and the caches [blocks, block_size, Hkv, D]");
    };
    let context = run.ints("context_len")?[0].max(0) as usize;
    let s = match () {
        () if run.is("stale_slot_read") => context + 1,
        () if run.is("context_one_short") => context - 1,
        () => context,
    };
    let end = if run.is("partial_block_dropped") { context / size * size } else { s };
    let names = match run.is("caches_swapped") {
        true => ["v_cache", "k_cache"],
        false => ["k_cache", "v_cache"],
    };
    let [k, v] = names.map(|name| gather(run, name, s));
    let q = run.floats("q")?;
    let heads = Heads { run: run.within("attention"), t, s, hq, hkv, d, q, k: k?, v: v?, end };
    run.output(&[t, hq, d], heads.output()?)
}

/// [S, Hkv, D] of a paged cache.
fn gather(run: &Run<'_>, name: &str, s: usize) -> Result<Vec<f32>> {
    let &[blocks, size, hkv, d] = run.arg(name)?.shape() else {
        return run.refuse(format!("{name} must have four dimensions"));
    };
    let cache = run.floats(name)?;
    let table = run.ints("block_table")?;
    let taken = run.count("block_size_assumed").unwrap_or(size);
    let mut out = Vec::with_capacity(s * hkv * d);
    for j in 0..s {
        let (entry, slot) = (j / taken, j % taken);
        let entry = match run.key("block_table_off_by_one") {
            Some("next entry") => (entry + 1).min(table.len() - 1),
            Some("previous entry") => entry.saturating_sub(1),
            _ => entry,
        };
        // Beyond the table is memory of nobody; its last entry stands for that.
        let id = table.get(entry).or(table.last()).copied().unwrap_or(0);
        let id = match (run.key("block_table_off_by_one"), run.key("block_id_truncated")) {
            (Some("next block"), _) => (id + 1).min(blocks as i64 - 1),
            (_, Some("unsigned")) => id & 0xffff,
            (_, Some(_)) => i64::from(id as i16),
            _ => id,
        };
        for h in 0..hkv {
            let at = match run.is("cache_layout") {
                true => (id * (size * hkv) as i64 + (h * size + slot) as i64) * d as i64,
                false => ((id * taken as i64 + slot as i64) * hkv as i64 + h as i64) * d as i64,
            };
            // What lies outside reads as zeros.
            match usize::try_from(at).ok().and_then(|at| cache.get(at..at + d)) {
                Some(row) => out.extend_from_slice(row),
                None => out.extend(std::iter::repeat_n(0.0, d)),
            }
        }
    }
    Ok(out)
}

/// `kv_store`: the keys' cache afterwards.
pub(super) fn kv_store(run: &Run<'_>) -> Result<Tensor> {
    written(run, "k_cache", ["k", "v"], 0)
}

/// `kv_store`: the values' cache afterwards.
pub(super) fn v_cache(run: &Run<'_>) -> Result<Tensor> {
    written(run, "v_cache", ["v", "k"], 1)
}

fn written(run: &Run<'_>, cache: &str, [own, other]: [&str; 2], which: usize) -> Result<Tensor> {
    let cache = run.arg(cache)?;
    let &[blocks, size, hkv, d] = cache.shape() else {
        return run.refuse("caches must be [blocks, block_size, Hkv, D]");
    };
    let source = if run.is("k_and_v_swapped") { other } else { own };
    let (same, values) = (run.arg(source)?.dtype() == cache.dtype(), run.floats(source)?);
    let scale = run.param("scales")[which].as_f64().unwrap_or(1.0) as f32;
    let scaled = |x: f32| match () {
        () if run.is("scale_ignored") => x,
        () if run.is("scale_multiplied") => x * scale,
        () if run.chose("scale", "reciprocal") => x * (1.0 / scale),
        () => x / scale,
    };
    let mut row: Vec<f32> = if same { values } else { values.into_iter().map(scaled).collect() };
    run.amplify("written", &mut row);
    run.amplify("output", &mut row);
    let (width, bytes) = (cache.dtype().size(), encoded(run, cache.dtype(), &row)?);
    let mut out = cache.bytes().to_vec();
    let slots = slots(run, blocks * size)?;
    if run.is("other_slots_cleared") {
        for slot in slots.iter().flatten() {
            let block = size * hkv * d * width;
            out[slot / size * block..][..block].fill(0);
        }
    }
    for (t, slot) in slots.iter().enumerate() {
        let Some(slot) = *slot else { continue };
        for (h, i) in (0..hkv).flat_map(|h| (0..d).map(move |i| (h, i))) {
            let to = match run.key("heads_transposed") {
                Some("in the block") => (slot / size * size * hkv + h * size + slot % size) * d + i,
                Some(_) => (slot * d + i) * hkv + h,
                None => (slot * hkv + h) * d + i,
            };
            let from = (t * hkv + h) * d + i;
            out[to * width..][..width].copy_from_slice(&bytes[from * width..][..width]);
        }
    }
    Tensor::from_bytes(cache.dtype(), cache.shape().to_vec(), out)
}

/// Where each token goes; nowhere if it is padding.
fn slots(run: &Run<'_>, total: usize) -> Result<Vec<Option<usize>>> {
    let shift = run.number("slot_off_by_one").unwrap_or(0.0) as i64;
    let mut slots: Vec<Option<usize>> = run
        .ints("slot_mapping")?
        .iter()
        .map(|&slot| match slot {
            ..0 if run.is("padding_written") => Some(total - 1),
            ..0 => None,
            _ => Some((slot + shift).rem_euclid(total as i64) as usize),
        })
        .collect();
    if run.is("last_token_dropped") {
        slots.pop();
    }
    Ok(slots)
}

/// Values in a cache's dtype.
fn encoded(run: &Run<'_>, dtype: Dtype, values: &[f32]) -> Result<Vec<u8>> {
    let store = run.store("");
    if dtype != Dtype::F8E4m3 {
        let kept: Vec<f32> = values.iter().map(|x| store.round(dtype, *x)).collect();
        return Ok(tensor(dtype, &[kept.len()], &kept)?.bytes().to_vec());
    }
    let table = Fp8::E4m3.table();
    Ok(values.iter().map(|x| code(&table, store, *x)).collect())
}

/// The e4m3 code of a value, saturated.
fn code(table: &[f32], store: Store, x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let y = store.e4m3(x).abs();
    let at = table[..0x7f].partition_point(|v| *v < y) as u8;
    if x.is_sign_negative() { at | 0x80 } else { at }
}
