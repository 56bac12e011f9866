// gptq_dequant: W[K, N] = (q - z) * scale, 4-bit GPTQ to bf16 or f16.
//
//   qweight i32 [K/8, N]: nibble j of word r is row 8r + j
//   qzeros  i32 [G, N/8]: nibble j of word c is column 8c + j
//   scales  f16 [G, N];  g_idx i32 [K], or null for groups of consecutive rows
//
// Format version 1 stores z - 1, version 2 stores z. A stored 15 in version 1 means 16: it
// does not wrap. q - z is an exact small integer, its product with the widened scale is
// exact in f32, and the result is rounded once, to the output type.
#include "assay_bf16.h"

namespace {

constexpr int kPerWord = 8;
constexpr int kThreads = 256;

struct Bf16Output {
    static __device__ __forceinline__ uint16_t narrow(float value) { return float_to_bf16(value); }
};
struct F16Output {
    static __device__ __forceinline__ uint16_t narrow(float value) { return float_to_f16(value); }
};

// One thread unpacks one word: eight rows of a column.
template <class Output>
__global__ __launch_bounds__(kThreads) void gptq_dequant_kernel(
    const int* __restrict__ qweight, const int* __restrict__ qzeros,
    const uint16_t* __restrict__ scales, const int* __restrict__ g_idx,
    uint16_t* __restrict__ weight, int n, int group_size, int zero_offset) {
    const int column = blockIdx.x * kThreads + threadIdx.x;
    const int word_row = blockIdx.y;
    if (column >= n) return;
    const unsigned packed = qweight[static_cast<size_t>(word_row) * n + column];
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
        const int row = word_row * kPerWord + j;
        const int group = g_idx != nullptr ? g_idx[row] : row / group_size;
        const int zero_group = group;
        const int scale_group = group;
        const int quantised = packed >> (4 * j) & 15;
        const size_t zero_row = static_cast<size_t>(zero_group) * (n / kPerWord);
        const unsigned zero_word = qzeros[zero_row + column / kPerWord];
        const int stored_zero = zero_word >> (4 * (column % kPerWord)) & 15;
        const int zero = stored_zero + zero_offset;
        const float scale = f16_to_float(scales[static_cast<size_t>(scale_group) * n + column]);
        const float value = static_cast<float>(quantised - zero) * scale;
        weight[static_cast<size_t>(row) * n + column] = Output::narrow(value);
    }
}

template <class Output>
int launch(const int* qweight, const int* qzeros, const uint16_t* scales, const int* g_idx,
           uint16_t* weight, int k, int n, int groups, int group_size, int version,
           hipStream_t stream) {
    const int rows_per_group = group_size == -1 ? k : group_size; // -1: one group of all rows
    if (k < kPerWord || k % kPerWord != 0 || n < kPerWord || n % kPerWord != 0 ||
        rows_per_group < 1 || groups != (k + rows_per_group - 1) / rows_per_group ||
        (version != 1 && version != 2))
        return hipErrorInvalidValue;
    const int zero_offset = version == 1 ? 1 : 0;
    const dim3 grid((n + kThreads - 1) / kThreads, k / kPerWord);
    hipLaunchKernelGGL(HIP_KERNEL_NAME(gptq_dequant_kernel<Output>), grid, dim3(kThreads), 0,
                       stream, qweight, qzeros, scales, g_idx, weight, n, rows_per_group,
                       zero_offset);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless k and n are positive multiples of 8, version is 1 or 2, and
// groups is what k and group_size (positive, or -1) give. `g_idx` may be null; its values
// must lie in [0, groups).
extern "C" int gptq_dequant_bf16(const int32_t* qweight, const int32_t* qzeros,
                                 const uint16_t* scales, const int32_t* g_idx, uint16_t* weight,
                                 int k, int n, int groups, int group_size, int version,
                                 hipStream_t stream) {
    return launch<Bf16Output>(qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size,
                              version, stream);
}

extern "C" int gptq_dequant_f16(const int32_t* qweight, const int32_t* qzeros,
                                const uint16_t* scales, const int32_t* g_idx, uint16_t* weight,
                                int k, int n, int groups, int group_size, int version,
                                hipStream_t stream) {
    return launch<F16Output>(qweight, qzeros, scales, g_idx, weight, k, n, groups, group_size,
                             version, stream);
}
