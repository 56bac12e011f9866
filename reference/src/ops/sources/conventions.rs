//! Who follows which convention: by op and choice.

const TRANSFORMERS: &str = "https://github.com/huggingface/transformers";
const VLLM: &str = "https://github.com/vllm-project/vllm";
const FLASH: &str =
    "https://arxiv.org/abs/2205.14135, https://github.com/Dao-AILab/flash-attention";
const GPTQMODEL: &str = "https://github.com/ModelCloud/GPTQModel";
const AUTOGPTQ: &str = "https://github.com/AutoGPTQ/AutoGPTQ/issues/354";
const CT: &str = "https://github.com/vllm-project/compressed-tensors";
const LINEAR: &str =
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html";
const MEGATRON: &str = "https://arxiv.org/abs/1909.08053";
const RING: &str =
    "https://github.com/NVIDIA/nccl, https://github.com/ROCm/rccl: sums in the buffer's dtype";
const DEEPSEEK: &str = "https://arxiv.org/abs/2412.19437, 3.3.2";
const SWIGLU: &str = "https://arxiv.org/abs/2002.05202";
const MEMORY: &str = "stored in the model's dtype, as an eager framework does";

/// (op, choice, meaning, source).
pub(super) const CHOICES: &[(&str, &str, &str, &str)] = &[
    (
        "rms_norm",
        "normalised=f32",
        "x / rms stays in f32 and is multiplied by the weight there",
        VLLM,
    ),
    (
        "rms_norm",
        "normalised=stored",
        "x / rms is rounded to the model's dtype, then multiplied by the weight",
        "https://github.com/huggingface/transformers: Qwen2RMSNorm",
    ),
    ("matmul", "bias=in_accumulator", "the bias joins the f32 sum: one rounding", LINEAR),
    (
        "matmul",
        "bias=after_store",
        "the sum is stored, then the bias is added: two roundings",
        GPTQMODEL,
    ),
    ("matmul", "partials=1", "one sum over K", LINEAR),
    ("matmul", "partials=2", "two ranks' stored sums are added in f32", MEGATRON),
    ("matmul", "partials=4", "four ranks' stored sums are added in f32", MEGATRON),
    ("matmul", "partials=8", "eight ranks' stored sums are added in f32", MEGATRON),
    ("matmul", "partials=4_stored", "four ranks' sums are added one by one, each sum stored", RING),
    (
        "matmul",
        "partials=8_stored",
        "eight ranks' sums are added one by one, each sum stored",
        RING,
    ),
    (
        "gptq_gemm",
        "edge=stored",
        "the dequantised weight is stored in the model's dtype",
        GPTQMODEL,
    ),
    ("gptq_gemm", "edge=f32", "the dequantised weight goes on in f32", VLLM),
    (
        "awq_gemm",
        "edge=stored",
        "the dequantised weight is stored in the model's dtype",
        "https://github.com/casper-hansen/AutoAWQ",
    ),
    ("awq_gemm", "edge=f32", "the dequantised weight goes on in f32", VLLM),
    ("ct_gemm", "edge=stored", "the dequantised weight is stored in the model's dtype", CT),
    ("ct_gemm", "edge=f32", "the dequantised weight goes on in f32", VLLM),
    (
        "fp8_gemm",
        "edge=stored",
        "the dequantised weight is stored in the model's dtype",
        "https://github.com/huggingface/transformers: finegrained_fp8",
    ),
    ("fp8_gemm", "edge=f32", "the dequantised weight goes on in f32", DEEPSEEK),
    ("fp8_gemm", "activations=stored", "activations are used as they are stored", TRANSFORMERS),
    ("fp8_gemm", "activations=fp8", "activations are quantised to e4m3 by groups of 128", DEEPSEEK),
    ("gptq_dequant", "scale=f16", "the scale as the file has it", AUTOGPTQ),
    ("gptq_dequant", "scale=stored", "the scale is rounded to the model's dtype first", GPTQMODEL),
    ("gptq_dequant", "weight=direct", "the product is rounded once", GPTQMODEL),
    (
        "gptq_dequant",
        "weight=via_f16",
        "the product is rounded to f16, then to the model's dtype",
        AUTOGPTQ,
    ),
    ("gptq_dequant", "wrap=none", "a stored 2^bits - 1 means a zero point of 2^bits", VLLM),
    ("gptq_dequant", "wrap=modulo", "a stored 2^bits - 1 means a zero point of 0", AUTOGPTQ),
    (
        "gptq_dequant",
        "wrap=word",
        "1 is added to each value of a word at once, with carries",
        GPTQMODEL,
    ),
    (
        "awq_dequant",
        "scale=f16",
        "the scale as the file has it",
        "https://arxiv.org/abs/2306.00978",
    ),
    ("awq_dequant", "scale=stored", "the scale is rounded to the model's dtype first", GPTQMODEL),
    ("awq_dequant", "weight=direct", "the product is rounded once", GPTQMODEL),
    (
        "awq_dequant",
        "weight=via_f16",
        "the product is rounded to f16, then to the model's dtype",
        "https://github.com/casper-hansen/AutoAWQ",
    ),
    ("ct_dequant", "scale=file", "the scale as the file has it", CT),
    ("ct_dequant", "scale=stored", "the scale is rounded to the model's dtype first", TRANSFORMERS),
    ("ct_dequant", "weight=direct", "the product is rounded once", CT),
    (
        "ct_dequant",
        "weight=via_scale",
        "the product is rounded to the scale's dtype, then to the model's",
        CT,
    ),
    ("fp8_dequant", "scale=file", "the scale as the file has it", DEEPSEEK),
    (
        "fp8_dequant",
        "scale=stored",
        "the scale is rounded to the model's dtype first",
        TRANSFORMERS,
    ),
    (
        "rope",
        "angle=f32",
        "the inverse frequency and its product with the position are rounded to f32",
        "https://github.com/huggingface/transformers: Qwen2RotaryEmbedding",
    ),
    ("rope", "angle=f64", "neither is rounded", "https://arxiv.org/abs/2104.09864"),
    (
        "rope",
        "table=f32",
        "cos and sin stay in f32",
        "https://github.com/ggml-org/llama.cpp: ggml_rope",
    ),
    ("rope", "table=stored", "cos and sin are stored in the model's dtype", VLLM),
    ("rope", "product=f32", "products with cos and sin stay in f32", VLLM),
    (
        "rope",
        "product=stored",
        MEMORY,
        "https://github.com/huggingface/transformers: apply_rotary_pos_emb",
    ),
    (
        "rope",
        "base=by_call",
        "the dynamic base follows the longest sequence of the call",
        TRANSFORMERS,
    ),
    ("rope", "base=fixed", "the dynamic base is that of the whole extended context", VLLM),
    ("softmax", "exponentials=f32", "exponentials stay in f32", "https://arxiv.org/abs/1706.03762"),
    ("softmax", "exponentials=stored", MEMORY, TRANSFORMERS),
    ("attention", "probs=f32", "P is multiplied with V in f32", "https://arxiv.org/abs/1706.03762"),
    (
        "attention",
        "probs=normalised",
        "P is divided by its sum, stored, and multiplied with V",
        "https://github.com/huggingface/transformers: eager_attention_forward",
    ),
    (
        "attention",
        "probs=stored",
        "P is stored relative to the final maximum, divided at the end",
        FLASH,
    ),
    (
        "attention",
        "probs=online_16",
        "P is stored relative to the running maximum of 16 keys at a time",
        FLASH,
    ),
    ("attention", "probs=online_32", "the same, 32 keys at a time", FLASH),
    ("attention", "probs=online_64", "the same, 64 keys at a time", FLASH),
    ("attention", "probs=online_128", "the same, 128 keys at a time", FLASH),
    ("attention", "probs=online_32_reversed", "the same, 32 keys at a time from the last", FLASH),
    ("attention", "probs=online_64_reversed", "the same, 64 keys at a time from the last", FLASH),
    ("attention", "probs=online_128_reversed", "the same, 128 keys at a time from the last", FLASH),
    ("attention", "sum=f32", "the denominator sums P in f32", FLASH),
    (
        "attention",
        "sum=rounded_probs",
        "the denominator sums P as it is stored",
        "https://github.com/pytorch/pytorch: the CPU's scaled_dot_product_attention",
    ),
    ("attention", "scores=f32", "scores stay in f32", FLASH),
    (
        "attention",
        "scores=stored",
        "raw and scaled scores are stored in the model's dtype",
        "https://github.com/huggingface/transformers/issues/33317",
    ),
    ("silu_mul", "silu=f32", "silu(gate) stays in f32", SWIGLU),
    (
        "silu_mul",
        "silu=stored",
        "silu(gate) is stored in the model's dtype before the product",
        "https://github.com/huggingface/transformers: Qwen2MLP",
    ),
    (
        "argmax",
        "tie=first",
        "of equal elements the first",
        "https://docs.pytorch.org/docs/stable/generated/torch.argmax.html",
    ),
    (
        "argmax",
        "tie=last",
        "of equal elements the last, as a reduction by tree may give",
        "https://docs.pytorch.org/docs/stable/generated/torch.argmax.html: unspecified",
    ),
    (
        "moe_route",
        "weights=stored",
        "routing weights are stored in the model's dtype",
        "https://github.com/huggingface/transformers: Qwen3MoeTopKRouter",
    ),
    (
        "moe_route",
        "weights=f32",
        "routing weights stay in f32",
        "https://github.com/vllm-project/vllm: fused_topk",
    ),
    ("moe_experts", "intermediate=stored", "gate, up and their product are stored", TRANSFORMERS),
    ("moe_experts", "intermediate=f32", "gate, up and their product stay in f32", VLLM),
    ("moe_experts", "silu=f32", "silu(gate) stays in f32", VLLM),
    ("moe_experts", "silu=stored", MEMORY, TRANSFORMERS),
    ("moe_experts", "down=f32", "an expert's output is weighted in f32", VLLM),
    (
        "moe_experts",
        "down=stored",
        "an expert's output is stored before it is weighted",
        TRANSFORMERS,
    ),
    ("moe_experts", "scaled=stored", "weighted outputs are stored before they are added", VLLM),
    (
        "moe_experts",
        "scaled=f32",
        "weighted outputs are added in f32",
        "https://arxiv.org/abs/2505.09388",
    ),
    ("moe_experts", "sum=f32", "experts are added in f32", VLLM),
    ("moe_experts", "sum=stored", "the sum over experts is stored after each", TRANSFORMERS),
    ("moe_experts", "partials=1", "one sum over an expert's width", TRANSFORMERS),
    ("moe_experts", "scale=file", "scales of quantised experts as the file has them", VLLM),
    (
        "moe_experts",
        "scale=stored",
        "scales of quantised experts are rounded to the model's dtype",
        GPTQMODEL,
    ),
    ("all_reduce", "sum=f32", "the sum over ranks is rounded once", MEGATRON),
    ("all_reduce", "sum=stored", "the sum is stored after each rank", RING),
];
