// gptq_gemm: y[M, N] = x[M, K] W[K, N] + bias[N] with 4-bit GPTQ weights, dequantised on the
// fly; x, bias and y are f16 or bf16.
//
//   W[k, n] = (q[k, n] - z[g, n]) * scale[g, n],  g = g_idx[k], or k / group_size without one
//
// qweight i32 [K/8, N] packs eight rows of a column in a word, qzeros i32 [G, N/8] eight
// columns of a group, low nibble first; scales are f16 [G, N]. Format v1 stores z - 1, and a
// stored 15 then means 16 (no wrap); v2 stores z.
//
// A weight's product is exact in f32; it is rounded to the dtype of x, as the operand of a
// 16-bit matrix instruction is, and widened again. Every result is one f32 chain of fused
// multiply-adds in the order of k, whichever path computes it, so that a row's bits do not
// depend on M. The bias joins in f32; the result is rounded once, to nearest even. NaN and
// infinities follow IEEE.
//
// Up to 50 rows go by gptq_gemm_few: a block of 256 threads, each with a column, takes 8
// rows, keeps 128 columns of x in LDS and walks down its column's words. More rows go by
// gptq_gemm_many: 64 x 64 tiles, 4 x 4 results a thread, of which 32 rows of W are
// dequantised into LDS at a time, a word a thread.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kPerWord = 8;    // 4-bit values in a word
constexpr int kVector = 8;     // elements of x in a 16-byte load
constexpr int kFewRows = 50;   // the most that gptq_gemm_few is for
constexpr int kRows = 8;       // of x in a block of gptq_gemm_few
constexpr int kChunk = 128;    // columns of x that it keeps in LDS
constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kTileK = 32;
constexpr int kMicro = 4; // rows and columns of a thread of gptq_gemm_many

static_assert(kThreads == (kTileM / kMicro) * (kTileN / kMicro), "4 x 4 results a thread");
static_assert(kThreads * kVector == kTileM * kTileK, "one load of x a thread and tile");
static_assert(kThreads * kPerWord == kTileN * kTileK, "one word of W a thread and tile");
static_assert(kRows * kChunk / kVector <= kThreads, "at most one load of x a thread and chunk");

struct Bf16 {
    static __device__ __forceinline__ float widen(unsigned bits) {
        return bf16_to_float(static_cast<bf16_bits>(bits));
    }
    static __device__ __forceinline__ uint16_t narrow(float value) { return float_to_bf16(value); }
};

struct F16 {
    static __device__ __forceinline__ float widen(unsigned bits) {
        return f16_to_float(static_cast<f16_bits>(bits));
    }
    static __device__ __forceinline__ uint16_t narrow(float value) { return float_to_f16(value); }
};

struct Weight {
    const int* qweight;
    const int* qzeros;
    const uint16_t* scales;
    const int* g_idx; // or null
    int n;
    int group_size;  // rows of a group
    int zero_offset; // what a stored zero point lacks
};

// Scale and zero point of a column in one group.
struct Group {
    int index;
    int zero;
    float scale;
};

// Makes `group` that of a row; consecutive rows mostly share it.
__device__ __forceinline__ void enter(Group& group, const Weight& w, int row, int column) {
    const int index = w.g_idx != nullptr ? w.g_idx[row] : row / w.group_size;
    if (index == group.index) return;
    const int zero_index = index;
    const size_t zero_row = static_cast<size_t>(zero_index) * (w.n / kPerWord);
    const unsigned zero_word = w.qzeros[zero_row + column / kPerWord];
    const int stored_zero = zero_word >> (4 * (column % kPerWord)) & 15;
    group.index = index;
    group.zero = stored_zero + w.zero_offset;
    group.scale = f16_to_float(w.scales[static_cast<size_t>(index) * w.n + column]);
}

// 8 values of x from an address that is a multiple of 16 bytes.
template <class Element>
__device__ __forceinline__ void load_vector(const uint16_t* __restrict__ source,
                                            float (&values)[kVector]) {
    const uint4 packed = *reinterpret_cast<const uint4*>(source);
    const unsigned words[kVector / 2] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
        values[2 * i] = Element::widen(words[i] & 0xffffu);
        values[2 * i + 1] = Element::widen(words[i] >> 16);
    }
}

template <class Element>
__global__ __launch_bounds__(kThreads) void gptq_gemm_few_kernel(
    const uint16_t* __restrict__ x, Weight w, const uint16_t* __restrict__ bias,
    uint16_t* __restrict__ y, int m, int n, int k) {
    __shared__ float x_rows[kRows][kChunk];

    const int column = blockIdx.x * kThreads + threadIdx.x;
    const int m0 = blockIdx.y * kRows;
    const int rows = min(kRows, m - m0);

    float acc[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) acc[row] = 0.0f;
    Group group = {-1, 0, 0.0f};

    for (int k0 = 0; k0 < k; k0 += kChunk) {
        const int length = min(kChunk, k - k0);
        const int load_row = threadIdx.x / (kChunk / kVector);
        const int load_column = threadIdx.x % (kChunk / kVector) * kVector;
        if (load_row < rows && load_column < length) {
            float values[kVector];
            load_vector<Element>(x + static_cast<size_t>(m0 + load_row) * k + k0 + load_column,
                                 values);
#pragma unroll
            for (int i = 0; i < kVector; ++i) x_rows[load_row][load_column + i] = values[i];
        }
        __syncthreads(); // the chunk of x is complete

        if (column < n) {
            for (int kk = 0; kk < length; kk += kPerWord) {
                const size_t word_row = (k0 + kk) / kPerWord;
                const unsigned word = w.qweight[word_row * n + column];
#pragma unroll
                for (int j = 0; j < kPerWord; ++j) {
                    enter(group, w, k0 + kk + j, column);
                    const int q = word >> (4 * j) & 15;
                    const float product = static_cast<float>(q - group.zero) * group.scale;
                    const float weight = Element::widen(Element::narrow(product));
#pragma unroll
                    for (int row = 0; row < kRows; ++row)
                        if (row < rows) acc[row] = fmaf(x_rows[row][kk + j], weight, acc[row]);
                }
            }
        }
        __syncthreads(); // all have read the chunk before the next one overwrites it
    }

    if (column >= n) return;
    const float addend = bias != nullptr ? Element::widen(bias[column]) : 0.0f;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
        if (row >= rows) continue;
        const float value = bias != nullptr ? acc[row] + addend : acc[row];
        y[static_cast<size_t>(m0 + row) * n + column] = Element::narrow(value);
    }
}

template <class Element>
__global__ __launch_bounds__(kThreads) void gptq_gemm_many_kernel(
    const uint16_t* __restrict__ x, Weight w, const uint16_t* __restrict__ bias,
    uint16_t* __restrict__ y, int m, int n, int k) {
    // The odd row length keeps the transposing stores free of bank conflicts.
    __shared__ float x_tile[kTileK][kTileM + 1];
    __shared__ float w_tile[kTileK][kTileN + 1];

    const int thread = threadIdx.x;
    const int m0 = blockIdx.y * kTileM;
    const int n0 = blockIdx.x * kTileN;
    const int x_row = thread / (kTileK / kVector);
    const int x_column = thread % (kTileK / kVector) * kVector;
    const int w_row = thread / kTileN * kPerWord;
    const int w_column = thread % kTileN;
    const int micro_row = thread / (kTileN / kMicro) * kMicro;
    const int micro_column = thread % (kTileN / kMicro) * kMicro;

    float acc[kMicro][kMicro];
#pragma unroll
    for (int i = 0; i < kMicro; ++i)
#pragma unroll
        for (int j = 0; j < kMicro; ++j) acc[i][j] = 0.0f;
    Group group = {-1, 0, 0.0f};

    for (int k0 = 0; k0 < k; k0 += kTileK) {
        // Zeros beyond the edges: those of K add nothing, the others are not stored.
        float values[kVector] = {};
        if (m0 + x_row < m && k0 + x_column < k)
            load_vector<Element>(x + static_cast<size_t>(m0 + x_row) * k + k0 + x_column, values);
#pragma unroll
        for (int i = 0; i < kVector; ++i) x_tile[x_column + i][x_row] = values[i];

        const int column = n0 + w_column;
        const bool w_inside = column < n && k0 + w_row < k;
        const size_t word_row = (k0 + w_row) / kPerWord;
        const unsigned packed = w_inside ? w.qweight[word_row * n + column] : 0;
#pragma unroll
        for (int j = 0; j < kPerWord; ++j) {
            float weight = 0.0f;
            if (w_inside) {
                enter(group, w, k0 + w_row + j, column);
                const int quantised = packed >> (4 * j) & 15;
                weight = static_cast<float>(quantised - group.zero) * group.scale;
            }
            w_tile[w_row + j][w_column] = Element::widen(Element::narrow(weight));
        }
        __syncthreads(); // both tiles are complete

        for (int kk = 0; kk < kTileK; ++kk) {
            float x_part[kMicro], w_part[kMicro];
#pragma unroll
            for (int i = 0; i < kMicro; ++i) x_part[i] = x_tile[kk][micro_row + i];
#pragma unroll
            for (int j = 0; j < kMicro; ++j) w_part[j] = w_tile[kk][micro_column + j];
#pragma unroll
            for (int i = 0; i < kMicro; ++i)
#pragma unroll
                for (int j = 0; j < kMicro; ++j)
                    acc[i][j] = fmaf(x_part[i], w_part[j], acc[i][j]);
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
            float sum = acc[i][j];
            if (bias != nullptr) sum += Element::widen(bias[column]);
            y[static_cast<size_t>(row) * n + column] = Element::narrow(sum);
        }
    }
}

template <class Element>
int launch(const uint16_t* x, const int* qweight, const int* qzeros, const uint16_t* scales,
           const int* g_idx, const uint16_t* bias, uint16_t* y, int m, int n, int k, int groups,
           int group_size, int version, hipStream_t stream) {
    const int rows_per_group = group_size == -1 ? k : group_size; // -1: one group of all rows
    if (m < 1 || k < kPerWord || k % kPerWord != 0 || n < kPerWord || n % kPerWord != 0 ||
        rows_per_group < 1 || groups < 1 || (version != 1 && version != 2))
        return hipErrorInvalidValue;
    if (g_idx == nullptr && groups != (k - 1) / rows_per_group + 1) return hipErrorInvalidValue;
    const int zero_offset = version == 1 ? 1 : 0;
    const Weight w = {qweight, qzeros, scales, g_idx, n, rows_per_group, zero_offset};
    if (m <= kFewRows) {
        const dim3 grid((n + kThreads - 1) / kThreads, (m + kRows - 1) / kRows);
        hipLaunchKernelGGL(HIP_KERNEL_NAME(gptq_gemm_few_kernel<Element>), grid, dim3(kThreads), 0,
                           stream, x, w, bias, y, m, n, k);
    } else {
        const dim3 grid((n + kTileN - 1) / kTileN, (m + kTileM - 1) / kTileM);
        hipLaunchKernelGGL(HIP_KERNEL_NAME(gptq_gemm_many_kernel<Element>), grid, dim3(kThreads),
                           0, stream, x, w, bias, y, m, n, k);
    }
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless m is at least 1, k and n are positive multiples of 8, version
// is 1 or 2, group_size is positive or -1, and groups is what k and group_size give, or with
// a g_idx any positive number. `g_idx` and `bias` may be null; values of g_idx must lie in
// [0, groups). x must be aligned to 16 bytes.
extern "C" int gptq_gemm_bf16(const uint16_t* x, const int32_t* qweight, const int32_t* qzeros,
                              const uint16_t* scales, const int32_t* g_idx, const uint16_t* bias,
                              uint16_t* y, int m, int n, int k, int groups, int group_size,
                              int version, hipStream_t stream) {
    return launch<Bf16>(x, qweight, qzeros, scales, g_idx, bias, y, m, n, k, groups, group_size,
                        version, stream);
}

extern "C" int gptq_gemm_f16(const uint16_t* x, const int32_t* qweight, const int32_t* qzeros,
                             const uint16_t* scales, const int32_t* g_idx, const uint16_t* bias,
                             uint16_t* y, int m, int n, int k, int groups, int group_size,
                             int version, hipStream_t stream) {
    return launch<F16>(x, qweight, qzeros, scales, g_idx, bias, y, m, n, k, groups, group_size,
                       version, stream);
}
