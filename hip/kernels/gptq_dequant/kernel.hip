// gptq_dequant: W[K, N] = (q - z) * scale, GPTQ of 2, 3, 4 or 8 bits to bf16 or f16.
//
//   qweight i32 [K b/32, N]: the words of a column are one little-endian bit stream along K,
//           row k in bits k b to k b + b - 1
//   qzeros  i32 [G, N b/32]: the same along N
//   scales  f16 [G, N];  g_idx i32 [K], or null for groups of consecutive rows
//
// At 3 bits 32 values fill 3 words, and values 10 and 21 of the 32 lie in two words each.
// Format version 1 stores z - 1, version 2 stores z. A stored 2^b - 1 in version 1 means 2^b: it
// does not wrap. q - z is an exact small integer, its product with the widened scale is
// exact in f32, and the result is rounded once, to the output type. NaN and infinite scales
// follow IEEE.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;

// The shortest run of values that fills whole words.
template <int kBits>
struct Run {
    static constexpr int kValues = 32 % kBits == 0 ? 32 / kBits : 32;
    static constexpr int kWords = kValues * kBits / 32;
    static constexpr unsigned kMask = (1u << kBits) - 1u;
};

struct Bf16Output {
    static __device__ __forceinline__ uint16_t narrow(float value) { return float_to_bf16(value); }
};
struct F16Output {
    static __device__ __forceinline__ uint16_t narrow(float value) { return float_to_f16(value); }
};

// One thread unpacks one run: a word, at 3 bits three words, of a column.
template <class Output, int kBits>
__global__ __launch_bounds__(kThreads) void gptq_dequant_kernel(
    const int* __restrict__ qweight, const int* __restrict__ qzeros,
    const uint16_t* __restrict__ scales, const int* __restrict__ g_idx,
    uint16_t* __restrict__ weight, int n, int group_size, int zero_offset) {
    constexpr int kValues = Run<kBits>::kValues;
    constexpr int kWords = Run<kBits>::kWords;
    constexpr unsigned kMask = Run<kBits>::kMask;
    const int column = blockIdx.x * kThreads + threadIdx.x;
    const int run = blockIdx.y;
    if (column >= n) return;
    unsigned packed[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i)
        packed[i] = qweight[(static_cast<size_t>(run) * kWords + i) * n + column];

    // Where this column's zero point lies in its group's row of words.
    const int zero_words = n / kValues * kWords;
    const int zero_bit = column % kValues * kBits;
    const int zero_word = column / kValues * kWords + zero_bit / 32;
    const int zero_shift = zero_bit % 32;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
        const int row = run * kValues + j;
        const int group = g_idx != nullptr ? g_idx[row] : row / group_size;
        const int zero_group = group;
        const int scale_group = group;
        const int bit = j * kBits;
        unsigned value_bits = packed[bit / 32] >> (bit % 32);
        if (bit % 32 + kBits > 32) value_bits |= packed[bit / 32 + 1] << (32 - bit % 32);
        const int quantised = value_bits & kMask;
        const size_t zero_at = static_cast<size_t>(zero_group) * zero_words + zero_word;
        unsigned zero_bits = static_cast<unsigned>(qzeros[zero_at]) >> zero_shift;
        if (zero_shift + kBits > 32)
            zero_bits |= static_cast<unsigned>(qzeros[zero_at + 1]) << (32 - zero_shift);
        const int stored_zero = zero_bits & kMask;
        const int zero = stored_zero + zero_offset;
        const float scale = f16_to_float(scales[static_cast<size_t>(scale_group) * n + column]);
        const float value = static_cast<float>(quantised - zero) * scale;
        weight[static_cast<size_t>(row) * n + column] = Output::narrow(value);
    }
}

template <class Output, int kBits>
int launch_width(const int* qweight, const int* qzeros, const uint16_t* scales, const int* g_idx,
                 uint16_t* weight, int k, int n, int groups, int group_size, int version,
                 hipStream_t stream) {
    constexpr int kValues = Run<kBits>::kValues;
    const int rows_per_group = group_size == -1 ? k : group_size; // -1: one group of all rows
    if (k < kValues || k % kValues != 0 || n < kValues || n % kValues != 0 ||
        rows_per_group < 1 || groups != k / rows_per_group + (k % rows_per_group != 0) ||
        (version != 1 && version != 2))
        return hipErrorInvalidValue;
    const int zero_offset = version == 1 ? 1 : 0;
    const dim3 grid((n + kThreads - 1) / kThreads, k / kValues);
    hipLaunchKernelGGL(HIP_KERNEL_NAME(gptq_dequant_kernel<Output, kBits>), grid, dim3(kThreads),
                       0, stream, qweight, qzeros, scales, g_idx, weight, n, rows_per_group,
                       zero_offset);
    return hipGetLastError();
}

template <class Output>
int launch(const int* qweight, const int* qzeros, const uint16_t* scales, const int* g_idx,
           uint16_t* weight, int k, int n, int groups, int group_size, int bits, int version,
           hipStream_t stream) {
    const auto width = bits == 2   ? launch_width<Output, 2>
                       : bits == 3 ? launch_width<Output, 3>
                       : bits == 4 ? launch_width<Output, 4>
                       : bits == 8 ? launch_width<Output, 8>
                                   : nullptr;
    if (width == nullptr) return hipErrorInvalidValue;
    return width(qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size, version,
                 stream);
}

} // namespace

// hipErrorInvalidValue unless bits is 2, 3, 4 or 8, k and n are positive multiples of 16, 32, 8
// or 4 (in the order of the widths), version is 1 or 2, and groups is what k and group_size
// (positive, or -1) give. `g_idx` may be null; its values must lie in [0, groups).
extern "C" int gptq_dequant_bf16(const int32_t* qweight, const int32_t* qzeros,
                                 const uint16_t* scales, const int32_t* g_idx, uint16_t* weight,
                                 int k, int n, int groups, int group_size, int bits,
                                 int version, hipStream_t stream) {
    return launch<Bf16Output>(qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size,
                              bits, version, stream);
}

extern "C" int gptq_dequant_f16(const int32_t* qweight, const int32_t* qzeros,
                                const uint16_t* scales, const int32_t* g_idx, uint16_t* weight,
                                int k, int n, int groups, int group_size, int bits,
                                int version, hipStream_t stream) {
    return launch<F16Output>(qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size,
                             bits, version, stream);
}
