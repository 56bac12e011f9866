//! Small random cases of every op, for the tests of the natives.

use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

use crate::families::Values;

/// A case from its parts.
pub(super) fn case(op: &str, params: Value, dtype: Dtype, tensors: Vec<(&str, Tensor)>) -> Case {
    Case {
        op: op.into(),
        params,
        dtype,
        tensors: tensors.into_iter().map(|(k, t)| (k.to_string(), t)).collect(),
        outputs: Default::default(),
        family: "by hand".into(),
        seed: 0,
    }
}

/// Makes tensors.
struct Maker(Values);

impl Maker {
    fn normal(&mut self, dtype: Dtype, shape: &[usize], sd: f64) -> Tensor {
        let v = self.0.normals(shape.iter().product(), sd);
        Tensor::from_f64(dtype, shape, &v)
    }

    fn words(&mut self, shape: &[usize]) -> Tensor {
        let n = shape.iter().product();
        let words: Vec<i32> =
            (0..n).map(|_| self.0.int(-(1 << 31), (1 << 31) - 1) as i32).collect();
        Tensor::from_i32(shape, &words)
    }

    fn scales(&mut self, dtype: Dtype, shape: &[usize]) -> Tensor {
        let n: usize = shape.iter().product();
        let v: Vec<f64> = (0..n).map(|_| 0.004 + 0.02 * self.0.uniform()).collect();
        Tensor::from_f64(dtype, shape, &v)
    }

    fn index(&mut self, k: usize, size: usize) -> Tensor {
        let groups: Vec<i32> = self.0.permutation(k).iter().map(|p| (p / size) as i32).collect();
        Tensor::from_i32(&[k], &groups)
    }
}

use Dtype::{Bf16, F16, F32};

/// Cases of an op.
pub(super) fn cases(op: &str) -> Vec<Case> {
    let mut m = Maker(Values::new(11, op));
    match op {
        "embedding" => embedding(&mut m),
        "rms_norm" => [(Bf16, [5usize, 300], 1.0), (F16, [9, 100], 0.02), (F32, [4, 128], 3.0)]
            .map(|(t, s, sd)| {
                let tensors =
                    vec![("x", m.normal(t, &s, sd)), ("weight", m.normal(t, &[s[1]], 1.0))];
                case(op, json!({ "eps": 1e-6 }), t, tensors)
            })
            .into(),
        "matmul" => [(Bf16, 5usize, 17usize, 70usize), (F16, 3, 9, 40), (F32, 2, 5, 33)]
            .map(|(t, rows, n, k)| {
                let tensors = vec![
                    ("x", m.normal(t, &[rows, k], 1.0)),
                    ("weight", m.normal(t, &[n, k], 0.2)),
                    ("bias", m.normal(t, &[n], 1.0)),
                ];
                case(op, json!({ "row_parallel": true }), t, tensors)
            })
            .into(),
        "gptq_dequant" | "awq_dequant" | "ct_dequant" | "fp8_dequant" => quantised(op, &mut m)
            .into_iter()
            .map(|(p, dtype, t, _)| case(op, p, dtype, t))
            .collect(),
        "gptq_gemm" | "awq_gemm" | "ct_gemm" | "fp8_gemm" => gemms(op, &mut m),
        "rope" => rope(&mut m),
        "softmax" => [(Bf16, [4usize, 50]), (F16, [3, 7]), (F32, [3, 65])]
            .map(|(t, s)| case(op, json!({}), t, vec![("x", m.normal(t, &s, 3.0))]))
            .into(),
        "attention" => attention(&mut m),
        "silu_mul" | "add" => [Bf16, F16, F32]
            .map(|t| {
                let names = if op == "add" { ["a", "b"] } else { ["gate", "up"] };
                let tensors = names.map(|n| (n, m.normal(t, &[7, 60], 3.0)));
                case(op, json!({}), t, tensors.into())
            })
            .into(),
        "argmax" => vec![case(op, json!({}), F32, vec![("x", m.normal(F32, &[30, 300], 1.0))])],
        "moe_route" => [true, false]
            .map(|normalise| {
                let params = json!({ "top_k": 3, "normalise": normalise });
                case(op, params, Bf16, vec![("logits", m.normal(Bf16, &[40, 16], 1.5))])
            })
            .into(),
        "moe_experts" => experts(&mut m),
        "all_reduce" => ["part.0", "part.1", "part.2", "part.3"][..]
            .chunks(2)
            .map(|_| {
                let names = ["part.0", "part.1", "part.2", "part.3"];
                let parts = names.map(|n| (n, m.normal(Bf16, &[6, 50], 1.0)));
                case(op, json!({}), Bf16, parts.into())
            })
            .collect(),
        "all_gather" => {
            let parts = [("part.0", 5usize), ("part.1", 6), ("part.2", 7)];
            let parts = parts.map(|(n, d)| (n, m.normal(Bf16, &[3, d], 1.0)));
            vec![case(op, json!({}), Bf16, parts.into())]
        }
        other => panic!("no cases of `{other}`"),
    }
}

fn embedding(m: &mut Maker) -> Vec<Case> {
    let ids: Vec<i32> = (0..9).map(|_| m.0.below(20) as i32).collect();
    let tensors =
        vec![("ids", Tensor::from_i32(&[9], &ids)), ("weight", m.normal(Bf16, &[20, 12], 1.0))];
    vec![case("embedding", json!({}), Bf16, tensors)]
}

type Part = (Value, Dtype, Vec<(&'static str, Tensor)>, [usize; 2]);

/// Weights of a format, with [N, K].
fn quantised(op: &str, m: &mut Maker) -> Vec<Part> {
    match op.split('_').next() {
        Some("gptq") => [
            ("v1", 4usize, 64usize, 24usize, 16i64, false, Bf16),
            ("v2", 4, 64, 16, 16, true, F16),
            ("v1", 3, 64, 32, -1, false, Bf16),
            ("v2", 8, 32, 12, 16, false, Bf16),
            ("v1", 2, 32, 32, 8, true, Bf16),
        ]
        .map(|(format, bits, k, n, size, act, dtype)| {
            let groups = if size < 0 { 1 } else { k / size as usize };
            let mut t = vec![
                ("qweight", m.words(&[k * bits / 32, n])),
                ("qzeros", m.words(&[groups, n * bits / 32])),
                ("scales", m.scales(F16, &[groups, n])),
            ];
            if act {
                t.push(("g_idx", m.index(k, size as usize)));
            }
            let params = json!({ "format": format, "bits": bits, "group_size": size });
            (params, dtype, t, [n, k])
        })
        .into(),
        Some("awq") => [(64usize, 24usize, 16i64, Bf16), (32, 16, -1, F16)]
            .map(|(k, n, size, dtype)| {
                let groups = if size < 0 { 1 } else { k / size as usize };
                let t = vec![
                    ("qweight", m.words(&[k, n / 8])),
                    ("qzeros", m.words(&[groups, n / 8])),
                    ("scales", m.scales(F16, &[groups, n])),
                ];
                (json!({ "group_size": size }), dtype, t, [n, k])
            })
            .into(),
        Some("ct") => [
            (4usize, 64usize, 24usize, 16i64, true, false, Bf16),
            (4, 64, 16, 16, true, true, F16),
            (3, 64, 32, -1, true, false, Bf16),
            (8, 32, 12, 16, false, false, Bf16),
        ]
        .map(|(bits, k, n, size, zeros, act, dtype)| {
            let groups = if size < 0 { 1 } else { k / size as usize };
            let mut t = vec![
                ("weight_packed", m.words(&[n, (k * bits).div_ceil(32)])),
                ("weight_scale", m.scales(Bf16, &[n, groups])),
                ("weight_shape", Tensor::from_i32(&[2], &[n as i32, k as i32])),
            ];
            if zeros {
                t.push(("weight_zero_point", m.words(&[(n * bits).div_ceil(32), groups])));
            }
            if act {
                t.push(("weight_g_idx", m.index(k, size as usize)));
            }
            (json!({ "bits": bits, "group_size": size }), dtype, t, [n, k])
        })
        .into(),
        _ => [(40usize, 72usize, [16usize, 32usize], Bf16), (24, 300, [128, 128], F16)]
            .map(|(n, k, block, dtype)| {
                // One NaN, and every finite code.
                let code = |i: usize| match (i * 37 + i / 251) as u8 {
                    0x7f | 0xff => 0x38,
                    code => code,
                };
                let mut codes: Vec<u8> = (0..n * k).map(code).collect();
                codes[n * k / 2] = 0x7f;
                let t = vec![
                    ("weight", Tensor::from_bytes(Dtype::F8E4m3, vec![n, k], codes).expect("fits")),
                    (
                        "weight_scale_inv",
                        m.scales(F32, &[n.div_ceil(block[0]), k.div_ceil(block[1])]),
                    ),
                ];
                (json!({ "block": block }), dtype, t, [n, k])
            })
            .into(),
    }
}

fn gemms(op: &str, m: &mut Maker) -> Vec<Case> {
    let layout = if matches!(op, "gptq_gemm" | "awq_gemm") { "in_out" } else { "out_in" };
    let parts = quantised(op, m);
    let build = |(dequant, dtype, mut t, [n, k]): Part| {
        t.push(("x", m.normal(dtype, &[3, k], 1.0)));
        t.push(("bias", m.normal(dtype, &[n], 1.0)));
        let params =
            json!({ "dequant": dequant, "matmul": { "layout": layout, "row_parallel": true } });
        case(op, params, dtype, t)
    };
    parts.into_iter().map(build).collect()
}

fn rope(m: &mut Maker) -> Vec<Case> {
    let yarn = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": true, "attention_factor": 1.138,
    });
    [
        (json!({ "rope_type": "default" }), Bf16),
        (json!({ "rope_type": "default" }), F32),
        (yarn, Bf16),
        (json!({ "rope_type": "linear", "factor": 3.0 }), F16),
        (json!({ "rope_type": "dynamic", "factor": 2.0, "max_position": 500 }), Bf16),
    ]
    .map(|(scaling, dtype)| {
        let positions = Tensor::from_i32(&[5], &[3, 4, 99, 1000, 9001]);
        let tensors = vec![("x", m.normal(dtype, &[5, 2, 64], 1.0)), ("positions", positions)];
        case("rope", json!({ "theta": 1e6, "scaling": scaling }), dtype, tensors)
    })
    .into()
}

fn attention(m: &mut Maker) -> Vec<Case> {
    let dims = [(5usize, 41usize, 4usize, 2usize, None, Bf16), (3, 40, 6, 2, Some(9), F16)];
    dims.map(|(t, s, hq, hkv, window, dtype)| {
        let d = 16;
        let mut params = json!({ "scale": 0.25 });
        if let Some(w) = window {
            params["window"] = json!(w);
        }
        let tensors = vec![
            ("q", m.normal(dtype, &[t, hq, d], 1.5)),
            ("k", m.normal(dtype, &[s, hkv, d], 1.5)),
            ("v", m.normal(dtype, &[s, hkv, d], 1.0)),
        ];
        case("attention", params, dtype, tensors)
    })
    .into()
}

fn experts(m: &mut Maker) -> Vec<Case> {
    let names = [
        ["experts.0.gate_proj.weight", "experts.0.up_proj.weight", "experts.0.down_proj.weight"],
        ["experts.1.gate_proj.weight", "experts.1.up_proj.weight", "experts.1.down_proj.weight"],
        ["experts.2.gate_proj.weight", "experts.2.up_proj.weight", "experts.2.down_proj.weight"],
    ];
    let (h, i) = (24, 16);
    let mut t = vec![("x", m.normal(Bf16, &[4, h], 1.0))];
    let routing = [0.75, 0.25, 0.0, 0.0, 0.375, 0.625, 0.5, 0.0, 0.5, 0.1875, 0.5, 0.3125];
    t.push(("routing", Tensor::from_f64(Bf16, &[4, 3], &routing)));
    for [gate, up, down] in names {
        t.push((gate, m.normal(Bf16, &[i, h], 0.3)));
        t.push((up, m.normal(Bf16, &[i, h], 0.3)));
        t.push((down, m.normal(Bf16, &[h, i], 0.3)));
    }
    vec![case("moe_experts", json!({}), Bf16, t)]
}
