//! The composites: against the formulas in plain loops, bit by bit against their parts composed by hand,
//! and each fault seen in some output.

use std::collections::BTreeMap;

use assay_reference::arith::{Ball, Real};
use assay_reference::ops::add::Add;
use assay_reference::ops::add_rms_norm::{self, AddRmsNorm};
use assay_reference::ops::attention::Attention;
use assay_reference::ops::attention_paged::{self, AttentionPaged, Combine, Split};
use assay_reference::ops::kv_store::{self, KvStore};
use assay_reference::ops::qk_norm_rope::{self, QkNormRope};
use assay_reference::ops::rms_norm::{self, RmsNorm};
use assay_reference::ops::rope::{self, Angle, Rope};
use assay_reference::ops::{Op, Setup, Tile};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, bits, config, every_choice_is_reachable, holds, setup};
use crate::naive::{self, Heads, Turns};

fn sum(seed: u64, rows: usize, d: usize, dtype: Dtype, sd: f64) -> Setup<AddRmsNorm> {
    let mut draw = Draw::new(seed);
    let a = draw.tensor(dtype, &[rows, d], sd);
    let b = draw.tensor(dtype, &[rows, d], sd);
    let w = draw.tensor(dtype, &[d], 1.0);
    setup::<AddRmsNorm, 3>(add_rms_norm::Params::new(1e-6), [("a", a), ("b", b), ("weight", w)])
}

fn heads(seed: u64, t: usize, h: usize, d: usize, dtype: Dtype, sd: f64) -> Setup<QkNormRope> {
    let mut draw = Draw::new(seed);
    let x = draw.tensor(dtype, &[t, h, d], sd);
    let w = draw.tensor(dtype, &[d], 1.0);
    let first = draw.below(3000) as i32;
    let positions = Tensor::from_i32(&[t], &(0..t as i32).map(|i| first + i).collect::<Vec<_>>());
    let params =
        qk_norm_rope::Params::new(rms_norm::Params::new(1e-6), rope::Params::new(1e6, Angle::F64));
    setup::<QkNormRope, 3>(params, [("x", x), ("weight", w), ("positions", positions)])
}

/// A cache of `block` slots a block with the keys of `n` in blocks of no order, and the contiguous k and v.
fn paged(seed: u64, n: Heads, block: usize, dtype: Dtype) -> (Setup<AttentionPaged>, [Tensor; 2]) {
    let mut draw = Draw::new(seed);
    let blocks = n.s.div_ceil(block) + 2;
    let mut ids: Vec<usize> = (0..blocks).collect();
    for i in (1..blocks).rev() {
        ids.swap(i, draw.below(i + 1));
    }
    ids.truncate(blocks - 1);
    let q = draw.tensor(dtype, &[n.t, n.hq, n.d], 1.0);
    let width = n.hkv * n.d;
    let mut fill = |sd: f64| {
        let cache = draw.tensor(dtype, &[blocks, block, n.hkv, n.d], sd);
        let all = cache.to_f64();
        let mut rows = Vec::new();
        for j in 0..n.s {
            let at = (ids[j / block] * block + j % block) * width;
            rows.extend(&all[at..at + width]);
        }
        (cache, Tensor::from_f64(dtype, &[n.s, n.hkv, n.d], &rows))
    };
    let ((k_cache, k), (v_cache, v)) = (fill(1.0), fill(1.0));
    let table: Vec<i32> = ids.iter().map(|&i| i as i32).collect();
    let params = attention_paged::Params::new(1.0 / (n.d as f64).sqrt());
    let tensors = [
        ("q", q),
        ("k_cache", k_cache),
        ("v_cache", v_cache),
        ("block_table", Tensor::from_i32(&[table.len()], &table)),
        ("context_len", Tensor::from_i32(&[1], &[n.s as i32])),
    ];
    (setup::<AttentionPaged, 5>(params, tensors), [k, v])
}

fn one_head(t: usize, s: usize) -> Heads {
    Heads { t, s, hq: 2, hkv: 1, d: 8, window: None }
}

/// `k` and `v` of T tokens into the given slots of two blocks of four.
fn stores(seed: u64, slots: &[i32], from: Dtype, to: Dtype) -> Setup<KvStore> {
    let mut draw = Draw::new(seed);
    let mut tokens = || draw.tensor(from, &[slots.len(), 2, 3], 1.0);
    let (k, v) = (tokens(), tokens());
    let mut cache = || draw.tensor(to, &[2, 4, 2, 3], 1.0);
    let (k_cache, v_cache) = (cache(), cache());
    let mapping = Tensor::from_i32(&[slots.len()], slots);
    let tensors =
        [("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache), ("slot_mapping", mapping)];
    setup::<KvStore, 5>(kv_store::Params::default(), tensors)
}

fn output<O: Op>(setup: &Setup<O>, index: usize) -> Vec<f64> {
    setup.eval::<f64>(&Tile::ALL).swap_remove(index).data
}

/// The f32 values of the first output.
fn fast<O: Op>(setup: &Setup<O>) -> Vec<f64> {
    setup.eval::<f32>(&Tile::ALL).remove(0).data.into_iter().map(f64::from).collect()
}

/// A setup of a part over f32, storing `dtype`.
fn part<O: Op, const N: usize>(
    params: O::Params,
    dtype: Dtype,
    tensors: [(&str, Tensor); N],
) -> Setup<O> {
    Setup { policy: O::policy(dtype), ..setup::<O, N>(params, tensors) }
}

/// Every fault changes what is stored of some output by more than the bound, in some case.
#[track_caller]
fn every_fault_shows_in_some_output<O: Op>(cases: impl IntoIterator<Item = Setup<O>>) {
    let mut shown: BTreeMap<String, bool> = BTreeMap::new();
    for case in cases {
        let specs = O::check(&case.params, &case.tensors).expect("checked");
        let right = case.eval::<Ball<24>>(&Tile::ALL);
        for fault in O::faults(&case.params, &case.tensors) {
            let mut wrong = case.clone();
            (fault.edit)(&mut wrong);
            let got = wrong.eval::<f64>(&Tile::ALL);
            let differs = (0..specs.len()).any(|i| {
                assert_eq!(right[i].name, specs[i].name);
                let stored = O::rounding(&wrong.params, &wrong.policy, i);
                let expected = O::rounding(&case.params, &case.policy, i);
                got[i].data.iter().zip(&right[i].data).any(|(g, b)| {
                    let (g, b) = (stored.round(*g), b.round(expected, case.policy.lambda));
                    !((g - b.v).abs() <= b.r || (g.is_nan() && b.v.is_nan()) || g == b.v)
                })
            });
            let name = format!("{} {} {}", fault.code, fault.slug, fault.key);
            *shown.entry(name).or_default() |= differs;
        }
    }
    let silent: Vec<_> = shown.iter().filter(|(_, s)| !**s).map(|(n, _)| n).collect();
    assert!(!shown.is_empty() && silent.is_empty(), "{}: {silent:?} change nothing", O::NAME);
}

fn stored_as<O: Op>(dtype: Dtype, setup: Setup<O>) -> Setup<O> {
    Setup { policy: O::policy(dtype), ..setup }
}

/// f32 weights half-way between two bf16 numbers.
fn half_way(d: usize) -> Tensor {
    let values: Vec<f64> = (0..d).map(|i| 128.5 + (i % 100) as f64).collect();
    Tensor::from_f64(Dtype::F32, &[d], &values)
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn add_rms_norm_equals_the_formulas(rows in 1usize..5, d in 1usize..200, seed: u64, dtype in 0usize..3) {
        let s = sum(seed, rows, d, STORED[dtype], 0.7);
        let [a, b, w] = ["a", "b", "weight"].map(|n| s.tensors[n].to_f64());
        let x: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        holds(&s, &naive::rms_norm(&x, &w, 1e-6));
        prop_assert_eq!(output(&s, 1), x);
    }

    #[test]
    fn qk_norm_rope_equals_the_formulas(t in 1usize..4, h in 1usize..4, half in 1usize..40, seed: u64, dtype in 0usize..3) {
        let d = 2 * half;
        let s = heads(seed, t, h, d, STORED[dtype], 0.7);
        let [x, w] = ["x", "weight"].map(|n| s.tensors[n].to_f64());
        let normed: Vec<f64> = naive::rms_norm(&x, &w, 1e-6).into_iter().map(|v| v.0).collect();
        let positions: Vec<i64> = (0..t).map(|i| s.tensors["positions"].get_i64(i)).collect();
        let frequencies = naive::inverse_frequencies(1e6, d);
        let turns = Turns { frequencies, factor: 1.0, f32_angle: false };
        holds(&s, &naive::rope(&normed, (h, d), &positions, &turns));
    }

    #[test]
    fn attention_paged_equals_attention_on_the_gathered_keys(
        n in crate::attention::heads(), block in prop_oneof![Just(16usize), Just(32), Just(1)], seed: u64,
        dtype in 0usize..3,
    ) {
        let n = Heads { window: None, ..n };
        let (s, [k, v]) = paged(seed, n, block, STORED[dtype]);
        let q = s.tensors["q"].clone();
        let want = naive::attention(&q.to_f64(), &k.to_f64(), &v.to_f64(), n, s.params.attention.scale);
        holds(&s, &want);
        let whole = setup::<Attention, 3>(s.params.attention.clone(), [("q", q), ("k", k), ("v", v)]);
        prop_assert_eq!(bits(&fast(&s)), bits(&fast(&whole)));
    }

    /// Partitions, their outputs not rounded, are another order of the same sums.
    #[test]
    fn partitions_change_nothing_but_roundings(n in crate::attention::heads(), keys in 1usize..9, seed: u64) {
        let n = Heads { window: None, ..n };
        let (mut s, [k, v]) = paged(seed, n, 16, Dtype::Bf16);
        s.params.split = Some(Split { keys, combine: Combine::Rescaled });
        let q = s.tensors["q"].to_f64();
        let want = naive::attention(&q, &k.to_f64(), &v.to_f64(), n, s.params.attention.scale);
        holds(&s, &want);
    }

    #[test]
    fn kv_store_writes_the_named_slots_and_nothing_else(seed: u64, a in 0i32..4, b in 4i32..8) {
        let s = stores(seed, &[a, -1, b], Dtype::F32, Dtype::F32);
        for (i, (tokens, cache)) in [("k", "k_cache"), ("v", "v_cache")].into_iter().enumerate() {
            let (tokens, mut want) = (s.tensors[tokens].to_f64(), s.tensors[cache].to_f64());
            for (t, slot) in [(0, a as usize), (2, b as usize)] {
                want[slot * 6..(slot + 1) * 6].copy_from_slice(&tokens[t * 6..(t + 1) * 6]);
            }
            prop_assert_eq!(output(&s, i), want);
        }
    }
}

/// Each edge convention has the bits of the parts run one after the other.
#[test]
fn add_rms_norm_has_the_bits_of_its_parts() {
    for (edge_f32, between) in [(false, Dtype::Bf16), (true, Dtype::F32)] {
        let mut fused = stored_as(Dtype::Bf16, sum(7, 3, 130, Dtype::Bf16, 1.0));
        fused.params.edge_f32 = edge_f32;
        let of = |n: &str| fused.tensors[n].clone();
        let add = part::<Add, 2>(Default::default(), between, [("a", of("a")), ("b", of("b"))]);
        let stored: Vec<f64> = fast(&add).iter().map(|x| add.policy.output.round(*x)).collect();
        let x = Tensor::from_f64(between, &[3, 130], &stored);
        let norm = rms_norm::Params::new(1e-6);
        let norm = part::<RmsNorm, 2>(norm, Dtype::Bf16, [("x", x), ("weight", of("weight"))]);
        assert_eq!(bits(&fast(&fused)), bits(&fast(&norm)), "edge_f32 {edge_f32}");
    }
}

#[test]
fn qk_norm_rope_has_the_bits_of_its_parts() {
    for (edge_f32, between) in [(false, Dtype::Bf16), (true, Dtype::F32)] {
        let mut fused = stored_as(Dtype::Bf16, heads(8, 3, 2, 128, Dtype::Bf16, 1.0));
        fused.params.edge_f32 = edge_f32;
        let of = |n: &str| fused.tensors[n].clone();
        let norm = fused.params.norm.clone();
        let norm = part::<RmsNorm, 2>(norm, between, [("x", of("x")), ("weight", of("weight"))]);
        let stored: Vec<f64> = fast(&norm).iter().map(|x| norm.policy.output.round(*x)).collect();
        let x = Tensor::from_f64(between, &[3, 2, 128], &stored);
        let rope = fused.params.rope.clone();
        let tensors = [("x", x), ("positions", of("positions"))];
        let rope = part::<Rope, 2>(rope, Dtype::Bf16, tensors);
        assert_eq!(bits(&fast(&fused)), bits(&fast(&rope)), "edge_f32 {edge_f32}");
    }
}

/// A partition's stored output: softmax and mean of each by itself, rounded, then weighted.
#[test]
fn stored_partitions_are_rounded_before_they_are_weighted() {
    let (mut s, [k, v]) = paged(9, one_head(1, 40), 16, Dtype::Bf16);
    let stored = assay_reference::Rounding::nearest(Dtype::Bf16);
    s.params.split = Some(Split { keys: 16, combine: Combine::Rescaled });
    s.policy.round_at("partial", Dtype::Bf16);
    let (q, k, v) = (s.tensors["q"].to_f64(), k.to_f64(), v.to_f64());
    let mut want = Vec::new();
    for q in q.chunks(8) {
        let score = |j: usize| {
            let dot: f64 = (0..8).map(|i| q[i] * k[j * 8 + i]).sum();
            naive::exp(dot * s.params.attention.scale)
        };
        let (mut out, mut total) = ([0.0; 8], 0.0);
        for part in [0..16, 16..32, 32..40] {
            let weight: f64 = part.clone().map(score).sum();
            total += weight;
            for (i, out) in out.iter_mut().enumerate() {
                let mean: f64 = part.clone().map(|j| score(j) * v[j * 8 + i]).sum();
                *out += weight * stored.round(mean / weight);
            }
        }
        want.extend(out.map(|o| o / total));
    }
    for (got, want) in output(&s, 0).into_iter().zip(want) {
        assert!((got - want).abs() < 1e-13, "{got} for {want}");
    }
}

/// A fault that reaches into the next row looks the same through a tile.
#[test]
fn a_tile_of_a_fault_equals_the_whole() {
    let s = stored_as(Dtype::Bf16, sum(6, 5, 70, Dtype::Bf16, 1.0));
    let faults = AddRmsNorm::faults(&s.params, &s.tensors);
    assert!(faults.len() > 20, "{}", faults.len());
    for f in faults {
        let mut wrong = s.clone();
        (f.edit)(&mut wrong);
        let tile = Tile { rows: Some(vec![3, 1]), cols: Some(vec![0, 69, 2]) };
        let part = wrong.eval::<f64>(&tile);
        for (i, part) in part.iter().enumerate() {
            let all = output(&wrong, i);
            let want: Vec<f64> =
                [3, 1].iter().flat_map(|r| [0, 69, 2].map(|c| all[r * 70 + c])).collect();
            assert_eq!(bits(&part.data), bits(&want), "{f:?}, output {i}");
        }
    }
}

/// Weights that need more than bf16 has.
fn wide_weight(setup: &Setup<impl Op>) -> Tensor {
    let w = &setup.tensors["weight"];
    let values: Vec<f64> = w.to_f64().iter().map(|v| v * 1.003).collect();
    Tensor::from_f64(Dtype::F32, w.shape(), &values)
}

#[test]
fn every_fault_of_add_rms_norm_shows() {
    let bf16 = |seed, d, sd| stored_as(Dtype::Bf16, sum(seed, 40, d, Dtype::Bf16, sd));
    let mut large = bf16(5, 70, 1.0);
    for name in ["a", "b"] {
        let t = large.tensors[name].map(|_, v| v + 5e4);
        large.tensors.insert(name.into(), t);
    }
    let mut ties = bf16(4, 64, 1.0);
    ties.params.norm.eps = 0.0;
    for name in ["a", "b"] {
        let t = ties.tensors[name].map(|i, _| if i % 3 == 0 { 1.0 } else { -1.0 });
        ties.tensors.insert(name.into(), t);
    }
    ties.tensors.insert("weight".into(), half_way(64));
    let mut wide = bf16(6, 64, 1.0);
    wide.tensors.insert("weight".into(), wide_weight(&wide));
    let cases = [bf16(1, 330, 1.0), bf16(2, 330, 0.01), large, ties, wide];
    every_fault_shows_in_some_output(cases);
    every_choice_is_reachable([bf16(3, 130, 1.0)]);
}

#[test]
fn every_fault_of_qk_norm_rope_shows() {
    let bf16 = |seed, sd| stored_as(Dtype::Bf16, heads(seed, 6, 3, 330, Dtype::Bf16, sd));
    let f32_angle = |mut s: Setup<QkNormRope>| {
        s.params.rope.angle = Angle::F32;
        s
    };
    // At position 0 the output is the normalised head, which is a weight or its negative.
    let ties = |edge_f32: bool| {
        let mut s = stored_as(Dtype::Bf16, heads(4, 1, 2, 64, Dtype::Bf16, 1.0));
        (s.params.norm.eps, s.params.edge_f32) = (0.0, edge_f32);
        let x = s.tensors["x"].map(|i, _| if i % 3 == 0 { 2.0 } else { -2.0 });
        s.tensors.insert("x".into(), x);
        s.tensors.insert("weight".into(), half_way(64));
        s.tensors.insert("positions".into(), Tensor::from_i32(&[1], &[0]));
        s
    };
    let mut wide = bf16(5, 1.0);
    wide.tensors.insert("weight".into(), wide_weight(&wide));
    let cases = [bf16(1, 1.0), bf16(2, 0.005), ties(false), ties(true), wide];
    every_fault_shows_in_some_output(cases.map(f32_angle));
    every_choice_is_reachable([f32_angle(bf16(3, 1.0))]);
}

#[test]
fn every_fault_of_kv_store_shows() {
    let plain = stored_as(Dtype::Bf16, stores(1, &[0, -1, 3, 5, 7], Dtype::Bf16, Dtype::Bf16));
    let mut scaled = stores(2, &[0, -1, 3, 5, 6], Dtype::F32, Dtype::F8E4m3);
    scaled.params.scales = [0.3, 0.0123];
    let scaled = stored_as(Dtype::F8E4m3, scaled);
    let mut ties = stores(3, &[0, 1, 3, 5, 6], Dtype::F32, Dtype::Bf16);
    let tie = |v: f64| f64::from(f32::from_bits((v as f32).to_bits() & 0xffff_0000 | 0x8000));
    ties.tensors.insert("k".into(), ties.tensors["k"].map(|_, v| tie(v)));
    every_fault_shows_in_some_output([plain, scaled, stored_as(Dtype::Bf16, ties)]);
}

/// The faults of the block table, the cache and the partitions; attention's own are its tests' matter.
#[test]
fn every_fault_of_the_paging_shows() {
    let mut cases = Vec::new();
    for (n, block) in [(one_head(1, 90), 32), (one_head(3, 40), 16), (one_head(1, 600), 16)] {
        cases.push(stored_as(Dtype::Bf16, paged(11, n, block, Dtype::Bf16).0));
    }
    let two = Heads { hq: 2, hkv: 2, ..one_head(1, 20) };
    cases.push(stored_as(Dtype::Bf16, paged(12, two, 16, Dtype::Bf16).0));
    let mut shown: BTreeMap<String, bool> = BTreeMap::new();
    for case in &cases {
        AttentionPaged::check(&case.params, &case.tensors).expect("checked");
        let right = output(case, 0);
        for f in AttentionPaged::faults(&case.params, &case.tensors) {
            if f.code < "A2C0" {
                continue;
            }
            let mut wrong = case.clone();
            (f.edit)(&mut wrong);
            let got = output(&wrong, 0);
            let differs =
                got.iter().zip(&right).any(|(g, r)| (g - r).abs() > 0.01 * r.abs().max(0.01));
            *shown.entry(format!("{} {}", f.slug, f.key)).or_default() |= differs;
        }
    }
    let silent: Vec<_> = shown.iter().filter(|(_, s)| !**s).map(|(n, _)| n).collect();
    assert!(shown.len() >= 20 && silent.is_empty(), "{silent:?} of {}", shown.len());
}

/// Ids that do not fit: 16 bits alias or read zeros.
#[test]
fn narrow_block_ids_are_offered_only_where_ids_are_wide() {
    let n = Heads { t: 1, s: 3, hq: 1, hkv: 1, d: 2, window: None };
    let (near, _) = paged(1, n, 1, Dtype::F32);
    let narrow = |s: &Setup<AttentionPaged>| {
        let faults = AttentionPaged::faults(&s.params, &s.tensors);
        faults.into_iter().filter(|f| f.slug == "block_id_truncated").collect::<Vec<_>>()
    };
    assert!(narrow(&near).is_empty());
    let mut far = near.clone();
    let mut draw = Draw::new(4);
    let cache = draw.tensor(Dtype::F32, &[65_540, 1, 1, 2], 1.0);
    far.tensors.insert("k_cache".into(), cache.clone());
    far.tensors.insert("v_cache".into(), cache);
    far.tensors.insert("block_table".into(), Tensor::from_i32(&[3], &[65_537, 9, 40_000]));
    let faults = narrow(&far);
    assert_eq!(faults.iter().map(|f| f.key.as_str()).collect::<Vec<_>>(), ["unsigned", "signed"]);
    let mut wrong = far.clone();
    (faults[0].edit)(&mut wrong);
    // Block 65537 is read as block 1.
    far.tensors.insert("block_table".into(), Tensor::from_i32(&[3], &[1, 9, 40_000]));
    assert_eq!(output(&wrong, 0), output(&far, 0));
}
