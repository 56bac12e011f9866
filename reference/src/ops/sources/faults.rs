//! Where each fault was seen: by code.

/// A conversion that cuts off the lower half of an f32.
const TRUNCATION: &str = "https://github.com/ROCm/aiter/issues/5151";
/// The same, and half of all ties: `+ 0x8000` before the shift.
const TIES: &str = "derived from https://github.com/ROCm/aiter/issues/5151: missed by every tolerance of an ulp or more";
/// Factors that were lost or applied twice.
const GAIN: &str = "https://github.com/vllm-project/vllm/issues/46280, \
                    https://github.com/ROCm/rocm-libraries/issues/12226";
const DIAGONAL: &str = "https://github.com/huggingface/candle/issues/3236";
const WINDOW: &str = "https://github.com/huggingface/transformers/issues/35896, \
                      https://github.com/vllm-project/vllm/issues/17772";
const SCORES: &str = "https://github.com/huggingface/transformers/issues/33317";
const ONLINE: &str = "derived from https://arxiv.org/abs/2205.14135, algorithm 1: missed by all criteria \
                      where the first tile holds the maximum";
const FUSED_ADD: &str = "derived from https://github.com/vllm-project/vllm: fused_add_rms_norm works in \
                         place; missed by a test that compares the normalised output only";
const QK_NORM: &str = "derived from https://arxiv.org/abs/2505.09388: missed by norm weights of 1 at \
                       position 0";
const PAGES: &str = "derived from https://arxiv.org/abs/2309.06180: missed by one block, by one head and \
                     by a cache that the same code writes and reads";
const SPLIT_KV: &str = "derived from https://arxiv.org/abs/2311.01282: missed by contexts of one \
                        partition, and by NMSE 5e-4 where scores are flat";
const FP8_CACHE: &str = "https://github.com/sgl-project/sglang/issues/20705, \
                         https://github.com/vllm-project/vllm/issues/41343";
const GPTQ_V2: &str = "https://github.com/vllm-project/vllm/issues/26343";
const GPTQ_WRAP: &str = "https://github.com/ModelCloud/GPTQModel/issues/2350, \
                         https://github.com/AutoGPTQ/AutoGPTQ/issues/354";
const GPTQ_WIDTH: &str = "https://github.com/ModelCloud/GPTQModel/issues/2984";
const AWQ_ORDER: &str =
    "https://github.com/pie-project/pie/issues/491, https://arxiv.org/abs/2306.00978";
const GROUPS: &str = "derived from https://arxiv.org/abs/2210.17323: missed by any test whose groups have \
                      alike scales";
const SIGN: &str = "derived: cosine sees it, a test of magnitudes does not";
const CT: &str =
    "https://github.com/vllm-project/compressed-tensors: pack_to_int32 adds 2^(bits - 1)";
const CT_ORDER: &str = "derived from https://github.com/vllm-project/compressed-tensors: missed by constant \
                        weights and by weights packed and unpacked by the same code";
const FP8: &str =
    "https://arxiv.org/abs/2412.19437, 3.3.2: w = q * weight_scale_inv by blocks of 128 x 128";
const FNUZ: &str =
    "https://arxiv.org/abs/2206.02915: e4m3fnuz, https://arxiv.org/abs/2209.05433: e4m3fn";
const WAVES: &str = "https://github.com/turboderp-org/exllamav2/issues/137, \
                     https://github.com/alibaba/rtp-llm/issues/856";
const ROUTE: &str =
    "https://arxiv.org/abs/2505.09388: softmax over all experts, the best k, norm_topk_prob";
const MOE: &str = "derived from transformers' Qwen3MoeSparseMoeBlock: missed by cosine 0.9999 where one expert \
                   dominates";
const K_TAIL: &str = "https://github.com/ROCm/composable_kernel/issues/512";
const EMBEDDING: &str = "https://github.com/QwenLM/Qwen3/issues/927, \
                         https://github.com/arcee-ai/mergekit/issues/425";
const ROPE_TABLE: &str = "https://github.com/huggingface/candle/issues/3005, \
                          https://github.com/huggingface/candle/issues/3520";
const ROPE_PLACES: &str = "https://github.com/EricLBuehler/mistral.rs/issues/2083, \
                           https://github.com/huggingface/transformers/issues/43082";
const YARN: &str = "https://github.com/vllm-project/vllm/issues/48621, \
                    https://github.com/sgl-project/sglang/issues/22711, https://arxiv.org/abs/2309.00071";
const RANKS: &str =
    "https://github.com/vllm-project/vllm/issues/57059, https://arxiv.org/abs/1909.08053";

/// (code, source), by code.
pub(super) const FAULTS: &[(&str, &str)] = &[
    // embedding
    (
        "A100",
        "https://arxiv.org/abs/2403.08295: Gemma multiplies embeddings by sqrt(hidden), Qwen does not",
    ),
    ("A101", EMBEDDING),
    ("A102", GAIN),
    // matmul
    ("A110", K_TAIL),
    ("A111", TRUNCATION),
    (
        "A112",
        "https://github.com/vllm-project/vllm/issues/39663, https://github.com/paiml/aprender/issues/2260",
    ),
    ("A113", "derived: missed by a square output and by a bias of zeros"),
    (
        "A114",
        "derived from torch.nn.functional.linear's weight [N, K]: missed by a symmetric weight and by constants",
    ),
    ("A115", GAIN),
    ("A116", "https://github.com/vllm-project/vllm/issues/40827"),
    (
        "A117",
        "derived from https://github.com/ROCm/composable_kernel/issues/512: missed by NMSE 5e-4 at large K",
    ),
    (
        "A118",
        "derived from https://github.com/ROCm/composable_kernel/issues/512: missed by NMSE 5e-4 at large K",
    ),
    ("A119", "derived: missed by no criterion, but by inputs that repeat in pairs"),
    (
        "A11A",
        "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html: reduced precision reduction",
    ),
    (
        "A11B",
        "https://github.com/sonos/tract/issues/2476, https://github.com/vllm-project/vllm/issues/10656",
    ),
    ("A11C", TIES),
    ("A11D", "https://github.com/huggingface/text-generation-inference/issues/1036"),
    // rms_norm
    (
        "A120",
        "https://github.com/paiml/aprender/issues/1606, https://github.com/PaddlePaddle/FastDeploy/issues/2797, \
         https://github.com/apache/tvm/issues/15856",
    ),
    ("A121", "https://github.com/tenstorrent/tt-mlir/issues/9042"),
    ("A122", "https://arxiv.org/abs/2403.08295: Gemma's form; missed by weights near 0"),
    ("A123", "https://github.com/tenstorrent/tt-mlir/issues/9125: missed by weights of 1"),
    ("A124", WAVES),
    ("A125", "https://github.com/ROCm/aiter/issues/5044"),
    ("A126", "https://arxiv.org/abs/1910.07467: against LayerNorm; missed by inputs of mean 0"),
    ("A127", TRUNCATION),
    ("A128", GAIN),
    ("A129", TIES),
    // rope
    (
        "A130",
        "https://github.com/InternLM/lmdeploy/issues/4303, https://github.com/vllm-project/vllm-ascend/issues/5201",
    ),
    (
        "A131",
        "https://arxiv.org/abs/2104.09864 rotates (2i, 2i + 1), transformers (i, i + D/2): missed at position 0",
    ),
    ("A132", ROPE_PLACES),
    ("A133", "https://github.com/tenstorrent/tt-mlir/issues/9042"),
    ("A134", "https://github.com/NVIDIA/TensorRT-LLM/issues/4040"),
    ("A135", "derived: missed at position 0, and by tests of norms"),
    ("A136", ROPE_TABLE),
    ("A137", TRUNCATION),
    ("A138", YARN),
    ("A139", TIES),
    ("A13A", "https://github.com/InternLM/lmdeploy/issues/4304"),
    ("A13B", YARN),
    ("A13C", YARN),
    ("A13D", "https://arxiv.org/abs/2309.00071: linear interpolation against NTK by parts"),
    (
        "A13E",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py: `truncate`",
    ),
    // attention
    ("A140", DIAGONAL),
    ("A141", DIAGONAL),
    ("A142", DIAGONAL),
    (
        "A143",
        "https://github.com/PSAL-POSTECH/ONNXim/issues/33, https://github.com/EricLBuehler/candle-vllm/issues/52",
    ),
    (
        "A144",
        "derived: missed by llama.cpp's, torch's and vLLM's criteria at 4096 keys of equal weight",
    ),
    ("A145", "derived from a causal mask with < for <=: missed by NMSE 5e-4 at 4096 keys"),
    (
        "A146",
        "https://arxiv.org/abs/2309.17453: without the first key the sink is gone; missed at equal weights",
    ),
    ("A147", WINDOW),
    (
        "A148",
        "https://github.com/ggml-org/llama.cpp/issues/23862, \
         https://github.com/flashinfer-ai/flashinfer/issues/4450",
    ),
    ("A149", "https://github.com/vllm-project/vllm/issues/2622: head_dim from hidden / heads"),
    ("A14A", ONLINE),
    ("A14B", ONLINE),
    ("A14C", SCORES),
    (
        "A14D",
        "https://github.com/sonos/tract/issues/2476, https://github.com/ggml-org/llama.cpp/issues/7805",
    ),
    (
        "A14E",
        "derived from https://github.com/ROCm/aiter/issues/5151: missed by every elementwise tolerance",
    ),
    ("A14F", "https://github.com/ggml-org/llama.cpp/issues/25373"),
    ("A154", TRUNCATION),
    ("A155", TIES),
    ("A156", WINDOW),
    ("A157", WINDOW),
    ("A158", WINDOW),
    ("A15F", GAIN),
    // softmax
    ("A160", TRUNCATION),
    ("A161", "derived: missed by argmax and by cosine, which no factor changes"),
    ("A162", "derived: missed by argmax"),
    ("A163", GAIN),
    ("A164", TIES),
    // silu_mul
    ("A170", "https://github.com/ml-explore/mlx-lm/issues/767"),
    ("A171", "https://arxiv.org/abs/2002.05202: GLU against SwiGLU"),
    ("A172", "https://arxiv.org/abs/2002.05202: Bilinear against SwiGLU"),
    ("A173", TRUNCATION),
    ("A174", GAIN),
    ("A175", TIES),
    // add
    ("A180", TRUNCATION),
    ("A181", TIES),
    ("A182", "derived: missed by cosine 0.9999 where the residual is 100 times the block's output"),
    ("A183", "derived: missed where a layer's input is small"),
    ("A184", GAIN),
    // argmax
    ("A190", "https://github.com/QwenLM/Qwen3/issues/826: token 0 for ever, HTTP 200"),
    ("A191", "derived: missed by any test whose best token is not the last"),
    // gptq_dequant
    ("A1A0", GPTQ_V2),
    ("A1A1", GPTQ_V2),
    (
        "A1A2",
        "https://github.com/AutoGPTQ/AutoGPTQ/issues/325: desc_act; cosine 0.9996 at near-equal scales",
    ),
    ("A1A3", "https://github.com/AutoGPTQ/AutoGPTQ/issues/640: AWQ's order against GPTQ's"),
    ("A1A4", "https://github.com/pie-project/pie/issues/491: missed by symmetric zero points"),
    (
        "A1A5",
        "https://arxiv.org/abs/2210.17323: packed along K, AWQ along N; missed by constant weights",
    ),
    ("A1A6", GPTQ_WRAP),
    ("A1A7", GROUPS),
    ("A1A8", GROUPS),
    ("A1A9", "https://github.com/AutoGPTQ/AutoGPTQ/issues/484: missed by symmetric checkpoints"),
    ("A1AA", SIGN),
    ("A1AB", TRUNCATION),
    ("A1AC", GPTQ_WRAP),
    ("A1AD", TIES),
    ("A1AE", GAIN),
    ("A1B0", GAIN),
    ("A1B1", TRUNCATION),
    ("A1B2", TIES),
    ("A1C0", GPTQ_WIDTH),
    ("A1C1", GPTQ_WIDTH),
    ("A1C2", "https://github.com/vllm-project/vllm/issues/37185"),
    // awq_dequant
    ("A1D0", AWQ_ORDER),
    ("A1D1", AWQ_ORDER),
    ("A1D2", GPTQ_WRAP),
    (
        "A1D3",
        "https://arxiv.org/abs/2306.00978: packed along N, GPTQ along K; missed by constant weights",
    ),
    ("A1D4", GROUPS),
    ("A1D5", GROUPS),
    ("A1D6", AWQ_ORDER),
    ("A1D7", SIGN),
    ("A1D8", TRUNCATION),
    ("A1D9", TIES),
    ("A1DA", GAIN),
    ("A1DB", AWQ_ORDER),
    // ct_dequant
    ("A1E0", CT),
    ("A1E1", CT),
    ("A1E2", CT),
    ("A1E3", CT),
    ("A1E4", CT_ORDER),
    ("A1E5", CT_ORDER),
    ("A1E6", CT_ORDER),
    ("A1E7", GROUPS),
    ("A1E8", GROUPS),
    ("A1E9", "https://github.com/vllm-project/vllm/issues/916: the index of actorder"),
    ("A1EA", "derived from weight_scale [N, G] against GPTQ's [G, N]: missed by alike scales"),
    ("A1EB", SIGN),
    ("A1EC", TRUNCATION),
    ("A1ED", TIES),
    ("A1EE", GAIN),
    // fp8_dequant
    ("A1F0", FP8),
    ("A1F1", FP8),
    ("A1F2", FP8),
    ("A1F3", FP8),
    ("A1F4", "https://github.com/sgl-project/sglang/issues/20705"),
    ("A1F5", "https://github.com/vllm-project/vllm/issues/41343"),
    ("A1F6", "https://arxiv.org/abs/2209.05433: S.1111.111 is NaN in e4m3"),
    ("A1F7", TRUNCATION),
    ("A1F8", TIES),
    ("A1F9", GAIN),
    ("A1FA", "https://arxiv.org/abs/2412.19437, 3.3.2: activations by groups of 128, not by token"),
    (
        "A1FB",
        "https://github.com/sgl-project/sglang/issues/20705: missed where no activation is above 448",
    ),
    ("A1FC", FNUZ),
    // moe_route
    ("A200", ROUTE),
    ("A201", ROUTE),
    ("A202", ROUTE),
    ("A203", ROUTE),
    ("A204", ROUTE),
    ("A205", "https://arxiv.org/abs/2412.19437, 2.1.2: DeepSeek-V3's sigmoid against a softmax"),
    (
        "A206",
        "https://github.com/huggingface/transformers: Qwen3MoeTopKRouter has its softmax in f32",
    ),
    ("A207", TRUNCATION),
    ("A209", GAIN),
    // moe_experts
    ("A210", MOE),
    ("A211", MOE),
    ("A212", "https://github.com/ml-explore/mlx-lm/issues/767"),
    ("A213", MOE),
    ("A214", MOE),
    ("A215", TRUNCATION),
    ("A216", TIES),
    ("A217", GAIN),
    // all_reduce, all_gather
    ("A220", RANKS),
    ("A221", RANKS),
    ("A222", TRUNCATION),
    ("A223", TIES),
    ("A224", GAIN),
    ("A225", RANKS),
    // Stores
    (
        "A230",
        "derived: two roundings; one element in 16 is an ulp off: missed by NMSE 5e-4, torch 1.6e-2, CK's rms, \
         cosine 0.9999 and vLLM's",
    ),
    ("A231", "https://github.com/vllm-project/vllm/issues/17364"),
    // matmul
    (
        "A232",
        "https://github.com/pytorch/pytorch/issues/182952, https://github.com/ROCm/Tensile/issues/1583",
    ),
    (
        "A233",
        "https://github.com/pytorch/pytorch/issues/182952, https://github.com/ROCm/composable_kernel/issues/671",
    ),
    (
        "A234",
        "https://github.com/ROCm/rocm-libraries/issues/12226, https://github.com/pytorch/pytorch/issues/128815",
    ),
    (
        "A235",
        "derived: a workspace in the output's dtype: missed by NMSE 5e-4, torch 1.6e-2 and cosine 0.9999",
    ),
    // Linear layers over quantised weights
    (
        "A236",
        "https://github.com/vllm-project/vllm/issues/10656, https://github.com/vllm-project/vllm/issues/14715",
    ),
    (
        "A237",
        "https://github.com/vllm-project/vllm/issues/37135, https://github.com/vllm-project/vllm/issues/33972",
    ),
    ("A238", "https://github.com/paiml/aprender/issues/2095"),
    ("A239", "https://github.com/vllm-project/vllm/issues/916"),
    // Dequantisation
    ("A23A", "https://github.com/vllm-project/vllm/issues/37329"),
    (
        "A23B",
        "derived: missed by all criteria where K is a multiple of the group, and by NMSE 5e-4 at large K: \
         https://github.com/QwenLM/Qwen3/issues/578 has 231 groups and an edge",
    ),
    (
        "A23C",
        "derived from https://github.com/pie-project/pie/issues/491: missed by symmetric zero points",
    ),
    (
        "A23D",
        "derived: one bit: missed by NMSE 5e-4, marlin's mean ratio 0.04, cosine 0.9999, MIGraphX's rms 8e-2",
    ),
    (
        "A23E",
        "derived: one zero point: missed by NMSE 5e-4, marlin's mean ratio 0.04, cosine 0.9999",
    ),
    (
        "A23F",
        "derived from exllamav2's dequant_4bit_8_prep_zero_scale: missed by NMSE 5e-4, torch 1.6e-2, cosine \
         0.9999, and exact on symmetric zero points",
    ),
    (
        "A240",
        "derived from https://github.com/pytorch/pytorch/issues/182952: missed by NMSE 5e-4 and cosine 0.9999",
    ),
    (
        "A241",
        "derived from e4m3fnuz' range, https://arxiv.org/abs/2206.02915: missed by weights below 240",
    ),
    // rms_norm
    ("A243", "https://github.com/turboderp-org/exllamav2/issues/33: lanes counted twice"),
    ("A244", "https://github.com/vllm-project/vllm/issues/17735"),
    ("A245", "https://github.com/ROCm/aiter/issues/5044"),
    (
        "A246",
        "derived: a factor on a row: missed by cosine 0.9999 and where the width is a multiple of the tile",
    ),
    (
        "A247",
        "derived from https://en.wikipedia.org/wiki/Fast_inverse_square_root: 0.18 %: missed by NMSE 5e-4, \
         torch 1.6e-2, vLLM's, cosine 0.9999",
    ),
    ("A248", "derived: 2^-9 a column: missed by NMSE 5e-4, torch 1.6e-2, CK's rms, cosine 0.9999"),
    ("A249", "derived: a factor on a row: missed by cosine 0.9999 at any width"),
    (
        "A24A",
        "derived: overflow at a sum of 65504: missed by inputs of unit variance below that width",
    ),
    // rope
    ("A24B", ROPE_TABLE),
    ("A24C", ROPE_TABLE),
    ("A24D", ROPE_TABLE),
    ("A24E", "https://github.com/triton-lang/triton/issues/11217"),
    ("A24F", ROPE_PLACES),
    (
        "A250",
        "derived: decode batches whose requests are at one position hide it from every criterion",
    ),
    ("A251", "derived: missed by all criteria up to the table's length"),
    (
        "A252",
        "derived: small angles: missed by NMSE 5e-4, torch 1.6e-2, cosine 0.9999 at short positions",
    ),
    (
        "A253",
        "derived: small angles: missed by NMSE 5e-4, torch 1.6e-2, cosine 0.9999 at short positions",
    ),
    // Exponentials
    ("A254", "derived: missed by cosine 0.9999, and by NMSE 5e-4 at large maxima"),
    (
        "A255",
        "derived: missed by every criterion on scores below 88; Qwen2.5's key biases go beyond",
    ),
    ("A256", "derived: missed by NMSE 5e-4, torch's atol, cosine 0.9999 on few or near keys"),
    (
        "A257",
        "derived: an exponent off by 0.18 %: missed by NMSE 5e-4, torch 1.6e-2, vLLM's, cosine 0.9999",
    ),
    (
        "A258",
        "derived: missed by llama.cpp's, torch's and vLLM's criteria where the maximum is large",
    ),
    // attention
    (
        "A259",
        "derived from https://github.com/PSAL-POSTECH/ONNXim/issues/33: missed by one kv head or alike heads",
    ),
    ("A25A", "derived: missed by constant values, and by NMSE 5e-4 over many keys of equal weight"),
    (
        "A25B",
        "derived: missed by llama.cpp's, torch's and vLLM's criteria at 4096 keys of equal weight",
    ),
    (
        "A25C",
        "https://github.com/triton-lang/triton: `q = (q * qk_scale).to(tl.float16)` in early versions of tutorial \
         06-fused-attention: missed by NMSE 5e-4, torch 1.6e-2, cosine 0.9999 on unit data",
    ),
    ("A25D", "derived: a factor on a row: missed by the cosine of a row at any length"),
    (
        "A25E",
        "derived from https://pytorch.org/blog/flash-decoding/: missed by all where runs have equal weight",
    ),
    ("A25F", "https://github.com/flashinfer-ai/flashinfer/issues/4450"),
    // silu_mul
    ("A260", "derived: missed by NMSE 5e-4, any atol of 1e-3, cosine 0.9999"),
    ("A261", "derived: missed by MIGraphX's rms 8e-2, vLLM's and cosine 0.9999"),
    ("A262", "derived: missed by NMSE 5e-4, vLLM's and cosine 0.9999"),
    // argmax
    ("A263", "derived: missed by any row with a positive logit"),
    (
        "A264",
        "derived: missed by any test whose best token is not in the tail; 151936 is no multiple of 256",
    ),
    ("A265", "derived: missed by all rows without a near tie"),
    // moe_route
    ("A266", "derived: 2^-9 a token: missed by NMSE 5e-4, torch 1.6e-2, cosine 0.9999"),
    ("A267", WAVES),
    // moe_experts
    (
        "A268",
        "derived: one token of many: missed by marlin's mean ratio 0.04 and NMSE 5e-4 over many tokens",
    ),
    (
        "A269",
        "https://github.com/vllm-project/vllm: `apply_router_weight_on_input`, Llama 4's order; missed by cosine",
    ),
    // all_reduce
    ("A26A", RANKS),
    // embedding
    ("A26B", "derived: missed by plain English, whose tokens are below 65536"),
    // add_rms_norm
    ("A2B0", TRUNCATION),
    ("A2B1", TIES),
    ("A2B2", GAIN),
    ("A2B3", FUSED_ADD),
    ("A2B4", FUSED_ADD),
    ("A2B5", "https://github.com/vllm-project/vllm/issues/17364"),
    ("A2B6", FUSED_ADD),
    // qk_norm_rope
    ("A2B8", QK_NORM),
    ("A2B9", TRUNCATION),
    ("A2BA", TIES),
    ("A2BB", QK_NORM),
    ("A2BC", QK_NORM),
    ("A2BD", GAIN),
    (
        "A2BE",
        "derived from https://arxiv.org/abs/2409.02060, whose norm is over all heads: missed by heads \
         of equal scale",
    ),
    (
        "A2BF",
        "derived: two roundings; one element in 16 is an ulp off: missed by NMSE 5e-4, torch 1.6e-2, CK's rms, \
         cosine 0.9999 and vLLM's",
    ),
    // attention_paged
    (
        "A2C0",
        "https://github.com/ROCm/aiter/issues/2517, https://github.com/vllm-project/vllm/issues/50427",
    ),
    ("A2C1", PAGES),
    (
        "A2C2",
        "derived from https://arxiv.org/abs/2309.06180: missed by contexts that are whole blocks",
    ),
    (
        "A2C3",
        "derived from https://arxiv.org/abs/2309.06180: missed by NMSE 5e-4 at 4096 keys, and by \
         caches that start as zeros",
    ),
    ("A2C4", "derived from https://arxiv.org/abs/2309.06180: missed by cosine 0.9999 at 4096 keys"),
    ("A2C5", SPLIT_KV),
    ("A2C6", SPLIT_KV),
    ("A2C7", SPLIT_KV),
    ("A2C8", "https://github.com/vllm-project/vllm/issues/35923"),
    ("A2C9", PAGES),
    ("A2CA", PAGES),
    // kv_store
    ("A2D0", PAGES),
    ("A2D1", PAGES),
    ("A2D2", PAGES),
    ("A2D3", TRUNCATION),
    ("A2D4", TIES),
    (
        "A2D5",
        "derived from https://github.com/vllm-project/vllm, whose slot -1 is padding: missed by \
         batches without padding and by caches that are not full",
    ),
    ("A2D6", "derived from a grid rounded down: missed by token counts that are whole blocks"),
    ("A2D7", FP8_CACHE),
    ("A2D8", FP8_CACHE),
    (
        "A2D9",
        "derived from a block that is zeroed when it is taken: missed by caches that start as zeros",
    ),
    ("A2DA", GAIN),
];
