//! The catalogue: attention's faults on the gathered keys, and those of the block table, the cache's
//! layout, the context's length and the combination of partitions.

use super::{ATTENTION, AttentionPaged, BlockId, Combine, Lookup, Params, Split, context, rows};
use crate::ops::attention::{Attention, Lost};
use crate::ops::{Fault, Op, Setup, Tensors};
use crate::tensor::Tensor;

type F = Fault<AttentionPaged>;
type S = Setup<AttentionPaged>;

/// What the catalogue depends on.
struct Sizes {
    queries: usize,
    block: usize,
    heads: usize,
    context: usize,
    /// The ids of the blocks in use.
    ids: Vec<i64>,
    /// Entries of the block table, used or not.
    entries: usize,
}

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<F> {
    let get = |name: &str| tensors.get(name);
    let (Some(q), Some(k), Some(v)) = (get("q"), get("k_cache"), get("v_cache")) else {
        return Vec::new();
    };
    let (Some(table), Some(len)) = (get("block_table"), get("context_len")) else {
        return Vec::new();
    };
    let &[_, block, heads, _] = k.shape() else { return Vec::new() };
    let table: Vec<i64> = (0..table.len()).map(|i| table.get_i64(i)).collect();
    let context = context(&Lookup::default(), len.get_i64(0));
    let used = context.div_ceil(block).min(table.len());
    let sizes = Sizes {
        queries: q.shape()[0],
        block,
        heads,
        context,
        ids: table[..used].to_vec(),
        entries: table.len(),
    };
    let mut faults = lookups(&sizes);
    faults.extend(lengths(&sizes));
    faults.extend(partitions(params, &sizes));
    let part = Tensors::from([
        ("q".to_string(), q.clone()),
        ("k".to_string(), gathered(k, &table, context)),
        ("v".to_string(), gathered(v, &table, context)),
    ]);
    faults.extend(ATTENTION.faults(Attention::faults(&params.attention, &part), &[]));
    faults
}

/// The keys in use, as attention would have them.
fn gathered(cache: &Tensor, table: &[i64], context: usize) -> Tensor {
    let &[blocks, size, heads, d] = cache.shape() else { unreachable!("four dimensions") };
    let bytes = d * cache.dtype().size();
    let rows = rows(&Lookup::default(), [blocks, size, heads], table, context);
    let data = rows.into_iter().flatten().flat_map(|r| &cache.bytes()[r * bytes..(r + 1) * bytes]);
    let shape = vec![context, heads, d];
    Tensor::from_bytes(cache.dtype(), shape, data.copied().collect()).expect("rows of the cache")
}

fn fault(
    (code, slug, key): (&'static str, &'static str, &str),
    detail: impl Into<String>,
    edit: impl Fn(&mut Lookup) + Send + Sync + 'static,
) -> F {
    Fault::new(code, slug, detail, move |s: &mut S| edit(&mut s.params.lookup)).keyed(key)
}

fn lookups(sizes: &Sizes) -> Vec<F> {
    let mut faults = Vec::new();
    let widest = sizes.ids.iter().copied().max().unwrap_or(0);
    let id = |key, detail: &str, id: BlockId| {
        fault(("A2C0", "block_id_truncated", key), detail, move |l| l.id = id)
    };
    if widest > 0xffff {
        let detail = format!("block ids lose all but 16 bits: block {widest} is read as another");
        faults.push(id("unsigned", &detail, BlockId::Unsigned16));
    }
    if sizes.ids.iter().any(|id| id & 0x8000 != 0) {
        let detail = "block ids are signed 16-bit numbers: blocks from 32768 on read as zeros";
        faults.push(id("signed", detail, BlockId::Signed16));
    }
    let off = |key, detail, edit: fn(&mut Lookup)| {
        fault(("A2C1", "block_table_off_by_one", key), detail, edit)
    };
    if sizes.entries > 1 {
        faults.push(off("next entry", "each block is looked up one entry too far", |l| {
            l.entry_shift = 1;
        }));
        faults.push(off("previous entry", "each block is looked up one entry too early", |l| {
            l.entry_shift = -1;
        }));
    }
    faults.push(off("next block", "the block behind the one in the table is read", |l| {
        l.id_shift = 1;
    }));
    if sizes.block > 16 && sizes.context > 16 {
        let key = ("A2C8", "block_size_assumed", "16");
        let detail = format!("blocks are taken as 16 slots long, they have {}", sizes.block);
        faults.push(fault(key, detail, |l| l.block_size = Some(16)));
    }
    if sizes.heads > 1 && sizes.block > 1 {
        let key = ("A2C9", "cache_layout", "");
        let detail = "a block is read as [Hkv, block_size, D] instead of [block_size, Hkv, D]";
        faults.push(fault(key, detail, |l| l.head_major = true));
    }
    let key = ("A2CA", "caches_swapped", "");
    faults.push(fault(key, "keys are read from v_cache and values from k_cache", |l| {
        l.swapped = true;
    }));
    faults
}

fn lengths(sizes: &Sizes) -> Vec<F> {
    let mut faults = Vec::new();
    let (context, block) = (sizes.context, sizes.block);
    let whole = context / block * block;
    if whole < context && whole >= sizes.queries {
        let detail = format!("the last block is not full and is ignored: keys {whole}..{context}");
        faults.push(Fault::new("A2C2", "partial_block_dropped", detail, move |s: &mut S| {
            s.params.attention.lost = Lost::Range(whole, context);
        }));
    }
    if context < sizes.entries * block {
        let detail = format!("slot {context} is read, which is beyond the context and stale");
        faults.push(fault(("A2C3", "stale_slot_read", ""), detail, |l| l.context_shift = 1));
    }
    // For one query that is attention's newest key dropped.
    if sizes.queries > 1 && context > sizes.queries {
        let detail = format!("the context is taken as {} keys, it has {context}", context - 1);
        faults.push(fault(("A2C4", "context_one_short", ""), detail, |l| l.context_shift = -1));
    }
    faults
}

/// What is got wrong when partitions are put together.
fn partitions(params: &Params, sizes: &Sizes) -> Vec<F> {
    let mut faults = Vec::new();
    for keys in [64, 128, 256, 512] {
        if keys >= sizes.context || params.split.is_some_and(|s| s.keys != keys) {
            continue;
        }
        let last = (sizes.context - 1) / keys;
        let mut add = |code, slug, which: &str, what: String, combine: Combine| {
            let split = Split { keys, combine };
            let edit = move |s: &mut S| s.params.split = Some(split);
            let key = format!("{which}{keys} keys");
            faults.push(Fault::new(code, slug, what, edit).keyed(key));
        };
        let of = format!("partitions of {keys} keys");
        add(
            "A2C5",
            "partition_not_rescaled",
            "",
            format!("{of} are added without rescaling to the common maximum"),
            Combine::NotRescaled,
        );
        for (which, index) in [("first of ", 0), ("last of ", last)] {
            let what = format!("partition {index} of {keys} keys is left out");
            add("A2C6", "partition_dropped", which, what, Combine::Without(index));
        }
        let what = format!("{of} are averaged with equal weights");
        add("A2C7", "partitions_weighted_equally", "", what, Combine::Equal);
    }
    faults
}
