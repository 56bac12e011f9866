// gemm_bf16: C[M, N] = A[M, K] W[N, K]^T + bias[N], torch's Linear, all bf16 row-major.
//
// One block computes a 64 x 64 tile of C with 256 threads, 16 elements each. A and W pass
// through LDS in tiles of 32 along K. Products accumulate in f32, in the order of k; the bias
// joins in f32; the result is rounded to bf16 once.
//
// Vector unit: a thread has 4 x 4 elements, by fused multiply-add; the tiles are widened to
// f32 and transposed, so that the inner loop reads both along a row.
// Matrix instructions, where there are any: each of the four waves has a quarter of the tile,
// four products of 16 x 16; the tiles stay bf16 and as they are in memory. How an instruction
// adds its 16 products is the hardware's affair.
#include "assay_bf16.h"
#include "assay_matrix.h"

namespace {

constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kTileK = 32;
constexpr int kMicro = 4; // a thread has kMicro x kMicro results
constexpr int kThreads = (kTileM / kMicro) * (kTileN / kMicro);
constexpr int kLoads = kTileM * kTileK / kThreads; // of each operand, per thread and tile

static_assert(kTileM == kTileN, "one loop loads a tile of each operand");

#ifdef ASSAY_MATRIX

constexpr int kQuarter = kTileM / 2;         // of the tile, for one wave
constexpr int kRow = kTileK + 4;             // whole 8 bytes, against bank conflicts
constexpr int kTiles = kQuarter / kMatrixSize; // of a quarter, along each side

static_assert(kThreads == 4 * kMatrixWave && kMicro == kTiles * kTiles && kTileK % kMatrixSize == 0,
              "result (i, r) of a thread is register r of its wave's product i");

// Where a thread's result (i, r) lies in the block's tile.
__device__ __forceinline__ int result_row(int thread, int i, int r) {
    const int wave = thread / kMatrixWave;
    return wave / 2 * kQuarter + i / kTiles * kMatrixSize + matrix_d_row(thread % kMatrixWave, r);
}
__device__ __forceinline__ int result_column(int thread, int i, int r) {
    const int wave = thread / kMatrixWave;
    return wave % 2 * kQuarter + i % kTiles * kMatrixSize +
           matrix_d_column(thread % kMatrixWave, r);
}

// Adds the products of k0 to k0 + 15 of the tiles. B of the instruction is W transposed.
__device__ __forceinline__ void add_products(matrix_f32x4 (&acc)[kMicro],
                                             const bf16_bits (*a_tile)[kRow],
                                             const bf16_bits (*w_tile)[kRow], int k0) {
    const int wave = threadIdx.x / kMatrixWave;
    const int lane = threadIdx.x % kMatrixWave;
    const int a_row = wave / 2 * kQuarter + matrix_a_row(lane);
    const int w_row = wave % 2 * kQuarter + matrix_b_column(lane);
    matrix_bf16x4 a_part[kTiles], w_part[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            a_part[i][e] = a_tile[a_row + i * kMatrixSize][k0 + matrix_a_k(lane, e)];
            w_part[i][e] = w_tile[w_row + i * kMatrixSize][k0 + matrix_b_k(lane, e)];
        }
#pragma unroll
    for (int i = 0; i < kMicro; ++i)
        acc[i] = matrix_multiply_add(a_part[i / kTiles], w_part[i % kTiles], acc[i]);
}

#else

// Where a thread's result (i, j) lies in the block's tile.
__device__ __forceinline__ int result_row(int thread, int i, int) {
    return thread / (kTileN / kMicro) * kMicro + i;
}
__device__ __forceinline__ int result_column(int thread, int, int j) {
    return thread % (kTileN / kMicro) * kMicro + j;
}

#endif

__global__ __launch_bounds__(kThreads) void gemm_bf16_kernel(
    const bf16_bits* __restrict__ a, const bf16_bits* __restrict__ w,
    const bf16_bits* __restrict__ bias, bf16_bits* __restrict__ c, int m, int n, int k) {
#ifdef ASSAY_MATRIX
    __shared__ bf16_bits a_tile[kTileM][kRow];
    __shared__ bf16_bits w_tile[kTileN][kRow];
#else
    // The odd row length keeps the transposing stores free of bank conflicts.
    __shared__ float a_tile[kTileK][kTileM + 1];
    __shared__ float w_tile[kTileK][kTileN + 1];
#endif

    const int thread = threadIdx.x;
    const int m0 = blockIdx.y * kTileM;
    const int n0 = blockIdx.x * kTileN;

#ifdef ASSAY_MATRIX
    matrix_f32x4 acc[kMicro];
#else
    const int micro_row = result_row(thread, 0, 0);
    const int micro_column = result_column(thread, 0, 0);
    float acc[kMicro][kMicro];
#endif
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
#ifdef ASSAY_MATRIX
            a_tile[row][column] = a_inside ? a[a_index] : 0;
            w_tile[row][column] = w_inside ? w[w_index] : 0;
#else
            a_tile[column][row] = a_inside ? bf16_to_float(a[a_index]) : 0.0f;
            w_tile[column][row] = w_inside ? bf16_to_float(w[w_index]) : 0.0f;
#endif
        }
        __syncthreads(); // both tiles are complete

#ifdef ASSAY_MATRIX
        for (int kk = 0; kk < kTileK; kk += kMatrixSize) add_products(acc, a_tile, w_tile, kk);
#else
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
#endif
        __syncthreads(); // all have read the tiles before the next ones overwrite them
    }

#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
#pragma unroll
        for (int j = 0; j < kMicro; ++j) {
            const int row = m0 + result_row(thread, i, j);
            const int column = n0 + result_column(thread, i, j);
            if (row >= m) continue;
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
