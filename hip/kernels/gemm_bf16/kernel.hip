// gemm_bf16: C[M, N] = A[M, K] W[N, K]^T + bias[N], torch's Linear, all bf16 row-major.
//
// One block computes a 64 x 64 tile of C with 256 threads, 4 x 4 elements each. A and W
// pass through LDS in tiles of 32 along K, widened to f32 and transposed, so that the
// inner loop reads both along a row. Products accumulate in f32 by fused multiply-add, in
// the order of k. The bias joins in f32; the result is rounded to bf16 once.
#include "assay_bf16.h"

namespace {

constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kTileK = 32;
constexpr int kMicro = 4; // rows and columns of a thread
constexpr int kThreads = (kTileM / kMicro) * (kTileN / kMicro);
constexpr int kLoads = kTileM * kTileK / kThreads; // of each operand, per thread and tile

static_assert(kTileM == kTileN, "one loop loads a tile of each operand");

__global__ __launch_bounds__(kThreads) void gemm_bf16_kernel(
    const bf16_bits* __restrict__ a, const bf16_bits* __restrict__ w,
    const bf16_bits* __restrict__ bias, bf16_bits* __restrict__ c, int m, int n, int k) {
    // The odd row length keeps the transposing stores free of bank conflicts.
    __shared__ float a_tile[kTileK][kTileM + 1];
    __shared__ float w_tile[kTileK][kTileN + 1];

    const int thread = threadIdx.x;
    const int m0 = blockIdx.y * kTileM;
    const int n0 = blockIdx.x * kTileN;
    const int micro_row = thread / (kTileN / kMicro) * kMicro;
    const int micro_column = thread % (kTileN / kMicro) * kMicro;

    float acc[kMicro][kMicro];
#pragma unroll
    for (int i = 0; i < kMicro; ++i)
#pragma unroll
        for (int j = 0; j < kMicro; ++j) acc[i][j] = 0.0f;

    for (int k0 = 0; k0 < k; k0 += kTileK) {
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            const int element = thread + load * kThreads;
            const int row = element / kTileK;
            const int column = element % kTileK;
            const int kk = k0 + column;
            const bool k_inside = kk < k;
            const bool a_inside = k_inside && m0 + row < m;
            const bool w_inside = k_inside && n0 + row < n;
            const size_t a_index = static_cast<size_t>(m0 + row) * k + kk;
            const size_t w_index = static_cast<size_t>(n0 + row) * k + kk;
            // Zeros beyond the edges add nothing to the sums.
            a_tile[column][row] = a_inside ? bf16_to_float(a[a_index]) : 0.0f;
            w_tile[column][row] = w_inside ? bf16_to_float(w[w_index]) : 0.0f;
        }
        __syncthreads(); // both tiles are complete

        for (int kk = 0; kk < kTileK; ++kk) {
            float a_part[kMicro], w_part[kMicro];
#pragma unroll
            for (int i = 0; i < kMicro; ++i) a_part[i] = a_tile[kk][micro_row + i];
#pragma unroll
            for (int j = 0; j < kMicro; ++j) w_part[j] = w_tile[kk][micro_column + j];
#pragma unroll
            for (int i = 0; i < kMicro; ++i)
#pragma unroll
                for (int j = 0; j < kMicro; ++j)
                    acc[i][j] = fmaf(a_part[i], w_part[j], acc[i][j]);
        }
        __syncthreads(); // all have read the tiles before the next ones overwrite them
    }

#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
        const int row = m0 + micro_row + i;
        if (row >= m) continue;
#pragma unroll
        for (int j = 0; j < kMicro; ++j) {
            const int column = n0 + micro_column + j;
            if (column >= n) continue;
            float value = acc[i][j];
            if (bias != nullptr) value += bf16_to_float(bias[column]);
            c[static_cast<size_t>(row) * n + column] = float_to_bf16(value);
        }
    }
}

} // namespace

// `bias` may be null. hipErrorInvalidValue unless m, n and k are at least 1.
extern "C" int gemm_bf16(const uint16_t* a, const uint16_t* w, const uint16_t* bias, uint16_t* c,
                         int m, int n, int k, hipStream_t stream) {
    if (m < 1 || n < 1 || k < 1) return hipErrorInvalidValue;
    const dim3 grid((n + kTileN - 1) / kTileN, (m + kTileM - 1) / kTileM);
    hipLaunchKernelGGL(gemm_bf16_kernel, grid, dim3(kThreads), 0, stream, a, w, bias, c, m, n, k);
    return hipGetLastError();
}
