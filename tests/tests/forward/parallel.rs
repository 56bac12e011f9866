//! A model split over ranks gives the model's numbers: column-parallel layers bit for bit, sums over
//! ranks within their bound.

use std::collections::BTreeMap;
use std::path::Path;

use assay_reference::arith::{Ball, Real};
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::matmul::{self, Matmul};
use assay_reference::ops::{self, Op, Setup, Tensors, Tile};
use assay_reference::qwen::{Forward, Node, Preset, Share};
use assay_reference::{Dtype, Tensor};

use crate::support::{Basis, checkpoint, relative_rms};

/// Whether a model splits; if not, what does not divide.
type Outcome = Result<(), &'static str>;

/// Golden checkpoints, and whether each splits over 2 and over 4 ranks; if not, what is named.
const SPLITS: &[(&str, Outcome, Outcome)] = &[
    ("tiny-qwen2", Ok(()), Ok(())),
    ("tiny-qwen3", Ok(()), Ok(())),
    ("gptq-qwen3", Ok(()), Ok(())),
    ("gptq8-qwen2", Ok(()), Ok(())),
    ("gptq3-qwen3", Ok(()), Ok(())),
    ("awq-qwen3", Ok(()), Ok(())),
    ("ct-qwen3", Ok(()), Ok(())),
    ("fp8-qwen3", Ok(()), Ok(())),
    ("moe-qwen3", Ok(()), Err("2 query heads")),
    ("moe-norm-qwen3", Ok(()), Err("2 query heads")),
    ("window-qwen2", Ok(()), Err("2 query heads")),
    ("window-off-qwen2", Ok(()), Err("2 query heads")),
    ("linear-qwen3", Ok(()), Err("2 query heads")),
    ("dynamic-qwen3", Ok(()), Err("2 query heads")),
    ("yarn-attn-qwen2", Ok(()), Err("2 query heads")),
    ("gqa7-qwen2", Ok(()), Err("14 query heads")),
    ("trained-qwen3", Err("3 query heads"), Err("3 query heads")),
    ("yarn-qwen3", Err("5 query heads"), Err("5 query heads")),
    ("long-qwen3", Err("5 query heads"), Err("5 query heads")),
];

/// Those that split, with their ranks.
fn splitting() -> impl Iterator<Item = (&'static str, usize)> {
    let both =
        |&(name, two, four): &(&'static str, Outcome, Outcome)| [(name, 2, two), (name, 4, four)];
    SPLITS.iter().flat_map(both).filter(|(_, _, r)| r.is_ok()).map(|(name, ranks, _)| (name, ranks))
}

#[test]
fn checkpoints_split_or_say_why_not() {
    let preset = Preset::named("f32").expect("a preset");
    for &(name, two, four) in SPLITS {
        let checkpoint = checkpoint(name);
        for (ranks, expected) in [(2, two), (4, four)] {
            let split = Forward::<f32>::split(&checkpoint, preset, ranks);
            match (split, expected) {
                (Ok(_), Ok(())) => {}
                (Err(e), Err(part)) => {
                    let text = e.to_string();
                    let head = format!("cannot split the model over {ranks} ranks: {part}");
                    assert!(text.starts_with(&head), "{name}: {text}");
                }
                (Ok(_), Err(part)) => panic!("{name} splits over {ranks} in spite of {part}"),
                (Err(e), Ok(())) => panic!("{name} over {ranks}: {e}"),
            }
        }
        for ranks in [0, 3, 16] {
            let e = Forward::<f32>::split(&checkpoint, preset, ranks).expect_err("refused");
            assert!(e.to_string().contains("1, 2, 4 and 8"), "{e}");
        }
    }
}

/// Ids within any golden vocabulary.
pub(crate) const TOKENS: [u32; 6] = [7, 0, 90, 31, 31, 64];

/// What a node computed over all tokens.
pub(crate) struct Seen {
    pub(crate) node: Node,
    pub(crate) values: Vec<f64>,
    pub(crate) bits: Vec<u64>,
}

/// Every probe of one call, and its logits.
pub(crate) fn run<R: Basis>(
    checkpoint: &Checkpoint,
    preset: &'static Preset,
    ranks: usize,
) -> BTreeMap<String, Seen> {
    let mut forward = match ranks {
        1 => Forward::<R>::new(checkpoint, preset),
        n => Forward::<R>::split(checkpoint, preset, n),
    }
    .expect("splits");
    let mut seen = BTreeMap::new();
    let mut see = |node: &Node, x: &[R]| {
        let values = x.iter().map(|v| v.value()).collect();
        let bits = x.iter().map(|v| v.bits()).collect();
        seen.insert(node.probe.clone(), Seen { node: node.clone(), values, bits });
    };
    let logits = forward.step(&TOKENS, &mut see).expect("tokens of the vocabulary");
    assert_eq!(logits.len(), TOKENS.len() * checkpoint.config().vocab_size);
    seen
}

/// Runs a check on every split under each arithmetic.
macro_rules! every_split {
    ($check:ident) => {
        for (name, ranks) in splitting() {
            let checkpoint = checkpoint(name);
            for preset in ["f32", "transformers-bf16"] {
                $check::<f32>(&checkpoint, preset, ranks);
            }
            $check::<f64>(&checkpoint, "oracle-f64", ranks);
        }
    };
}

/// Columns `at..at + width` of rows of `of`.
fn columns<T: Copy>(x: &[T], of: usize, at: usize, width: usize) -> Vec<T> {
    x.chunks(of).flat_map(|row| row[at..at + width].iter().copied()).collect()
}

fn column_shares<R: Basis>(checkpoint: &Checkpoint, preset: &str, ranks: usize) {
    let preset = Preset::named(preset).expect("a preset");
    let (one, split) = (run::<R>(checkpoint, preset, 1), run::<R>(checkpoint, preset, ranks));
    let mut checked = BTreeMap::new();
    for seen in split.values().filter(|s| s.node.layer == Some(0)) {
        let Share::Columns { rank, copies } = seen.node.share else { continue };
        let name = seen.node.layer_probe();
        // Nothing behind the first sum over ranks.
        if ["gate_proj", "up_proj", "silu_mul"].iter().any(|n| name.ends_with(n)) {
            continue;
        }
        let whole = &one[name];
        let width = seen.node.width;
        let part = columns(&whole.bits, whole.node.width, rank / copies * width, width);
        assert_eq!(part, seen.bits, "{} under {}", seen.node.probe, preset.name);
        *checked.entry(name).or_insert(0) += width / copies.max(1);
        assert_eq!(whole.node.width * copies, width * ranks, "{name}");
    }
    let config = checkpoint.config();
    let expect = if config.architecture.has_qk_norm() { 8 } else { 6 };
    assert_eq!(checked.len(), expect, "{:?}", checked.keys());
}

/// Projections, norms of heads, ropes and attention of the first layer, which no split sum feeds.
#[test]
fn column_parallel_layers_have_the_same_bits() {
    every_split!(column_shares);
}

/// A layer's stored arguments without its input.
fn weights(checkpoint: &Checkpoint, prefix: &str) -> Tensors {
    let mut out = Tensors::new();
    for part in ["weight", "bias"] {
        if let Ok(t) = checkpoint.tensor(&format!("{prefix}.{part}")) {
            out.insert(part.into(), t);
        }
    }
    out
}

/// The input of a row-parallel layer: what the ranks hold of it, side by side.
pub(crate) fn joined(split: &BTreeMap<String, Seen>, probe: &str, ranks: usize) -> Tensor {
    let parts: Vec<&Seen> = (0..ranks).map(|r| &split[&format!("{probe}@{r}")]).collect();
    let width = parts[0].node.width;
    let mut values = Vec::new();
    for t in 0..TOKENS.len() {
        parts.iter().for_each(|p| values.extend(&p.values[t * width..(t + 1) * width]));
    }
    Tensor::from_f64(Dtype::F64, &[TOKENS.len(), width * ranks], &values)
}

pub(crate) fn row_layers(checkpoint: &Checkpoint) -> Vec<(String, String, String)> {
    let config = checkpoint.config();
    let mut all = Vec::new();
    for n in 0..config.num_hidden_layers {
        let mut add = |out: &str, x: &str, module: &str| {
            all.push((
                format!("layers.{n}.{out}"),
                format!("layers.{n}.{x}"),
                format!("model.layers.{n}.{module}"),
            ));
        };
        add("o_proj", "attention", "self_attn.o_proj");
        if config.moe_of(n).is_none() {
            add("down_proj", "silu_mul", "mlp.down_proj");
        }
    }
    all
}

fn row_sums<R: Basis>(checkpoint: &Checkpoint, preset: &str, ranks: usize) {
    if checkpoint.config().quantization.is_some() {
        return;
    }
    let preset = Preset::named(preset).expect("a preset");
    let split = run::<R>(checkpoint, preset, ranks);
    for (out, x, prefix) in row_layers(checkpoint) {
        let mut tensors = weights(checkpoint, &prefix);
        tensors.insert("x".into(), joined(&split, &x, ranks));
        let params = serde_json::json!({ "row_parallel": true, "ranks": ranks });
        let (params, policy) = preset.apply::<Matmul>(&params, &tensors).expect("params");
        Matmul::check(&params, &tensors).expect("a row-parallel layer");
        let mut setup = Setup::<Matmul> { params, policy, tensors };
        let store = |x: R| x.round(setup.policy.output, f64::INFINITY).bits();
        let convention: Vec<u64> =
            setup.eval::<R>(&Tile::ALL).remove(0).data.into_iter().map(store).collect();
        let what = format!("{out} over {ranks} under {}", preset.name);
        assert_eq!(convention, split[&out].bits, "{what}");

        // What one rank computes from the same inputs: within the bound of both, each stored.
        if R::BITS == 24 {
            inside(&mut setup, &split[&out].values, &what, Real::value as fn(Ball<24>) -> f64);
        } else {
            inside(&mut setup, &split[&out].values, &what, Real::value as fn(Ball<53>) -> f64);
        }
    }
}

/// The sum over ranks lies inside the bound of its own convention, and inside the bound of one rank
/// widened by what storing the partial products can move: half an ulp of each.
fn inside<const P: i32>(
    setup: &mut Setup<Matmul>,
    got: &[f64],
    what: &str,
    _basis: fn(Ball<P>) -> f64,
) where
    Ball<P>: ops::Basis,
{
    let output = setup.policy.output;
    let bound = |s: &Setup<Matmul>| s.eval::<Ball<P>>(&Tile::ALL).remove(0).data;
    for (i, (got, ball)) in got.iter().zip(bound(setup)).enumerate() {
        let ball = ball.round(output, f64::INFINITY);
        assert!((got - ball.v).abs() <= ball.r, "{what} at {i}: {got} outside {ball:?}");
    }
    let ranks = setup.params.ranks;
    let sizes = magnitudes(setup);
    setup.params.ranks = 1;
    for (i, (got, ball)) in got.iter().zip(bound(setup)).enumerate() {
        let partials = ranks as f64 * output.most(sizes[i]);
        let limit = ball.r + partials + output.most(got.abs().max(ball.v.abs())) + sizes[i] * 1e-15;
        assert!((got - ball.v).abs() <= limit, "{what} at {i}: {got} beyond {limit:e} of {ball:?}");
    }
}

/// sum |x w| of each output: no partial product is larger.
fn magnitudes(setup: &Setup<Matmul>) -> Vec<f64> {
    let mut all = setup.clone();
    for t in all.tensors.values_mut() {
        let dtype = if t.dtype() == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        *t = Tensor::from_f64(
            dtype,
            t.shape(),
            &t.to_f64().iter().map(|v| v.abs()).collect::<Vec<_>>(),
        );
    }
    all.params = matmul::Params::default();
    all.policy = Matmul::policy(Dtype::F64);
    all.eval::<f64>(&Tile::ALL).remove(0).data
}

#[test]
fn sums_over_ranks_follow_the_judges_convention_bitwise() {
    every_split!(row_sums);
}

/// In f64 a sum in another order differs by some u = 1.1e-16: 1e-11 of the scale leaves what two
/// float64 forwards are allowed (see `golden.rs`).
#[test]
fn float64_logits_do_not_depend_on_the_ranks() {
    for (name, ranks) in splitting() {
        let checkpoint = checkpoint(name);
        let preset = Preset::named("oracle-f64").expect("a preset");
        let one = run::<f64>(&checkpoint, preset, 1);
        let split = run::<f64>(&checkpoint, preset, ranks);
        let (one, split) = (&one["logits"].values, &split["logits"].values);
        let scale = one.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (i, (a, b)) in split.iter().zip(one).enumerate() {
            assert!((a - b).abs() <= 1e-11 * scale, "{name} over {ranks} at {i}: {a} for {b}");
        }
    }
}

/// Two f32 forwards of another order of sums differ by no more than transformers' and this one
/// (`golden.rs`: 2e-6).
#[test]
fn f32_logits_differ_by_f32_noise() {
    for (name, ranks) in splitting() {
        let checkpoint = checkpoint(name);
        let preset = Preset::named("f32").expect("a preset");
        let one = run::<f32>(&checkpoint, preset, 1);
        let split = run::<f32>(&checkpoint, preset, ranks);
        let relative = relative_rms(&split["logits"].values, &one["logits"].values);
        assert!(relative <= 2e-6, "{name} over {ranks}: {relative:e}");
        assert!(relative > 0.0, "{name} over {ranks}: nothing was split");
    }
}

/// With fewer kv heads than ranks, ranks in a row hold the same head, and each query head finds its own.
#[test]
fn kv_heads_are_repeated_over_ranks() {
    let preset = Preset::named("f32").expect("a preset");
    for (name, ranks, copies) in
        [("tiny-qwen3", 4, 2), ("tiny-qwen2", 4, 2), ("moe-qwen3", 2, 2), ("tiny-qwen3", 2, 1)]
    {
        let checkpoint = checkpoint(name);
        assert_eq!(copies, (ranks / checkpoint.config().num_key_value_heads).max(1), "{name}");
        let split = run::<f32>(&checkpoint, preset, ranks);
        for probe in ["k_proj", "v_proj", "k_rope"] {
            for rank in 0..ranks {
                let of = |rank: usize| &split[&format!("layers.1.{probe}@{rank}")];
                assert_eq!(of(rank).node.share, Share::Columns { rank, copies }, "{name} {probe}");
                let first = rank / copies * copies;
                assert_eq!(of(rank).bits, of(first).bits, "{name} {probe}@{rank}");
                let other = (rank + copies) % ranks;
                if other != rank && other / copies != rank / copies {
                    assert_ne!(of(rank).bits, of(other).bits, "{name} {probe}@{rank}");
                }
            }
        }
    }
}

/// transformers' bf16 conventions, with the sum over ranks stored after each.
static STORED_SUMS: Preset = Preset {
    name: "bf16, sums stored",
    summary: "bf16 with sums over ranks stored after each rank",
    dtype: Dtype::Bf16,
    angle: assay_reference::ops::rope::Angle::F32,
    choices: &[("all_reduce", "sum", "stored")],
};
static F32_SUMS: Preset = Preset { name: "bf16, sums in f32", choices: &[], ..STORED_SUMS };

/// Four bf16 parts: a running sum stored after each rank loses up to half an ulp of it twice more than
/// one kept in f32. It must differ somewhere and stay within that.
#[test]
fn stored_sums_differ_from_f32_sums_within_bf16() {
    let checkpoint = checkpoint("tiny-qwen3");
    let (stored, kept) =
        (run::<f32>(&checkpoint, &STORED_SUMS, 4), run::<f32>(&checkpoint, &F32_SUMS, 4));
    let bf16 = assay_reference::Rounding::nearest(Dtype::Bf16);
    let terms: Vec<&Seen> = (0..4).map(|r| &stored[&format!("layers.0.o_proj@{r}")]).collect();
    for (r, t) in terms.iter().enumerate() {
        assert_eq!(t.bits, kept[&format!("layers.0.o_proj@{r}")].bits, "the parts are the same");
        assert_eq!(t.node.share, Share::Term);
    }
    let (a, b) = (&stored["layers.0.o_proj"].values, &kept["layers.0.o_proj"].values);
    assert_ne!(a, b, "storing the running sum shows");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        // Running sums after ranks 1 and 2 are stored, and both results are.
        let size: f64 = terms.iter().map(|t| t.values[i].abs()).sum();
        assert!((a - b).abs() <= 4.0 * bf16.most(size), "{i}: {a} and {b} of {size}");
        // By hand.
        let running =
            terms[1..].iter().fold(terms[0].values[i], |s, t| bf16.round(s) + t.values[i]);
        assert_eq!(*a, bf16.round(running), "{i}");
    }
}

mod biased {
    //! A Qwen3 with attention_bias, whose o_proj is row-parallel and has a bias.

    use super::*;
    use assay_reference::checkpoint::write;

    /// Hidden 16, 4 heads of 8, 2 kv heads, MLP 24, 2 layers.
    fn tensors() -> BTreeMap<String, Tensor> {
        let mut seed = 1u64;
        let mut make = |shape: &[usize], around: f64| {
            let n: usize = shape.iter().product();
            let values: Vec<f64> = (0..n)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    around + (seed >> 33) as f64 / f64::from(1u32 << 31) - 0.5
                })
                .collect();
            Tensor::from_f64(Dtype::Bf16, shape, &values)
        };
        let mut all = BTreeMap::new();
        all.insert("model.embed_tokens.weight".to_string(), make(&[96, 16], 0.0));
        all.insert("model.norm.weight".into(), make(&[16], 1.0));
        for layer in 0..2 {
            let mut put = |name: &str, shape: &[usize], around: f64| {
                all.insert(format!("model.layers.{layer}.{name}"), make(shape, around));
            };
            put("input_layernorm.weight", &[16], 1.0);
            put("post_attention_layernorm.weight", &[16], 1.0);
            put("self_attn.q_norm.weight", &[8], 1.0);
            put("self_attn.k_norm.weight", &[8], 1.0);
            for (name, n, k) in
                [("q_proj", 32, 16), ("k_proj", 16, 16), ("v_proj", 16, 16), ("o_proj", 16, 32)]
            {
                put(&format!("self_attn.{name}.weight"), &[n, k], 0.0);
                put(&format!("self_attn.{name}.bias"), &[n], 2.0);
            }
            for (name, n, k) in [("gate_proj", 24, 16), ("up_proj", 24, 16), ("down_proj", 16, 24)]
            {
                put(&format!("mlp.{name}.weight"), &[n, k], 0.0);
            }
        }
        all
    }

    fn save(dir: &Path) {
        let config = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": true,
            "head_dim": 8, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 24,
            "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 96,
        });
        std::fs::write(dir.join("config.json"), config.to_string()).expect("writable");
        write(&dir.join("model.safetensors"), &tensors(), &BTreeMap::new()).expect("writable");
    }

    #[test]
    fn the_bias_of_a_row_parallel_layer_is_added_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        save(dir.path());
        let checkpoint = Checkpoint::open(dir.path()).expect("a checkpoint");
        let preset = Preset::named("oracle-f64").expect("a preset");
        let one = run::<f64>(&checkpoint, preset, 1);
        for ranks in [2, 4] {
            column_shares::<f32>(&checkpoint, "transformers-bf16", ranks);
            row_sums::<f32>(&checkpoint, "transformers-bf16", ranks);
            row_sums::<f64>(&checkpoint, "oracle-f64", ranks);
            let split = run::<f64>(&checkpoint, preset, ranks);
            let biased = |probe: &str| {
                split[probe].node.inputs.iter().any(|(arg, _)| arg.as_ref() == "bias")
            };
            assert!(biased("layers.0.o_proj@0") && !biased("layers.0.o_proj@1"));
            assert!(biased("layers.0.q_proj@1"), "each rank has its columns' biases");
            for probe in ["layers.0.o_proj", "layers.1.o_proj", "logits"] {
                let (a, b) = (&split[probe].values, &one[probe].values);
                let scale = b.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                // A bias counted twice would move every output by about 2.
                let most = a.iter().zip(b).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(most <= 1e-11 * scale, "{probe} over {ranks}: {most:e}");
            }
        }
    }
}
