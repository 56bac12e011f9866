//! Cases of `moe_experts`: dense and quantised experts, tokens that share experts and experts without
//! tokens.

use assay_reference::Dtype;
use serde_json::json;

use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};
use super::quantised::{Gptq, Scales, Spec};
use super::{Generated, Values};

const OP: &str = "moe_experts";

/// (T, H, I, E, k).
type Dims = (usize, usize, usize, usize, usize);

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit((6, 16, 24, 4, 2), dtype, seed));
        out.push(exact((5, 8, 8, 3, 2), dtype, seed));
    }
    out.push(unit((3, 24, 16, 8, 4), Dtype::Bf16, seed));
    out.push(unit((2, 8, 8, 1, 1), Dtype::Bf16, seed));
    out.push(outlier((4, 16, 24, 4, 2), seed));
    out.push(special((4, 16, 8, 4, 2), seed));
    out.push(quantised((3, 16, 24, 2, 2), seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for t in [1, 7, 8, 9, 63, 64, 65] {
        out.push(unit((t, 16, 8, 8, 2), Dtype::Bf16, seed));
    }
    out.push(unit((4, 127, 65, 4, 2), Dtype::Bf16, seed));
    out.push(unit((2, 768, 129, 3, 2), Dtype::Bf16, seed));
    out
}

fn draft(family: Family, (t, h, i, e, k): Dims, note: &str, dtype: Dtype, seed: u64) -> Draft {
    let label = format!("{t} tokens {h}x{i} experts {e} top {k}{note}");
    Draft::new(OP, family, label, dtype, seed)
}

/// Distinct weights of the `k` experts that a token goes to, as a router leaves them; the last expert
/// has no token where that leaves enough.
fn routing(v: &mut Values, (t, _, _, e, k): Dims) -> Vec<f64> {
    let mut out = vec![0.0; t * e];
    let open = if e > k { e - 1 } else { e };
    for row in out.chunks_mut(e) {
        let chosen = v.permutation(open);
        let weights: Vec<f64> = (0..k).map(|_| 0.2 + v.uniform()).collect();
        let sum: f64 = weights.iter().sum();
        for (expert, w) in chosen.into_iter().zip(weights) {
            row[expert] = 0.9 * w / sum;
        }
    }
    out
}

/// Expert weights from a source, in rows.
fn dense(
    mut draft: Draft,
    (_, h, i, e, _): Dims,
    mut value: impl FnMut(usize) -> Vec<f64>,
) -> Draft {
    for expert in 0..e {
        for (module, shape) in [("gate_proj", [i, h]), ("up_proj", [i, h]), ("down_proj", [h, i])] {
            let name = format!("experts.{expert}.{module}.weight");
            draft = draft.with(&name, &shape, &value(h * i));
        }
    }
    draft
}

fn unit(d: Dims, dtype: Dtype, seed: u64) -> Generated {
    let (t, h, _, e, _) = d;
    let draft = draft(UNIT, d, "", dtype, seed);
    let mut v = draft.values();
    let (x, r) = (v.normals(t * h, 1.0), routing(&mut v, d));
    let sd = 1.5 / (h as f64).sqrt();
    dense(draft, d, |n| v.normals(n, sd)).with("x", &[t, h], &x).with("routing", &[t, e], &r).done()
}

/// Gates of 33 and more, where silu is the gate itself, and small integers: what is stored between the
/// steps is exact, and many a sum of two experts lies half-way between two stored numbers.
fn exact(d: Dims, dtype: Dtype, seed: u64) -> Generated {
    let (t, h, i, e, _) = d;
    let mut draft = draft(EXACT, d, "", dtype, seed);
    let mut v = draft.values();
    // One input is 1, the others 0: a row of each expert's weights is picked.
    let mut x = vec![0.0; t * h];
    (0..t).for_each(|r| x[r * h + (3 * r + 1) % h] = 1.0);
    let mut routed = vec![0.0; t * e];
    for r in 0..t {
        (routed[r * e + r % e], routed[r * e + (r + 1) % e]) = (0.5, 0.5);
    }
    for expert in 0..e {
        let gate: Vec<f64> = (0..h * i).map(|_| [33.0, 35.0, 47.0][v.below(3)]).collect();
        let up: Vec<f64> = (0..h * i).map(|_| [1.0, 3.0, -1.0][v.below(3)]).collect();
        // One output takes two products; halved, it is an odd integer of one expert and an even one of
        // the next.
        let mut down = vec![0.0; h * i];
        for row in 0..h {
            down[row * i + v.below(i)] = 4.0;
            down[row * i + row % i] = if expert % 2 == 0 { -2.0 } else { -4.0 };
        }
        draft = draft
            .with(&format!("experts.{expert}.gate_proj.weight"), &[i, h], &gate)
            .with(&format!("experts.{expert}.up_proj.weight"), &[i, h], &up)
            .with(&format!("experts.{expert}.down_proj.weight"), &[h, i], &down);
    }
    draft.with("x", &[t, h], &x).with("routing", &[t, e], &routed).done()
}

/// A channel at 26 times the rms, and one expert whose output outweighs the others.
fn outlier(d: Dims, seed: u64) -> Generated {
    let (t, h, _, e, _) = d;
    let draft = draft(OUTLIER, d, "", Dtype::Bf16, seed);
    let mut v = draft.values();
    let (mut x, r) = (v.normals(t * h, 1.0), routing(&mut v, d));
    x.chunks_mut(h).for_each(|row| row[h * 2 / 5] = 26.0);
    let mut layer = 0;
    dense(draft, d, |n| {
        layer += 1;
        v.normals(n, if layer == 6 { 6.0 } else { 0.3 })
    })
    .with("x", &[t, h], &x)
    .with("routing", &[t, e], &r)
    .done()
}

/// A token of NaN, one of infinities, one of zeros; an expert with a NaN that no token takes.
fn special(d: Dims, seed: u64) -> Generated {
    let (t, h, _, e, _) = d;
    let draft = draft(SPECIAL, d, "", Dtype::Bf16, seed);
    let mut v = draft.values();
    let (mut x, r) = (v.normals(t * h, 1.0), routing(&mut v, d));
    x[2] = f64::NAN;
    x[h + 3] = f64::INFINITY;
    x[2 * h..3 * h].fill(0.0);
    let mut layer = 0;
    dense(draft, d, |n| {
        layer += 1;
        let mut w = v.normals(n, 0.4);
        if layer > 3 * (e - 1) {
            w[1] = f64::NAN;
        }
        w
    })
    .with("x", &[t, h], &x)
    .with("routing", &[t, e], &r)
    .done()
}

/// Experts over 4-bit GPTQ weights.
fn quantised(d: Dims, seed: u64) -> Generated {
    let (t, h, i, e, _) = d;
    let mut draft = draft(UNIT, d, " gptq", Dtype::Bf16, seed);
    let mut v = draft.values();
    let (x, r) = (v.normals(t * h, 1.0), routing(&mut v, d));
    let mut params = serde_json::Map::new();
    for expert in 0..e {
        for (module, [n, k]) in [("gate_proj", [i, h]), ("up_proj", [i, h]), ("down_proj", [h, i])]
        {
            let scales = Scales::Trained;
            let gptq =
                Gptq { format: "v2", bits: 4, k, n, group_size: 8, asym: true, act: false, scales };
            let layer = gptq.layer(&mut v);
            let form = json!({ "dequant": layer.params, "matmul": { "layout": "in_out" } });
            params.insert(module.into(), json!({ "gptq": form }));
            for (name, tensor) in layer.tensors {
                draft = draft.tensor(&format!("experts.{expert}.{module}.{name}"), tensor);
            }
        }
    }
    draft.params(params.into()).with("x", &[t, h], &x).with("routing", &[t, e], &r).done()
}
