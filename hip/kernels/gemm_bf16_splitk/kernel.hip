// gemm_bf16_splitk: C[M, N] = A[M, K] W[N, K]^T + bias[N], torch's Linear, all bf16
// row-major, with K cut into parts so that few outputs still fill a device.
//
// Two kernels. In the first, grid.z is the part: part p sums the terms from p L to (p + 1) L,
// L = ceil(K / parts), and writes its f32 sums to the workspace, f32 [parts, M, N]. Blocks of
// 256 threads compute 64 x 64 tiles, 4 x 4 results a thread; A and W pass through LDS in
// tiles of 32 along K, by 16-byte loads where K and L are multiples of 8 and one element at a
// time otherwise. Products accumulate by fused multiply-add in the order of k. The second
// kernel adds the parts in their order, then the bias, and rounds to bf16 once. There are no
// atomics: the bits do not depend on the order of blocks, nor a row's on M. Parts beyond K
// are sums of nothing, zero. NaN and infinities follow IEEE.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kTileK = 32;
constexpr int kMicro = 4;  // rows and columns of a thread
constexpr int kVector = 8; // bf16 of a 16-byte load
constexpr int kMaxParts = 32;

static_assert(kThreads == (kTileM / kMicro) * (kTileN / kMicro), "4 x 4 results a thread");
static_assert(kTileM == kTileN, "one loop loads a tile of each operand");
static_assert(kThreads * kVector == kTileM * kTileK, "one load a thread, operand and tile");

// Loads rows [first, first + 64) and terms [k0, k0 + 32) of a [count, k] matrix, transposed
// and widened; what lies beyond the rows or the part's last term becomes zero.
template <bool Aligned>
__device__ __forceinline__ void load_tile(float (*tile)[kTileM + 1],
                                          const bf16_bits* __restrict__ source, int first,
                                          int count, int k0, int k_end, int k) {
    if (Aligned) {
        const int row = threadIdx.x / (kTileK / kVector);
        const int column = threadIdx.x % (kTileK / kVector) * kVector;
        float values[kVector] = {};
        if (first + row < count && k0 + column < k_end) {
            const size_t offset = static_cast<size_t>(first + row) * k + k0 + column;
            const uint4 packed = *reinterpret_cast<const uint4*>(source + offset);
            const unsigned words[kVector / 2] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
            for (int i = 0; i < kVector / 2; ++i) {
                values[2 * i] = __uint_as_float(words[i] << 16);
                values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
            }
        }
#pragma unroll
        for (int i = 0; i < kVector; ++i) tile[column + i][row] = values[i];
    } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            const int element = threadIdx.x + i * kThreads;
            const int row = element / kTileK;
            const int column = element % kTileK;
            const size_t offset = static_cast<size_t>(first + row) * k + k0 + column;
            const bool inside = first + row < count && k0 + column < k_end;
            tile[column][row] = inside ? bf16_to_float(source[offset]) : 0.0f;
        }
    }
}

template <bool Aligned>
__global__ __launch_bounds__(kThreads) void splitk_partial_kernel(
    const bf16_bits* __restrict__ a, const bf16_bits* __restrict__ w,
    float* __restrict__ workspace, int m, int n, int k, int part_length) {
    // The odd row length keeps the transposing stores free of bank conflicts.
    __shared__ float a_tile[kTileK][kTileM + 1];
    __shared__ float w_tile[kTileK][kTileN + 1];

    const int m0 = blockIdx.y * kTileM;
    const int n0 = blockIdx.x * kTileN;
    const int part = blockIdx.z;
    const int k_begin = min(part * part_length, k);
    const int k_end = min(k_begin + part_length, k);
    const int micro_row = threadIdx.x / (kTileN / kMicro) * kMicro;
    const int micro_column = threadIdx.x % (kTileN / kMicro) * kMicro;

    float acc[kMicro][kMicro];
#pragma unroll
    for (int i = 0; i < kMicro; ++i)
#pragma unroll
        for (int j = 0; j < kMicro; ++j) acc[i][j] = 0.0f;

    for (int k0 = k_begin; k0 < k_end; k0 += kTileK) {
        load_tile<Aligned>(a_tile, a, m0, m, k0, k_end, k);
        load_tile<Aligned>(w_tile, w, n0, n, k0, k_end, k);
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
            const size_t cell = (static_cast<size_t>(part) * m + row) * n + column;
            workspace[cell] = acc[i][j];
        }
    }
}

__global__ __launch_bounds__(kThreads) void splitk_reduce_kernel(
    const float* __restrict__ workspace, const bf16_bits* __restrict__ bias,
    bf16_bits* __restrict__ c, int m, int n, int parts) {
    const size_t cells = static_cast<size_t>(m) * n;
    const size_t cell = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (cell >= cells) return;
    float value = workspace[cell];
    for (int part = 1; part < parts; ++part) value += workspace[part * cells + cell];
    const int column = static_cast<int>(cell % n);
    if (bias != nullptr) value += bf16_to_float(bias[column]);
    c[cell] = float_to_bf16(value);
}

} // namespace

// `workspace` holds parts * m * n floats and need not be cleared. `bias` may be null.
// hipErrorInvalidValue unless m, n and k are at least 1, parts is 1 to 32, and m * n is below
// 2^31. Where k is a multiple of 8, a and w must be aligned to 16 bytes.
extern "C" int gemm_bf16_splitk(const uint16_t* a, const uint16_t* w, const uint16_t* bias,
                                float* workspace, uint16_t* c, int m, int n, int k, int parts,
                                hipStream_t stream) {
    if (m < 1 || n < 1 || k < 1 || parts < 1 || parts > kMaxParts || m > 0x7fffffff / n)
        return hipErrorInvalidValue;
    const int part_length = (k - 1) / parts + 1;
    const dim3 grid((n + kTileN - 1) / kTileN, (m + kTileM - 1) / kTileM, parts);
    const bool aligned = k % kVector == 0 && part_length % kVector == 0;
    if (aligned)
        hipLaunchKernelGGL(splitk_partial_kernel<true>, grid, dim3(kThreads), 0, stream, a, w,
                           workspace, m, n, k, part_length);
    else
        hipLaunchKernelGGL(splitk_partial_kernel<false>, grid, dim3(kThreads), 0, stream, a, w,
                           workspace, m, n, k, part_length);
    const hipError_t error = hipGetLastError();
    if (error != hipSuccess) return error;
    const int blocks = (m * n - 1) / kThreads + 1;
    hipLaunchKernelGGL(splitk_reduce_kernel, dim3(blocks), dim3(kThreads), 0, stream, workspace,
                       bias, c, m, n, parts);
    return hipGetLastError();
}
