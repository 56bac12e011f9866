// rms_norm: Y = X / sqrt(mean(X^2) + eps) * weight over the innermost dimension, all bf16.
//
//   X [tokens, all_heads, D], weight [D], Y [tokens, heads, D], heads <= all_heads:
//   the first heads of each token are normalised. Without heads both are 1.
//
// One block of 256 threads normalises one row. Each thread sums the squares of its elements
// in f32 by fused multiply-add, in the order of the columns; the lanes of a wave are added as
// a tree and the waves in their order. The row is read a second time, multiplied by
// rsqrtf(sum / D + eps) and by the weight in f32, and rounded to bf16 once. If D is a
// multiple of 8 a thread takes eight neighbouring elements at a time, otherwise one; D alone
// decides, so that a row has the same bits in any batch. A NaN makes its row NaN; a row with
// an infinity is NaN there and zero elsewhere; a row of zeros with eps 0 is NaN.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWave = 64;
constexpr int kWaves = kThreads / kWave;
constexpr int kVector = 8; // elements of a 16-byte load

// kWidth elements, 1 or 8, from or to an address that is aligned to all of them.
template <int kWidth>
__device__ __forceinline__ void load(const bf16_bits* __restrict__ source, float (&value)[kWidth]) {
    if constexpr (kWidth == 1) {
        value[0] = bf16_to_float(*source);
    } else {
        const uint4 four = *reinterpret_cast<const uint4*>(source);
        const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[2 * i] = bf16_to_float(static_cast<bf16_bits>(words[i]));
            value[2 * i + 1] = bf16_to_float(static_cast<bf16_bits>(words[i] >> 16));
        }
    }
}

template <int kWidth>
__device__ __forceinline__ void store(bf16_bits* __restrict__ target,
                                      const float (&value)[kWidth]) {
    if constexpr (kWidth == 1) {
        *target = float_to_bf16(value[0]);
    } else {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned high = float_to_bf16(value[2 * i + 1]);
            words[i] = float_to_bf16(value[2 * i]) | high << 16;
        }
        *reinterpret_cast<uint4*>(target) = uint4{words[0], words[1], words[2], words[3]};
    }
}

template <int kWidth>
__global__ __launch_bounds__(kThreads) void rms_norm_kernel(
    const bf16_bits* __restrict__ x, const bf16_bits* __restrict__ weight,
    bf16_bits* __restrict__ y, int d, int heads, int all_heads, float eps) {
    __shared__ float partial[kWaves];

    const int row = blockIdx.x;
    const size_t x_row = static_cast<size_t>(row / heads) * all_heads + row % heads;
    const size_t x_first = x_row * d;
    const size_t y_first = static_cast<size_t>(row) * d;

    float sum = 0.0f;
    for (int i = threadIdx.x * kWidth; i < d; i += kThreads * kWidth) {
        float value[kWidth];
        load<kWidth>(x + x_first + i, value);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum = fmaf(value[j], value[j], sum);
    }
    for (int offset = kWave / 2; offset > 0; offset /= 2) sum += __shfl_down(sum, offset);
    if (threadIdx.x % kWave == 0) partial[threadIdx.x / kWave] = sum;
    __syncthreads(); // the sums of all waves are in LDS

    float total = 0.0f;
    for (int wave = 0; wave < kWaves; ++wave) total += partial[wave];
    const float mean = total / static_cast<float>(d);
    const float scale = rsqrtf(mean + eps);

    for (int i = threadIdx.x * kWidth; i < d; i += kThreads * kWidth) {
        float value[kWidth], factor[kWidth];
        load<kWidth>(x + x_first + i, value);
        load<kWidth>(weight + i, factor);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float normalised = value[j] * scale;
            value[j] = normalised * factor[j];
        }
        store<kWidth>(y + y_first + i, value);
    }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

} // namespace

// hipErrorInvalidValue unless tokens and d are at least 1, 1 <= heads <= all_heads, eps is not
// negative, and, if d is a multiple of 8, all pointers are aligned to 16 bytes.
extern "C" int rms_norm_bf16(const uint16_t* x, const uint16_t* weight, uint16_t* y, int tokens,
                             int d, int heads, int all_heads, float eps, hipStream_t stream) {
    if (tokens < 1 || d < 1 || heads < 1 || all_heads < heads || !(eps >= 0.0f) ||
        tokens > INT32_MAX / heads)
        return hipErrorInvalidValue;
    const dim3 grid(tokens * heads);
    if (d % kVector == 0) {
        if (!aligned(x) || !aligned(weight) || !aligned(y)) return hipErrorInvalidValue;
        hipLaunchKernelGGL(rms_norm_kernel<kVector>, grid, dim3(kThreads), 0, stream, x, weight, y,
                           d, heads, all_heads, eps);
    } else {
        hipLaunchKernelGGL(rms_norm_kernel<1>, grid, dim3(kThreads), 0, stream, x, weight, y, d,
                           heads, all_heads, eps);
    }
    return hipGetLastError();
}
