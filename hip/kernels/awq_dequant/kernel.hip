// awq_dequant: W[K, N] = (q - z) * scale, 4-bit AWQ to bf16 or f16.
//
//   qweight i32 [K, N/8] and qzeros i32 [G, N/8]: slot i (bits 4i to 4i + 3) of word c is
//           column 8c + [0, 2, 4, 6, 1, 3, 5, 7][i]
//   scales  f16 [G, N];  G = ceil(K / group_size), row k is of group k / group_size
//
// Zero points are stored as they are. q - z is an exact small integer, its product with the
// widened scale is exact in f32, and the result is rounded once, to the output type. NaN and
// infinite scales follow IEEE. Scales are read and results stored 16 bytes at a time: eight
// columns of a row, whose address is a multiple of 16 since N is one of 8.
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

// The slot that holds column j of a word's eight: even columns first.
__device__ __forceinline__ int slot_of(int j) { return j / 2 + j % 2 * (kPerWord / 2); }

// One thread unpacks one word: eight columns of a row.
template <class Output>
__global__ __launch_bounds__(kThreads) void awq_dequant_kernel(
    const int* __restrict__ qweight, const int* __restrict__ qzeros,
    const uint16_t* __restrict__ scales, uint16_t* __restrict__ weight, int k, int words,
    int group_size) {
    const int word = blockIdx.x * kThreads + threadIdx.x;
    if (word >= k * words) return;
    const int row = word / words;
    const int word_column = word % words;
    const int group = row / group_size;
    const int zero_group = group;
    const unsigned packed = qweight[word];
    const unsigned zeros = qzeros[static_cast<size_t>(zero_group) * words + word_column];
    const size_t scale_at = (static_cast<size_t>(group) * words + word_column) * kPerWord;
    const uint4 loaded = *reinterpret_cast<const uint4*>(scales + scale_at);
    const unsigned scale_pairs[kPerWord / 2] = {loaded.x, loaded.y, loaded.z, loaded.w};
    unsigned out[kPerWord / 2] = {0u, 0u, 0u, 0u};
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
        const int quantised = packed >> (4 * slot_of(j)) & 15;
        const int zero = zeros >> (4 * slot_of(j)) & 15;
        const int half = 16 * (j % 2);
        const float scale = f16_to_float(static_cast<f16_bits>(scale_pairs[j / 2] >> half));
        const float value = static_cast<float>(quantised - zero) * scale;
        out[j / 2] |= static_cast<unsigned>(Output::narrow(value)) << half;
    }
    uint4 stored;
    stored.x = out[0];
    stored.y = out[1];
    stored.z = out[2];
    stored.w = out[3];
    *reinterpret_cast<uint4*>(weight + static_cast<size_t>(word) * kPerWord) = stored;
}

template <class Output>
int launch(const int* qweight, const int* qzeros, const uint16_t* scales, uint16_t* weight, int k,
           int n, int groups, int group_size, hipStream_t stream) {
    const int rows_per_group = group_size == -1 ? k : group_size; // -1: one group of all rows
    if (k < 1 || n < kPerWord || n % kPerWord != 0 || rows_per_group < 1 ||
        groups != k / rows_per_group + (k % rows_per_group != 0) ||
        k > (0x7fffffff - kThreads) / (n / kPerWord))
        return hipErrorInvalidValue;
    const int words = n / kPerWord;
    const dim3 grid((k * words + kThreads - 1) / kThreads);
    hipLaunchKernelGGL(HIP_KERNEL_NAME(awq_dequant_kernel<Output>), grid, dim3(kThreads), 0,
                       stream, qweight, qzeros, scales, weight, k, words, rows_per_group);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless k is positive, n a positive multiple of 8, k n / 8 below
// 2^31 - 256, and groups is what k and group_size (positive, or -1) give. All buffers are
// aligned to 16 bytes.
extern "C" int awq_dequant_bf16(const int32_t* qweight, const int32_t* qzeros,
                                const uint16_t* scales, uint16_t* weight, int k, int n,
                                int groups, int group_size, hipStream_t stream) {
    return launch<Bf16Output>(qweight, qzeros, scales, weight, k, n, groups, group_size, stream);
}

extern "C" int awq_dequant_f16(const int32_t* qweight, const int32_t* qzeros,
                               const uint16_t* scales, uint16_t* weight, int k, int n, int groups,
                               int group_size, hipStream_t stream) {
    return launch<F16Output>(qweight, qzeros, scales, weight, k, n, groups, group_size, stream);
}
