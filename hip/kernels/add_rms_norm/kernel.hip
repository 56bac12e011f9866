// add_rms_norm: residual = A + B and output = residual / sqrt(mean(residual^2) + eps) * weight,
// all bf16: the residual addition of a block and the norm that follows it.
//
//   A (the residual stream), B (the block's output), residual and output [rows, D], weight [D].
//
// One block of 256 threads takes one row. The sum is rounded to bf16 and stored, and the norm
// reads it as stored. Each thread sums the squares of its elements in f32 by fused
// multiply-add, in the order of the columns; the lanes of a wave are added as a tree and the
// waves in their order. Each thread then reads back what it has stored itself, multiplies by
// rsqrtf(sum / D + eps) and by the weight in f32, and rounds to bf16 once. If D is a multiple
// of 8 a thread takes eight neighbouring elements at a time, otherwise one; D alone decides,
// so that a row has the same bits in any batch. A NaN makes its row of the output NaN; a row
// with an infinity is NaN there and zero elsewhere; a row of zeros with eps 0 is NaN.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWave = 64;
constexpr int kWaves = kThreads / kWave;
constexpr int kVector = 8; // elements of a 16-byte load

// kWidth elements, 1 or 8, from or to an address that is aligned to all of them.
template <int kWidth>
__device__ __forceinline__ void load(const bf16_bits* source, float (&value)[kWidth]) {
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
__device__ __forceinline__ void store(bf16_bits* target,
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
__global__ __launch_bounds__(kThreads) void add_rms_norm_kernel(
    const bf16_bits* __restrict__ a, const bf16_bits* __restrict__ b,
    const bf16_bits* __restrict__ weight, bf16_bits* __restrict__ output,
    bf16_bits* __restrict__ residual, int d, float eps) {
    __shared__ float partial[kWaves];

    const size_t first = static_cast<size_t>(blockIdx.x) * d;

    float sum = 0.0f;
    for (int i = threadIdx.x * kWidth; i < d; i += kThreads * kWidth) {
        float left[kWidth], right[kWidth];
        load<kWidth>(a + first + i, left);
        load<kWidth>(b + first + i, right);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            left[j] = bf16_to_float(float_to_bf16(left[j] + right[j]));
            sum = fmaf(left[j], left[j], sum);
        }
        store<kWidth>(residual + first + i, left);
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
        load<kWidth>(residual + first + i, value);
        load<kWidth>(weight + i, factor);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float normalised = value[j] * scale;
            value[j] = normalised * factor[j];
        }
        store<kWidth>(output + first + i, value);
    }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

} // namespace

// hipErrorInvalidValue unless rows and d are at least 1, eps is not negative, and, if d is a
// multiple of 8, all pointers are aligned to 16 bytes. No buffer may overlap another.
extern "C" int add_rms_norm_bf16(const uint16_t* a, const uint16_t* b, const uint16_t* weight,
                                 uint16_t* output, uint16_t* residual, int rows, int d, float eps,
                                 hipStream_t stream) {
    if (rows < 1 || d < 1 || !(eps >= 0.0f)) return hipErrorInvalidValue;
    if (d % kVector == 0) {
        if (!aligned(a) || !aligned(b) || !aligned(weight) || !aligned(output) ||
            !aligned(residual))
            return hipErrorInvalidValue;
        hipLaunchKernelGGL(add_rms_norm_kernel<kVector>, dim3(rows), dim3(kThreads), 0, stream, a,
                           b, weight, output, residual, d, eps);
    } else {
        hipLaunchKernelGGL(add_rms_norm_kernel<1>, dim3(rows), dim3(kThreads), 0, stream, a, b,
                           weight, output, residual, d, eps);
    }
    return hipGetLastError();
}
