//! Cases of `attention_paged`: blocks of 16, 32 and 1, in any order in the cache; contexts on both sides
//! of a block's and of a partition's edge; slots beyond the context hold large stale values.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{Generated, Values, generated};

const OP: &str = "attention_paged";
/// Keys and values of blocks that are not the sequence's, and behind its end.
const STALE: f64 = 24.0;

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Dims {
    queries: usize,
    context: usize,
    heads: (usize, usize),
    d: usize,
    block: usize,
    /// Blocks of the cache; more than the sequence needs.
    blocks: usize,
}

impl Dims {
    fn label(&self) -> String {
        let Dims { queries, context, heads: (hq, hkv), d, block, .. } = self;
        format!("q{queries} kv{context} heads {hq}/{hkv} d{d} blocks of {block}")
    }

    fn entries(&self) -> usize {
        self.context.div_ceil(self.block)
    }
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let dims = |queries, context, heads, d, block| {
        let blocks = usize::div_ceil(context, block) + 3;
        Dims { queries, context, heads, d, block, blocks }
    };
    let mut out = Vec::new();
    for block in [16, 32] {
        out.push(random(dims(1, 1, (2, 1), 64, block), seed, 1.0));
        out.push(random(dims(1, 2 * block, (4, 2), 64, block), seed, 1.0));
        out.push(random(dims(1, 2 * block + 1, (14, 2), 64, block), seed, 0.3));
        out.push(random(dims(5, 3 * block - 4, (4, 2), 64, block), seed, 0.5));
        out.push(averaging(dims(1, 2 * block + 5, (4, 2), 64, block), seed));
    }
    out.push(random(dims(1, 77, (4, 2), 128, 16), seed, 0.5));
    out.push(random(dims(2, 300, (4, 2), 32, 16), seed, 0.5));
    out.push(rising(dims(1, 600, (2, 1), 64, 32), seed));
    out.push(far_blocks(seed));
    // Beyond every window.
    out.push(random(dims(1, 4100, (1, 1), 8, 32), seed, 0.3));
    out.push(key_bias(dims(3, 40, (4, 2), 16, 16), seed));
    out.push(special(dims(4, 41, (4, 2), 16, 16), seed));
    for window in [1, 12] {
        let mut g = random(dims(4, 40, (4, 2), 16, 16), seed, 0.3);
        g.case.params["attention"]["window"] = json!(window);
        g.label += &format!(" window {window}");
        out.push(g);
    }
    out.push(deep(dims(4, 21, (4, 2), 16, 16), seed));
    out
}

/// Contexts on both sides of a block's, of a partition's and of long limits.
pub(super) fn edges(seed: u64) -> Vec<Generated> {
    let one = |context: usize| {
        let (heads, d, block) = ((2, 1), 16, 16);
        let blocks = context.div_ceil(block) + 3;
        random(Dims { queries: 1, context, heads, d, block, blocks }, seed, 0.4)
    };
    [15, 16, 17, 255, 256, 257, 511, 512, 513, 4095, 4096, 4097].map(one).into()
}

/// What the decode kernel of head_dim 128 takes: contexts on both sides of a block and of a partition of
/// 256 keys, one query and a few that end in different partitions, two to seven heads to a kv head.
pub(super) fn decode_d128(seed: u64) -> Vec<Generated> {
    let dims = |queries, context, heads, block| {
        let blocks = usize::div_ceil(context, block) + 3;
        Dims { queries, context, heads, d: 128, block, blocks }
    };
    let (one, two, seven) = ((2, 1), (4, 2), (14, 2));
    let mut out = Vec::new();
    for (context, heads, block) in [
        (1, two, 16),
        (15, seven, 16),
        (16, two, 32),
        (17, seven, 16),
        (17, two, 32),
        (256, one, 16),
        (257, two, 32),
    ] {
        out.push(random(dims(1, context, heads, block), seed, 0.3));
    }
    // Scores far enough apart that most weights are small.
    out.push(random(dims(1, 255, one, 32), seed, 3.0));
    out.push(random(dims(3, 258, one, 16), seed, 0.3));
    out.push(random(dims(5, 40, two, 32), seed, 0.3));
    out.push(rising(dims(1, 600, one, 16), seed));
    out.push(averaging(dims(1, 257, one, 16), seed));
    out.push(key_bias(dims(2, 40, two, 16), seed));
    out.push(special(dims(3, 41, two, 32), seed));
    out.push(deep(dims(2, 21, two, 16), seed));
    for (context, block) in [(17, 16), (33, 32)] {
        out.push(poisoned(random(dims(1, context, two, block), seed, 0.4)));
    }
    out
}

/// NaN in every slot that is not one of the context's.
fn poisoned(mut g: Generated) -> Generated {
    let tensors = &mut g.case.tensors;
    let context = tensors["context_len"].get_i64(0) as usize;
    let &[_, size, heads, d] = tensors["k_cache"].shape() else { unreachable!("a cache") };
    let table = &tensors["block_table"];
    let used: std::collections::BTreeSet<usize> =
        (0..context).map(|j| table.get_i64(j / size) as usize * size + j % size).collect();
    for name in ["k_cache", "v_cache"] {
        let keep = |i: usize, x: f64| if used.contains(&(i / (heads * d))) { x } else { f64::NAN };
        let cache = tensors[name].map(keep);
        tensors.insert(name.into(), cache);
    }
    g.case.family = "special".into();
    g.structured = true;
    g.label = g.label.replacen("unit", "special", 1) + " NaN in stale slots";
    g
}

/// The block table: distinct ids in no order, and one entry beyond the context where it is not full.
fn table(v: &mut Values, dims: &Dims) -> Vec<i32> {
    let mut ids = v.permutation(dims.blocks);
    ids.truncate(dims.entries() + 1);
    ids.into_iter().map(|id| id as i32).collect()
}

/// Puts the keys [S, Hkv D] of a sequence into its blocks.
fn paged(v: &mut Values, dims: &Dims, table: &[i32], rows: &[f64]) -> Tensor {
    let width = dims.heads.1 * dims.d;
    let mut cache = v.normals(dims.blocks * dims.block * width, STALE);
    for (j, row) in rows.chunks(width).enumerate() {
        let slot = table[j / dims.block] as usize * dims.block + j % dims.block;
        cache[slot * width..(slot + 1) * width].copy_from_slice(row);
    }
    let shape = [dims.blocks, dims.block, dims.heads.1, dims.d];
    Tensor::from_f64(Dtype::Bf16, &shape, &cache)
}

fn build(
    family: (&str, bool),
    dims: Dims,
    note: &str,
    seed: u64,
    [q, k, v]: [Vec<f64>; 3],
    ids: Option<Vec<i32>>,
) -> Generated {
    let mut draw = Values::new(seed, &format!("{OP} cache {}{note}", dims.label()));
    let ids = ids.unwrap_or_else(|| table(&mut draw, &dims));
    let q = Tensor::from_f64(Dtype::Bf16, &[dims.queries, dims.heads.0, dims.d], &q);
    let tensors = Tensors::from([
        ("q".to_string(), q),
        ("k_cache".to_string(), paged(&mut draw, &dims, &ids, &k)),
        ("v_cache".to_string(), paged(&mut draw, &dims, &ids, &v)),
        ("block_table".to_string(), Tensor::from_i32(&[ids.len()], &ids)),
        ("context_len".to_string(), Tensor::from_i32(&[1], &[dims.context as i32])),
    ]);
    let params = json!({ "attention": { "scale": 1.0 / (dims.d as f64).sqrt() } });
    let label = format!("{}{note}", dims.label());
    generated(OP, family, &label, seed, params, Dtype::Bf16, tensors)
}

/// Elements of q and of k.
fn lengths(dims: &Dims) -> [usize; 2] {
    let (hq, hkv) = dims.heads;
    [dims.queries * hq * dims.d, dims.context * hkv * dims.d]
}

/// Normal q and k of sd `qk`.
fn random(dims: Dims, seed: u64, qk: f64) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} {} {qk}", dims.label()));
    let [q, k] = lengths(&dims);
    let data = [v.normals(q, qk), v.normals(k, qk), v.normals(k, 1.0)];
    build(("unit", false), dims, &format!(" sd {qk}"), seed, data, None)
}

/// Keys whose score grows with the position, so that partitions have other maxima.
fn rising(dims: Dims, seed: u64) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} rising {}", dims.label()));
    let [q, k] = lengths(&dims);
    let width = dims.heads.1 * dims.d;
    let lift = |i: usize| 0.4 * (i / width) as f64 / dims.context as f64;
    let keys = (0..k).map(|i| lift(i) + v.normal(0.2)).collect();
    let queries = (0..q).map(|_| 1.0 + v.normal(0.3)).collect();
    build(("unit", false), dims, " rising", seed, [queries, keys, v.normals(k, 1.0)], None)
}

/// Equal scores: the output is the mean of the visible values, one exact sum and one division.
fn averaging(dims: Dims, seed: u64) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} averaging {}", dims.label()));
    let [q, k] = lengths(&dims);
    let values = (0..k).map(|_| v.int(-100, 100) as f64).collect();
    let data = [vec![0.0; q], v.normals(k, 1.0), values];
    build(("exact", true), dims, " averaging", seed, data, None)
}

/// Pages of one token, as SGLang has them, in blocks beyond 65535.
fn far_blocks(seed: u64) -> Generated {
    let dims = Dims { queries: 1, context: 6, heads: (1, 1), d: 2, block: 1, blocks: 65_600 };
    let mut v = Values::new(seed, "attention_paged far blocks");
    let [q, k] = lengths(&dims);
    let data = [v.normals(q, 1.0), v.normals(k, 1.0), v.normals(k, 1.0)];
    let ids = vec![65_535, 65_536, 65_590, 7, 40_000, 65_537, 12];
    build(("unit", false), dims, " far", seed, data, Some(ids))
}

/// A large constant key bias in two dimensions, as Qwen2.5 has it, and values of sd 26.
fn key_bias(dims: Dims, seed: u64) -> Generated {
    let mut v = Values::new(seed, "attention_paged key bias");
    let [q, k] = lengths(&dims);
    let (mut queries, mut keys) = (v.normals(q, 1.0), v.normals(k, 1.0));
    for (rows, by) in [(&mut queries, [20.0, 20.0]), (&mut keys, [100.0, 147.0])] {
        for row in rows.chunks_exact_mut(dims.d) {
            row[dims.d * 15 / 32] += by[0];
            row[dims.d * 31 / 32] += by[1];
        }
    }
    build(("outlier", false), dims, " key bias", seed, [queries, keys, v.normals(k, 26.0)], None)
}

/// NaN in the last key and value, which only the last query sees, and in one value that all see.
fn special(dims: Dims, seed: u64) -> Generated {
    let mut v = Values::new(seed, "attention_paged special");
    let [q, k] = lengths(&dims);
    let width = dims.heads.1 * dims.d;
    let (mut keys, mut values) = (v.normals(k, 1.0), v.normals(k, 1.0));
    keys[(dims.context - 1) * width] = f64::NAN;
    values[3 * width + 5] = f64::NAN;
    values[(dims.context - 1) * width + 2] = f64::NAN;
    build(("special", true), dims, " NaN", seed, [v.normals(q, 1.0), keys, values], None)
}

/// All visible scores near -1e5: a finite mask value would outweigh them.
fn deep(dims: Dims, seed: u64) -> Generated {
    let mut v = Values::new(seed, "attention_paged deep scores");
    let [q, k] = lengths(&dims);
    let values = (0..k).map(|_| v.int(-100, 100) as f64).collect();
    let data = [vec![160.0; q], vec![-160.0; k], values];
    build(("special", true), dims, " deep scores", seed, data, None)
}
