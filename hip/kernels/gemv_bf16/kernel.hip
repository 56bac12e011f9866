// gemv_bf16: y[M, N] = x[M, K] W[N, K]^T + bias[N] for a few rows, M of 1 to 8: torch's
// Linear at decode, all bf16 row-major.
//
// One wave of 64 lanes computes a column of y for all rows, so that W is read once. A block
// holds four waves. A lane takes 8 consecutive terms, by one 16-byte load of W and one of
// each row of x, then those 512 further on. Where K is no multiple of 8, rows are not
// aligned to 16 bytes: then a lane takes every 64th term, one at a time. Each lane
// accumulates in f32 by fused multiply-add, in the order of k; the 64 sums are added as a
// tree of shuffles. The bias joins in f32; the result is rounded to bf16 once. A row's bits
// do not depend on the other rows. NaN and infinities follow IEEE.
#include "assay_bf16.h"

namespace {

constexpr int kWave = 64;
constexpr int kThreads = 256;
constexpr int kWaves = kThreads / kWave; // of a block; each has a column
constexpr int kMaxRows = 8;
constexpr int kVector = 8; // bf16 of a 16-byte load

// 8 values from an address that is a multiple of 16 bytes.
__device__ __forceinline__ void load_vector(const bf16_bits* __restrict__ source,
                                            float (&values)[kVector]) {
    const uint4 packed = *reinterpret_cast<const uint4*>(source);
    const unsigned words[kVector / 2] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

template <bool Aligned>
__global__ __launch_bounds__(kThreads) void gemv_bf16_kernel(
    const bf16_bits* __restrict__ x, const bf16_bits* __restrict__ w,
    const bf16_bits* __restrict__ bias, bf16_bits* __restrict__ y, int m, int n, int k) {
    const int lane = threadIdx.x % kWave;
    const int column = blockIdx.x * kWaves + threadIdx.x / kWave;
    if (column >= n) return; // whole waves: the shuffles below have all their lanes
    const bf16_bits* const weights = w + static_cast<size_t>(column) * k;

    float acc[kMaxRows];
#pragma unroll
    for (int row = 0; row < kMaxRows; ++row) acc[row] = 0.0f;

    if (Aligned) {
        for (int kk = lane * kVector; kk < k; kk += kWave * kVector) {
            float w_part[kVector];
            load_vector(weights + kk, w_part);
#pragma unroll
            for (int row = 0; row < kMaxRows; ++row) {
                if (row < m) {
                    float x_part[kVector];
                    load_vector(x + static_cast<size_t>(row) * k + kk, x_part);
#pragma unroll
                    for (int i = 0; i < kVector; ++i)
                        acc[row] = fmaf(x_part[i], w_part[i], acc[row]);
                }
            }
        }
    } else {
        for (int kk = lane; kk < k; kk += kWave) {
            const float weight = bf16_to_float(weights[kk]);
#pragma unroll
            for (int row = 0; row < kMaxRows; ++row) {
                if (row < m)
                    acc[row] = fmaf(bf16_to_float(x[static_cast<size_t>(row) * k + kk]), weight,
                                    acc[row]);
            }
        }
    }

#pragma unroll
    for (int row = 0; row < kMaxRows; ++row) {
        if (row < m) { // the same in all lanes
            float sum = acc[row];
            for (int offset = kWave / 2; offset > 0; offset /= 2) sum += __shfl_xor(sum, offset);
            if (lane == 0) {
                if (bias != nullptr) sum += bf16_to_float(bias[column]);
                y[static_cast<size_t>(row) * n + column] = float_to_bf16(sum);
            }
        }
    }
}

} // namespace

// `bias` may be null. hipErrorInvalidValue unless m is 1 to 8, and n and k are at least 1.
// Where k is a multiple of 8, x and w must be aligned to 16 bytes.
extern "C" int gemv_bf16(const uint16_t* x, const uint16_t* w, const uint16_t* bias, uint16_t* y,
                         int m, int n, int k, hipStream_t stream) {
    if (m < 1 || m > kMaxRows || n < 1 || k < 1) return hipErrorInvalidValue;
    const dim3 grid((n + kWaves - 1) / kWaves);
    const bool aligned = k % kVector == 0;
    if (aligned)
        hipLaunchKernelGGL(gemv_bf16_kernel<true>, grid, dim3(kThreads), 0, stream, x, w, bias, y,
                           m, n, k);
    else
        hipLaunchKernelGGL(gemv_bf16_kernel<false>, grid, dim3(kThreads), 0, stream, x, w, bias, y,
                           m, n, k);
    return hipGetLastError();
}
