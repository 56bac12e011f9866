//! Families: seeded generators of cases.
//!
//! - `exact`: integers whose every partial sum and result is exact, so that any order gives the same
//!   bits and one missing or doubled term always shows;
//! - `unit`: values of standard deviation 1 or as the op sees them in a model;
//! - `outlier`: one channel at 26 times the rms, biases up to 147, inputs of sd 0.02;
//! - `special`: infinities, NaN, subnormals, negative zero, huge scores.
//!
//! Unit-scale random data alone is how wrong kernels pass.

mod add_rms_norm;
mod argmax;
mod attention;
mod attention_paged;
mod attention_small;
mod collectives;
mod composites;
mod describe;
mod draft;
mod elementwise;
mod embedding;
mod examples_quantised;
mod gptq_dequant;
mod kv_store;
mod matmul;
mod matmul_f32;
mod matmul_small;
mod moe_experts;
mod moe_route;
mod qk_norm_rope;
mod quantised;
pub(crate) mod relation_cases;
mod rms_norm;
mod rope;
mod softmax;
#[cfg(test)]
mod tests;
mod values;

use std::sync::Arc;

use assay_reference::ops::{Erased, Op, Scope, Tensors};
use assay_reference::{Case, Dtype, Error, Result, Tensor};
use serde_json::{Value, json};

use crate::judge::{self, Observation};

pub use describe::{COINCIDE, Coincide, FamilyInfo, describe};
pub use values::Values;

/// A generated case and how it is to be judged.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The case.
    pub case: Case,
    /// `unit 65x70x100 bias`.
    pub label: String,
    /// Whether errors are not random here, so that only hard radii apply.
    pub structured: bool,
}

impl Generated {
    /// A run of no subject on this case, for what depends on the inputs alone: the output of that name
    /// is zeros.
    ///
    /// # Errors
    /// When the case is not its op's, or the op has no such output.
    pub fn unobserved(&self, output: &str) -> Result<Observation> {
        let outputs = Erased::open(&self.case)?.1;
        let named = outputs.into_iter().find(|spec| spec.name == output);
        let what = || Error::Request(format!("`{}` has no output `{output}`", self.case.op));
        let shape = named.ok_or_else(what)?.shape;
        let zeros = vec![0.0; shape.iter().product()];
        Ok(Observation {
            case: Arc::new(self.case.clone()),
            output: Tensor::from_f64(self.case.dtype, &shape, &zeros),
            label: self.label.clone(),
            structured: self.structured,
        })
    }
}

/// All cases of an op, with sizes on both sides of every limit; of an op that a kernel implements, those
/// that the kernels' contracts allow. Empty for an unknown op.
pub fn cases(op: &str, seed: u64) -> Vec<Generated> {
    match op {
        "matmul" => matmul::cases(seed),
        "attention" => attention::cases(seed),
        "gptq_dequant" => gptq_dequant::cases(seed),
        "add_rms_norm" => [add_rms_norm::cases(seed), add_rms_norm::edges(seed)].concat(),
        "qk_norm_rope" => [qk_norm_rope::cases(seed), qk_norm_rope::edges(seed)].concat(),
        "attention_paged" => {
            let all =
                [attention_paged::cases, attention_paged::edges, attention_paged::decode_d128];
            all.map(|cases| cases(seed)).concat()
        }
        "kv_store" => [kv_store::cases(seed), kv_store::edges(seed)].concat(),
        "embedding" => embedding::cases(seed),
        "rms_norm" => rms_norm::cases(seed),
        "awq_dequant" => quantised::dequant::awq::cases(seed),
        "ct_dequant" => quantised::dequant::ct::cases(seed),
        "fp8_dequant" => quantised::dequant::fp8::cases(seed),
        "gptq_gemm" => quantised::gemm::cases("gptq_gemm", seed),
        "awq_gemm" => quantised::gemm::cases("awq_gemm", seed),
        "ct_gemm" => quantised::gemm::cases("ct_gemm", seed),
        "fp8_gemm" => quantised::gemm::cases("fp8_gemm", seed),
        "rope" => rope::cases(seed),
        "softmax" => softmax::cases(seed),
        "silu_mul" => elementwise::silu_mul::cases(seed),
        "add" => elementwise::add::cases(seed),
        "argmax" => argmax::cases(seed),
        "moe_route" => moe_route::cases(seed),
        "moe_experts" => moe_experts::cases(seed),
        "all_reduce" => collectives::all_reduce::cases(seed),
        "all_gather" => collectives::all_gather::cases(seed),
        _ => Vec::new(),
    }
}

/// The cases of an op, each without its bias: for subjects that have none.
pub fn without_bias(op: &str, seed: u64) -> Vec<Generated> {
    let mut all = cases(op, seed);
    for g in &mut all {
        if g.case.tensors.remove("bias").is_some() {
            g.label = g.label.replace(" bias", "");
        }
    }
    all
}

/// Cases of an op in f32, with significands that need all of its bits: for subjects whose operands are
/// f32. Only `matmul` has any.
pub fn f32_cases(op: &str, seed: u64) -> Vec<Generated> {
    if op == "matmul" { matmul_f32::cases(seed) } else { Vec::new() }
}

/// Small cases of an op that together show every catalogued fault: for whoever judges many subjects.
/// They are not limited to what a kernel's contract allows. Empty for an unknown op.
pub fn power_cases(op: &str, seed: u64) -> Vec<Generated> {
    match op {
        "matmul" => matmul_small::cases(seed),
        "attention" => attention_small::cases(seed),
        "gptq_dequant" => quantised::dequant::gptq(seed),
        "embedding" => embedding::small(seed),
        "rms_norm" => rms_norm::small(seed),
        "awq_dequant" => quantised::dequant::awq::small(seed),
        "ct_dequant" => quantised::dequant::ct::small(seed),
        "fp8_dequant" => quantised::dequant::fp8::small(seed),
        "gptq_gemm" => quantised::gemm::small("gptq_gemm", seed),
        "awq_gemm" => quantised::gemm::small("awq_gemm", seed),
        "ct_gemm" => quantised::gemm::small("ct_gemm", seed),
        "fp8_gemm" => quantised::gemm::small("fp8_gemm", seed),
        "rope" => rope::small(seed),
        "softmax" => softmax::small(seed),
        "silu_mul" => elementwise::silu_mul::small(seed),
        "add" => elementwise::add::small(seed),
        "argmax" => argmax::small(seed),
        "moe_route" => moe_route::small(seed),
        "moe_experts" => moe_experts::small(seed),
        "all_reduce" => collectives::all_reduce::small(seed),
        "all_gather" => collectives::all_gather::small(seed),
        "add_rms_norm" => add_rms_norm::cases(seed),
        "qk_norm_rope" => qk_norm_rope::cases(seed),
        "attention_paged" => attention_paged::cases(seed),
        "kv_store" => kv_store::cases(seed),
        _ => Vec::new(),
    }
}

/// The slugs of those faults of which the cases show every key that applies to one of them.
///
/// # Errors
/// When a case is not the op's.
pub fn separates(op: &str, cases: &[Generated]) -> Result<Vec<&'static str>> {
    let all = judge::shown(op, cases, Scope::Kernel)?;
    let mut slugs: Vec<&'static str> = all.iter().map(|s| s.slug).collect();
    slugs.sort_unstable();
    slugs.dedup();
    slugs.retain(|slug| all.iter().all(|s| s.slug != *slug || s.shown));
    Ok(slugs)
}

/// Builds a [`Generated`].
pub(crate) fn generated(
    op: &str,
    (family, structured): (&str, bool),
    label: &str,
    seed: u64,
    params: Value,
    dtype: Dtype,
    tensors: Tensors,
) -> Generated {
    let case = Case {
        op: op.into(),
        params,
        dtype,
        tensors,
        outputs: Tensors::new(),
        family: family.into(),
        seed,
    };
    Generated { case, label: format!("{family} {label}"), structured }
}

/// Valid params and tensors of an op, for listing its knobs and faults: together they have the shape
/// for every catalogued fault. Empty when the op has none.
pub fn examples<O: Op>() -> Vec<(O::Params, Tensors)> {
    let parse = |(params, tensors)| Some((serde_json::from_value(params).ok()?, tensors));
    examples_of(O::NAME).into_iter().filter_map(parse).collect()
}

/// The examples of `op`, of which `O` is the type or which it stands for, that the kernels' contracts
/// allow: a kernel that takes no window cannot show what is wrong with one.
pub fn kernel_examples<O: Op>(op: &str) -> Vec<(O::Params, Tensors)> {
    let parse = |(params, tensors)| Some((O::parse(op, &params).ok()?, tensors));
    examples_of(op)
        .into_iter()
        .filter(|(params, tensors)| within_contracts(op, params, tensors))
        .filter_map(parse)
        .collect()
}

/// Whether a kernel could take an example of `op`: what each refuses, whatever the sizes.
fn within_contracts(op: &str, params: &Value, tensors: &Tensors) -> bool {
    let bf16_weight = || tensors["weight"].dtype() == Dtype::Bf16;
    let unscaled =
        |rope: &Value| rope.get("scaling").is_none_or(|scaling| scaling["rope_type"] == "default");
    // The other kernels are of bf16: what an f16 model can have wrong is not theirs.
    let half = op == "gptq_gemm";
    let dtype = tensors.get("x").or(tensors.get("q")).map(Tensor::dtype);
    let within = match op {
        "matmul" => params.get("alpha").is_none(),
        "attention" => params.get("window").is_none(),
        "gptq_gemm" => params["dequant"]["bits"] == 4,
        "attention_paged" => params["attention"].get("window").is_none(),
        "rms_norm" | "add_rms_norm" => bf16_weight(),
        "rope" => unscaled(params),
        "qk_norm_rope" => bf16_weight() && unscaled(&params["rope"]) && tensors["x"].cols() == 128,
        _ => true,
    };
    within && (half || dtype != Some(Dtype::F16))
}

fn examples_of(op: &str) -> Vec<(Value, Tensors)> {
    let ones =
        |shape: &[usize]| Tensor::from_f64(Dtype::Bf16, shape, &vec![1.0; shape.iter().product()]);
    let halves =
        |shape: &[usize]| Tensor::from_f64(Dtype::F16, shape, &vec![0.5; shape.iter().product()]);
    let ints = |shape: &[usize]| Tensor::from_i32(shape, &vec![0; shape.iter().product()]);
    const K: usize = 16_392; // beyond every K limit, with a tail for every tile
    let examples: Vec<(Value, Vec<(&str, Tensor)>)> = match op {
        // More rows than 16 bits count.
        "embedding" => {
            vec![(json!({}), vec![("ids", ints(&[3])), ("weight", ones(&[65_537, 1]))])]
        }
        "rms_norm" => {
            let weight = Tensor::from_f64(Dtype::F32, &[301], &[1.0; 301]);
            let params = [json!({ "eps": 1e-7 }), json!({ "eps": 1e-7, "heads": 2 })];
            let with = |weight| vec![("x", ones(&[2, 3, 301])), ("weight", weight)];
            [with(weight), with(ones(&[301]))]
                .into_iter()
                .flat_map(|tensors| params.clone().map(|p| (p, tensors.clone())))
                .collect()
        }
        "matmul" => {
            let tensors =
                vec![("x", ones(&[3, K])), ("weight", ones(&[4, K])), ("bias", ones(&[4]))];
            let wide =
                vec![("x", ones(&[1, 8])), ("weight", ones(&[257, 8])), ("bias", ones(&[257]))];
            let half = vec![("x", halves(&[1, 8])), ("weight", halves(&[4, 8]))];
            [json!({}), json!({ "row_parallel": true })]
                .map(|p| (p, tensors.clone()))
                .into_iter()
                .chain([(json!({ "alpha": 0.5 }), wide), (json!({}), half)])
                .collect()
        }
        "gptq_dequant" | "awq_dequant" | "ct_dequant" | "fp8_dequant" | "gptq_gemm"
        | "awq_gemm" | "ct_gemm" | "fp8_gemm" => examples_quantised::examples(op),
        "add_rms_norm" | "qk_norm_rope" | "attention_paged" | "kv_store" => {
            composites::examples(op)
        }
        "rope" => {
            let positions = Tensor::from_i32(&[2], &[5, 32_769]);
            let tensors = || vec![("x", ones(&[2, 1, 64])), ("positions", positions.clone())];
            let half = vec![("x", halves(&[2, 1, 64])), ("positions", positions.clone())];
            let yarn = json!({
                "rope_type": "yarn", "factor": 4.0, "original_max_position": 4096, "beta_fast": 32.0,
                "beta_slow": 1.0, "truncate": true, "attention_factor": 1.1,
            });
            let dynamic = json!({ "rope_type": "dynamic", "factor": 2.0, "max_position": 4 });
            [json!({ "rope_type": "default" }), yarn, dynamic]
                .map(|s| (json!({ "theta": 2e6, "scaling": s }), tensors()))
                .into_iter()
                .chain([(json!({ "theta": 2e6 }), half)])
                .collect()
        }
        "softmax" => vec![(json!({}), vec![("x", ones(&[2, 8]))])],
        "attention" => {
            let kv = || ones(&[5001, 2, 128]);
            let tensors = vec![("q", ones(&[3, 4, 128])), ("k", kv()), ("v", kv())];
            let scale = 1.0 / 128f64.sqrt();
            [json!({ "scale": scale }), json!({ "scale": scale, "window": 300 })]
                .map(|params| (params, tensors.clone()))
                .into()
        }
        "silu_mul" => vec![(json!({}), vec![("gate", ones(&[2, 8])), ("up", ones(&[2, 8]))])],
        "add" => vec![(json!({}), vec![("a", ones(&[2, 8])), ("b", ones(&[2, 8]))])],
        "moe_route" => {
            vec![(json!({ "top_k": 2, "normalise": true }), vec![("logits", ones(&[2, 96]))])]
        }
        "moe_experts" => {
            let routing = Tensor::from_f64(Dtype::Bf16, &[2, 2], &[0.5; 4]);
            let expert = |names: [&'static str; 3]| names.map(|n| (n, ones(&[8, 8])));
            let tensors = [("x", ones(&[2, 8])), ("routing", routing)];
            let experts = [
                [
                    "experts.0.gate_proj.weight",
                    "experts.0.up_proj.weight",
                    "experts.0.down_proj.weight",
                ],
                [
                    "experts.1.gate_proj.weight",
                    "experts.1.up_proj.weight",
                    "experts.1.down_proj.weight",
                ],
            ];
            let tensors = tensors.into_iter().chain(experts.into_iter().flat_map(expert));
            vec![(json!({}), tensors.collect())]
        }
        "all_reduce" | "all_gather" => {
            let names = ["part.0", "part.1", "part.2", "part.3"];
            let names = names.into_iter().chain(["part.4", "part.5", "part.6", "part.7"]);
            vec![(json!({}), names.map(|n| (n, ones(&[2, 8]))).collect())]
        }
        "argmax" => {
            let logits = Tensor::from_f64(Dtype::F32, &[1, 1025], &[1.0; 1025]);
            vec![(json!({}), vec![("x", logits)])]
        }
        _ => Vec::new(),
    };
    let owned = |t: Vec<(&str, Tensor)>| t.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    examples.into_iter().map(|(params, tensors)| (params, owned(tensors))).collect()
}
