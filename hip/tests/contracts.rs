//! A launcher refuses what its contract does not allow, before anything runs.

use assay_hip::emu::{Compiler, Mode};
use assay_hip::kernels::{
    attention_decode_paged_d128, attention_prefill_d128, awq_dequant, gemm_bf16, gemm_bf16_splitk,
    gemv_bf16, gptq_dequant, gptq_gemm,
};
use assay_hip::{
    Admission, Admit, Admitted, Backend, Identity, LaunchOptions, Refusal, kernel, sha256,
};
use assay_reference::ops::gptq_dequant::Format;
use assay_reference::{Case, Dtype, Tensor};

fn backend(name: &str) -> Backend {
    let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
    compiler.compile(kernel(name).unwrap().source, Mode::Plain).unwrap().into()
}

fn zeros(dtype: Dtype, shape: &[usize]) -> Tensor {
    Tensor::from_f64(dtype, shape, &vec![0.0; shape.iter().product()])
}

#[test]
fn gemm_names_the_argument_the_expectation_and_what_was_given() {
    let backend = backend("gemm_bf16");
    let refusal = |x: &Tensor, weight: &Tensor, bias: Option<&Tensor>| {
        let args = gemm_bf16::Args { x, weight, bias };
        gemm_bf16::launch(&backend, &args, &LaunchOptions::default()).unwrap_err().to_string()
    };
    let (x, weight) = (zeros(Dtype::Bf16, &[2, 3]), zeros(Dtype::Bf16, &[4, 3]));
    let half = zeros(Dtype::F16, &[2, 3]);
    assert_eq!(refusal(&half, &weight, None), "gemm_bf16: x: expected bf16, got f16");
    let wide = zeros(Dtype::Bf16, &[2, 5]);
    assert_eq!(
        refusal(&wide, &weight, None),
        "gemm_bf16: x: expected a shape [..., 3] without zeros, got [2, 5]"
    );
    let empty = zeros(Dtype::Bf16, &[4, 0]);
    assert_eq!(
        refusal(&x, &empty, None),
        "gemm_bf16: weight: expected a shape [N, K] without zeros, got [4, 0]"
    );
    let bias = zeros(Dtype::Bf16, &[3]);
    assert_eq!(refusal(&x, &weight, Some(&bias)), "gemm_bf16: bias: expected shape [4], got [3]");
}

#[test]
fn attention_refuses_fewer_keys_than_queries_and_uneven_heads() {
    let backend = backend("attention_prefill_d128");
    let refusal = |q: &[usize], kv: &[usize], scale: f32| {
        let (q, k) = (zeros(Dtype::Bf16, q), zeros(Dtype::Bf16, kv));
        let args = attention_prefill_d128::Args { q: &q, k: &k, v: &k, scale };
        let launched = attention_prefill_d128::launch(&backend, &args, &LaunchOptions::default());
        launched.unwrap_err().to_string()
    };
    let start = "attention_prefill_d128: ";
    assert_eq!(
        refusal(&[3, 2, 128], &[2, 2, 128], 0.1),
        format!("{start}k: expected [S, Hkv, 128] with S at least 3, got [2, 2, 128]")
    );
    assert_eq!(
        refusal(&[3, 5, 128], &[3, 2, 128], 0.1),
        format!("{start}q: expected [T, Hq, 128] with Hq a multiple of 2, got [3, 5, 128]")
    );
    assert!(refusal(&[3, 2, 64], &[3, 2, 64], 0.1).contains("q: expected [T, Hq, 128]"));
    assert!(refusal(&[3, 2, 128], &[3, 2, 128], f32::NAN).contains("scale: expected a finite"));
}

#[test]
fn gptq_dequant_refuses_groups_outside_the_scales() {
    let backend = backend("gptq_dequant");
    let refusal = |g_idx: &[i32], group_size: i64| {
        let args = gptq_dequant::Args {
            qweight: &zeros(Dtype::I32, &[2, 8]),
            qzeros: &zeros(Dtype::I32, &[2, 1]),
            scales: &zeros(Dtype::F16, &[2, 8]),
            g_idx: Some(&Tensor::from_i32(&[16], g_idx)),
            group_size,
            bits: 4,
            format: Format::V1,
            output: Dtype::Bf16,
        };
        gptq_dequant::launch(&backend, &args, &LaunchOptions::default()).unwrap_err().to_string()
    };
    let mut g_idx = [0; 16];
    g_idx[7] = 2;
    assert_eq!(refusal(&g_idx, 8), "gptq_dequant: g_idx: expected values in [0, 2), got 2");
    assert_eq!(refusal(&g_idx, -1), "gptq_dequant: scales: expected shape [1, 8], got [2, 8]");
    assert_eq!(
        refusal(&g_idx, 0),
        "gptq_dequant: group_size: expected -1 or a positive number, got 0"
    );
}

#[test]
fn gptq_dequant_refuses_values_that_end_within_a_word() {
    let backend = backend("gptq_dequant");
    let refusal = |bits: u32, words: usize, n: usize| {
        let args = gptq_dequant::Args {
            qweight: &zeros(Dtype::I32, &[words, n]),
            qzeros: &zeros(Dtype::I32, &[1, 1]),
            scales: &zeros(Dtype::F16, &[1, n]),
            g_idx: None,
            group_size: -1,
            bits,
            format: Format::V2,
            output: Dtype::Bf16,
        };
        gptq_dequant::launch(&backend, &args, &LaunchOptions::default()).unwrap_err().to_string()
    };
    let whole = "gptq_dequant: qweight: expected [K 3/32, N] with K and N multiples of 32";
    assert_eq!(refusal(3, 4, 32), format!("{whole}, got [4, 32]"));
    assert_eq!(refusal(3, 3, 40), format!("{whole}, got [3, 40]"));
    assert_eq!(refusal(5, 5, 32), "gptq_dequant: bits: expected 2, 3, 4 or 8, got 5");
}

#[test]
fn awq_dequant_refuses_other_groups_than_the_scales() {
    let backend = backend("awq_dequant");
    let args = awq_dequant::Args {
        qweight: &zeros(Dtype::I32, &[16, 2]),
        qzeros: &zeros(Dtype::I32, &[2, 2]),
        scales: &zeros(Dtype::F16, &[2, 16]),
        group_size: 5,
        output: Dtype::Bf16,
    };
    let refusal = awq_dequant::launch(&backend, &args, &LaunchOptions::default()).unwrap_err();
    assert_eq!(refusal.to_string(), "awq_dequant: scales: expected shape [4, 16], got [2, 16]");
}

#[test]
fn paged_attention_refuses_blocks_and_contexts_beyond_its_buffers() {
    let backend = backend("attention_decode_paged_d128");
    let refusal = |block_size: usize, table: [i32; 2], context: i32| {
        let cache = zeros(Dtype::Bf16, &[3, block_size, 1, 128]);
        let args = attention_decode_paged_d128::Args {
            q: &zeros(Dtype::Bf16, &[2, 2, 128]),
            k_cache: &cache,
            v_cache: &cache,
            block_table: &Tensor::from_i32(&[2], &table),
            context_len: &Tensor::from_i32(&[1], &[context]),
            scale: 0.1,
        };
        let launched =
            attention_decode_paged_d128::launch(&backend, &args, &LaunchOptions::default());
        launched.unwrap_err().to_string()
    };
    let start = "attention_decode_paged_d128: ";
    assert_eq!(
        refusal(8, [0, 1], 5),
        format!(
            "{start}k_cache: expected [blocks, block_size, Hkv, 128] with a block_size of 16 or \
             32, got [3, 8, 1, 128]"
        )
    );
    assert_eq!(
        refusal(16, [0, 3], 5),
        format!("{start}block_table: expected ids in [0, 3), got 3")
    );
    for context in [1, 33] {
        assert_eq!(
            refusal(16, [0, 2], context),
            format!("{start}context_len: expected 2 to 32 keys, got {context}")
        );
    }
}

/// What a kernel says to a case that it does not take.
fn refusal(
    name: &str,
    dtype: Dtype,
    params: serde_json::Value,
    tensors: &[(&str, Tensor)],
) -> String {
    let kernel = kernel(name).unwrap();
    let case = Case {
        op: kernel.op.to_owned(),
        params,
        dtype,
        tensors: tensors.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect(),
        outputs: Default::default(),
        family: "by hand".to_owned(),
        seed: 0,
    };
    kernel.accepts(&case).unwrap_err().to_string()
}

#[test]
fn params_that_would_change_the_result_are_refused() {
    let x = |dtype| zeros(dtype, &[2, 8]);
    let none = || serde_json::json!({});
    let pair = [("gate", x(Dtype::Bf16)), ("up", x(Dtype::Bf16))];
    let swapped = refusal("silu_mul", Dtype::Bf16, serde_json::json!({ "swapped": true }), &pair);
    assert!(swapped.starts_with("silu_mul: params: expected the defaults"), "{swapped}");
    assert_eq!(
        refusal("silu_mul", Dtype::F32, none(), &pair),
        "silu_mul: output: expected bf16, got F32"
    );
    let half = [("x", x(Dtype::F16))];
    assert_eq!(
        refusal("softmax", Dtype::F16, none(), &half),
        "softmax: x: expected bf16 or f32, got F16"
    );
    let last = refusal("argmax", Dtype::F32, serde_json::json!({ "tie": "last" }), &half);
    assert!(last.starts_with("argmax: params: expected the defaults"), "{last}");
    // Square, so that the shapes do not tell the layouts apart.
    let square = [("x", zeros(Dtype::Bf16, &[2, 8])), ("weight", zeros(Dtype::Bf16, &[8, 8]))];
    for kernel in ["gemm_bf16", "gemv_bf16", "gemm_bf16_splitk"] {
        let other =
            refusal(kernel, Dtype::Bf16, serde_json::json!({ "layout": "in_out" }), &square);
        assert!(other.starts_with(&format!("{kernel}: params: expected")), "{other}");
    }
}

#[test]
fn ids_and_slots_outside_are_refused() {
    let ids = [("ids", Tensor::from_i32(&[2], &[0, 5])), ("weight", zeros(Dtype::Bf16, &[5, 8]))];
    assert_eq!(
        refusal("embedding", Dtype::Bf16, serde_json::json!({}), &ids),
        "embedding: ids: expected values in [0, 5), got 5"
    );
    let store = |slots: &[i32], params| {
        let tokens = zeros(Dtype::Bf16, &[2, 1, 8]);
        let cache = zeros(Dtype::Bf16, &[2, 4, 1, 8]);
        let tensors = [
            ("k", tokens.clone()),
            ("v", tokens),
            ("k_cache", cache.clone()),
            ("v_cache", cache),
            ("slot_mapping", Tensor::from_i32(&[2], slots)),
        ];
        refusal("kv_store_paged", Dtype::Bf16, params, &tensors)
    };
    let start = "kv_store_paged: ";
    assert_eq!(
        store(&[8, -1], serde_json::json!({})),
        format!("{start}slot_mapping: expected values in [-1, 8), got 8")
    );
    assert_eq!(
        store(&[3, 3], serde_json::json!({})),
        format!("{start}slot_mapping: expected each slot at most once, got 3")
    );
    assert_eq!(
        store(&[3, -1], serde_json::json!({ "scales": [0.5, 1.0] })),
        format!("{start}scales: expected 1 for a cache of the dtype of k, got [0.5, 1.0]")
    );
}

#[test]
fn products_refuse_rows_and_parts_beyond_their_contract() {
    let options = LaunchOptions::default();
    let (x, weight) = (zeros(Dtype::Bf16, &[3, 3, 5]), zeros(Dtype::Bf16, &[4, 5]));
    let args = gemv_bf16::Args { x: &x, weight: &weight, bias: None };
    let refused = gemv_bf16::launch(&Backend::Contract, &args, &options).unwrap_err().to_string();
    assert_eq!(refused, "gemv_bf16: x: expected [..., K] with 1 to 8 rows, got [3, 3, 5]");
    for parts in [0, 33] {
        let args = gemm_bf16_splitk::Args { x: &x, weight: &weight, bias: None, parts };
        let refused = gemm_bf16_splitk::launch(&Backend::Contract, &args, &options).unwrap_err();
        let expected = format!("gemm_bf16_splitk: parts: expected 1 to 32, got {parts}");
        assert_eq!(refused.to_string(), expected);
    }
}

#[test]
fn any_number_of_parts_gives_the_sum() {
    let backend = backend("gemm_bf16_splitk");
    let ones =
        |shape: &[usize]| Tensor::from_f64(Dtype::Bf16, shape, &vec![1.0; shape.iter().product()]);
    let (x, weight) = (ones(&[2, 21]), ones(&[3, 21]));
    for parts in [1, 2, 20, 32] {
        let args = gemm_bf16_splitk::Args { x: &x, weight: &weight, bias: None, parts };
        let launched = gemm_bf16_splitk::launch(&backend, &args, &LaunchOptions::default());
        let launched = launched.unwrap();
        assert!(launched.report.is_clean(), "{parts}: {:?}", launched.report);
        assert_eq!(launched.outputs.len(), 1, "the workspace is no output");
        assert_eq!(launched.output().to_f64(), [21.0; 6], "{parts} parts");
    }
}

#[test]
fn gptq_gemm_takes_any_groups_of_an_index_and_refuses_other_params() {
    let refusal = |g_idx: Option<&Tensor>, group_size: i64, bias: Dtype| {
        let args = gptq_gemm::Args {
            x: &zeros(Dtype::F16, &[2, 16]),
            qweight: &zeros(Dtype::I32, &[2, 8]),
            qzeros: &zeros(Dtype::I32, &[3, 1]),
            scales: &zeros(Dtype::F16, &[3, 8]),
            g_idx,
            bias: Some(&zeros(bias, &[8])),
            group_size,
            format: Format::V2,
        };
        let launched = gptq_gemm::launch(&Backend::Contract, &args, &LaunchOptions::default());
        launched.unwrap_err().to_string()
    };
    let mut groups = [2; 16];
    let whole = Tensor::from_i32(&[16], &groups);
    groups[9] = 3;
    let outside = Tensor::from_i32(&[16], &groups);
    let start = "gptq_gemm: ";
    assert!(refusal(Some(&whole), 8, Dtype::F16).starts_with("nothing was launched"));
    assert_eq!(
        refusal(Some(&outside), 8, Dtype::F16),
        format!("{start}g_idx: expected values in [0, 3), got 3")
    );
    assert_eq!(
        refusal(None, 8, Dtype::F16),
        format!("{start}scales: expected shape [2, 8], got [3, 8]")
    );
    assert_eq!(
        refusal(Some(&whole), -2, Dtype::F16),
        format!("{start}group_size: expected -1 or a positive number, got -2")
    );
    assert_eq!(
        refusal(Some(&whole), 8, Dtype::Bf16),
        format!("{start}bias: expected f16, got bf16")
    );
}

#[test]
fn no_device_is_an_error_that_says_so() {
    if let Err(error) = Backend::device() {
        assert!(error.to_string().starts_with("no HIP device"), "{error}");
    }
}

/// A record that knows one identity.
struct Only(Identity);

impl Admit for Only {
    fn admit(&self, identity: &Identity) -> Result<Admission, Refusal> {
        let refusal = |reason: &str| Refusal {
            kernel: identity.kernel.clone(),
            backend: identity.backend,
            reason: reason.to_owned(),
        };
        if *identity != self.0 {
            return Err(refusal("never seen"));
        }
        let conventions = vec!["defaults".to_owned()];
        Ok(Admission { identity: identity.clone(), conventions, evidence: "a test".to_owned() })
    }
}

fn tiny_gemm() -> Case {
    let ones = |shape: &[usize]| Tensor::from_f64(Dtype::Bf16, shape, &[1.0; 6]);
    Case {
        op: "matmul".to_owned(),
        params: serde_json::json!({}),
        dtype: Dtype::Bf16,
        tensors: [("x", ones(&[2, 3])), ("weight", ones(&[2, 3]))]
            .map(|(name, tensor)| (name.to_owned(), tensor))
            .into(),
        outputs: Default::default(),
        family: "by hand".to_owned(),
        seed: 0,
    }
}

#[test]
fn only_the_admitted_build_is_launched() {
    let gemm = kernel("gemm_bf16").unwrap();
    let good = backend("gemm_bf16");
    let record = Only(good.identity(gemm).unwrap());
    let admitted = Admitted::new(gemm, &good, &record).unwrap();
    assert_eq!(admitted.admission().conventions, ["defaults"]);
    let launched = admitted.launch(&tiny_gemm(), &LaunchOptions::default()).unwrap();
    assert_eq!((0..4).map(|i| launched.output().get(i)).collect::<Vec<_>>(), [3.0; 4]);

    // One byte of the source, and the same source compiled otherwise.
    let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
    let edited = format!("{} ", gemm.source);
    for (source, mode) in [(edited.as_str(), Mode::Plain), (gemm.source, Mode::Checked)] {
        let other = Backend::from(compiler.compile(source, mode).unwrap());
        let Err(error) = Admitted::new(gemm, &other, &record) else { panic!("admitted") };
        assert_eq!(error.to_string(), "gemm_bf16 on emu is not admitted: never seen");
    }
}

#[test]
fn equal_compilations_have_equal_identities_wherever_they_were_made() {
    let gptq = kernel("gptq_dequant").unwrap();
    let identity = || {
        let cache = tempfile::tempdir().unwrap();
        let compiler = Compiler::find().unwrap().with_cache(cache.path());
        let backend = Backend::from(compiler.compile(gptq.source, Mode::Plain).unwrap());
        backend.identity(gptq).unwrap()
    };
    let (one, two) = (identity(), identity());
    assert_eq!(one, two);
    assert_eq!(one.source, sha256(gptq.source));
    assert!(one.code.len() == 64 && one.code != one.source, "{one:?}");
}
