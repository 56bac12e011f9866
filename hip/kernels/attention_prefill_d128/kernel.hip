// attention_prefill_d128: O = softmax(scale Q K^T + causal mask) V, all bf16.
//
//   Q [T, Hq, 128], K and V [S, Hkv, 128], O [T, Hq, 128], T <= S.
//
// Query t sees the keys up to S - T + t (the mask ends in the lower right corner), and
// query head h reads kv head h / (Hq / Hkv). One block computes 16 queries of one head with
// 256 threads and passes over the keys in tiles with an online softmax, 16 threads to a query:
// running maximum, running sum and accumulator in f32, the latter two rescaled when the maximum
// grows. The output is divided and rounded to bf16 once.
//
// Vector unit: tiles of 32 keys; P stays in f32.
// Matrix instructions, where there are any: tiles of 64 keys, 16 of them a wave for Q K^T, 32
// of the 128 columns a wave for P V; P is rounded to bf16 as an operand, and summed unrounded.
// In tiles that the mask cuts P V is left to the vector unit, because an instruction would
// multiply masked values by 0 and so let a NaN through.
#include "assay_bf16.h"
#include "assay_matrix.h"

namespace {

constexpr int kHeadDim = 128;
constexpr int kQueryTile = 16;
#ifdef ASSAY_MATRIX
constexpr int kKeyTile = 64; // 16 for each wave
#else
constexpr int kKeyTile = 32;
#endif
constexpr int kThreads = 256;
constexpr int kLanes = kThreads / kQueryTile; // threads that share a query, all in one wave
constexpr int kKeysPerLane = kKeyTile / kLanes;
constexpr int kRow = kHeadDim + 2; // odd in 32-bit words, against bank conflicts

// Loads rows [first, first + rows) of one head of a [count, heads, 128] tensor; rows past
// the end become zero.
__device__ __forceinline__ void load_rows(bf16_bits (*tile)[kRow], int rows,
                                          const bf16_bits* __restrict__ source, int first,
                                          int count, int heads, int head) {
    for (int element = threadIdx.x; element < rows * kHeadDim; element += kThreads) {
        const int row = element / kHeadDim;
        const int dim = element % kHeadDim;
        const size_t offset = (static_cast<size_t>(first + row) * heads + head) * kHeadDim + dim;
        tile[row][dim] = first + row < count ? source[offset] : 0;
    }
}

#ifdef ASSAY_MATRIX

constexpr int kProducts = kHeadDim / (kThreads / kMatrixWave) / kMatrixSize; // P V, of a wave
constexpr int kProbRow = kKeyTile + 4; // whole 8 bytes, against bank conflicts

static_assert(kQueryTile == kMatrixSize && kKeyTile == kThreads / kMatrixWave * kMatrixSize,
              "a wave computes the scores of 16 queries and 16 keys");

// scores = Q K^T, this wave's 16 keys.
__device__ __forceinline__ void raw_scores(float (*scores)[kKeyTile + 1],
                                           const bf16_bits (*q_tile)[kRow],
                                           const bf16_bits (*k_tile)[kRow]) {
    const int lane = threadIdx.x % kMatrixWave;
    const int first_key = threadIdx.x / kMatrixWave * kMatrixSize;
    matrix_f32x4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int dim0 = 0; dim0 < kHeadDim; dim0 += kMatrixSize) {
        matrix_bf16x4 q_part, k_part;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            q_part[e] = q_tile[matrix_a_row(lane)][dim0 + matrix_a_k(lane, e)];
            k_part[e] = k_tile[first_key + matrix_b_column(lane)][dim0 + matrix_b_k(lane, e)];
        }
        sum = matrix_multiply_add(q_part, k_part, sum);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
        scores[matrix_d_row(lane, r)][first_key + matrix_d_column(lane, r)] = sum[r];
}

// The first of this wave's columns of the output.
__device__ __forceinline__ int first_dim() {
    return threadIdx.x / kMatrixWave * kProducts * kMatrixSize;
}

// acc += P V over a tile of keys all of which every query of the block sees.
__device__ __forceinline__ void add_values(matrix_f32x4 (&acc)[kProducts],
                                           const bf16_bits (*p_tile)[kProbRow],
                                           const bf16_bits (*v_tile)[kRow]) {
    const int lane = threadIdx.x % kMatrixWave;
    for (int key0 = 0; key0 < kKeyTile; key0 += kMatrixSize) {
        matrix_bf16x4 p_part, v_part[kProducts];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            p_part[e] = p_tile[matrix_a_row(lane)][key0 + matrix_a_k(lane, e)];
#pragma unroll
            for (int i = 0; i < kProducts; ++i)
                v_part[i][e] = v_tile[key0 + matrix_b_k(lane, e)]
                                     [first_dim() + i * kMatrixSize + matrix_b_column(lane)];
        }
#pragma unroll
        for (int i = 0; i < kProducts; ++i) acc[i] = matrix_multiply_add(p_part, v_part[i], acc[i]);
    }
}

// The same over a tile that the mask cuts: query `row` sees the first visible + row keys of it,
// and no more than `most`.
__device__ __forceinline__ void add_visible_values(matrix_f32x4 (&acc)[kProducts],
                                                   const bf16_bits (*p_tile)[kProbRow],
                                                   const bf16_bits (*v_tile)[kRow], int visible,
                                                   int most) {
    const int lane = threadIdx.x % kMatrixWave;
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int row = matrix_d_row(lane, r);
            const int dim = first_dim() + i * kMatrixSize + matrix_d_column(lane, r);
            const int keys = min(visible + row, most);
            for (int key = 0; key < keys; ++key)
                acc[i][r] = fmaf(bf16_to_float(p_tile[row][key]),
                                 bf16_to_float(v_tile[key][dim]), acc[i][r]);
        }
}

#endif

__global__ __launch_bounds__(kThreads) void attention_prefill_d128_kernel(
    const bf16_bits* __restrict__ q, const bf16_bits* __restrict__ k,
    const bf16_bits* __restrict__ v, bf16_bits* __restrict__ o, int t, int s, int q_heads,
    int kv_heads, float scale) {
    __shared__ bf16_bits q_tile[kQueryTile][kRow];
    __shared__ bf16_bits k_tile[kKeyTile][kRow];
    __shared__ bf16_bits v_tile[kKeyTile][kRow];
#ifdef ASSAY_MATRIX
    __shared__ float score_tile[kQueryTile][kKeyTile + 1];
    __shared__ bf16_bits p_tile[kQueryTile][kProbRow];
    __shared__ float row_factor[kQueryTile]; // rescaling, in the end the sum, of each query
#else
    __shared__ float p_tile[kQueryTile][kKeyTile + 1];
#endif

    const int row = threadIdx.x / kLanes;
    const int lane = threadIdx.x % kLanes;
    const int head = blockIdx.y;
    const int kv_head = head / (q_heads / kv_heads);
    const int first_query = blockIdx.x * kQueryTile;
    const int query = first_query + row;

    // Queries beyond T take part in the loads and barriers; their results are dropped.
    const int history = s - t;
    const int last_key = min(history + query, s - 1);
    const int key_end = min(history + first_query + kQueryTile, s);

    load_rows(q_tile, kQueryTile, q, first_query, t, q_heads, head);

    float running_max = -__builtin_inff();
    float running_sum = 0.0f;
#ifdef ASSAY_MATRIX
    matrix_f32x4 acc[kProducts] = {}; // of registers' queries and columns, not of `row`'s
#else
    constexpr int kDimsPerLane = kHeadDim / kLanes;
    float acc[kDimsPerLane];
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i) acc[i] = 0.0f;
#endif

    for (int k0 = 0; k0 < key_end; k0 += kKeyTile) {
        load_rows(k_tile, kKeyTile, k, k0, s, kv_heads, kv_head);
        load_rows(v_tile, kKeyTile, v, k0, s, kv_heads, kv_head);
        __syncthreads(); // q, k and v are in LDS
#ifdef ASSAY_MATRIX
        raw_scores(score_tile, q_tile, k_tile);
        __syncthreads(); // the scores are in LDS
#endif

        float score[kKeysPerLane];
        float tile_max = -__builtin_inff();
#pragma unroll
        for (int i = 0; i < kKeysPerLane; ++i) {
            const int column = lane + i * kLanes;
#ifdef ASSAY_MATRIX
            const float dot = score_tile[row][column];
#else
            float dot = 0.0f;
            for (int dim = 0; dim < kHeadDim; ++dim) {
                const float q_value = bf16_to_float(q_tile[row][dim]);
                dot = fmaf(q_value, bf16_to_float(k_tile[column][dim]), dot);
            }
#endif
            const int key = k0 + column;
            const bool visible = key <= last_key;
            score[i] = visible ? dot * scale : -__builtin_inff();
            tile_max = fmaxf(tile_max, score[i]);
        }
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
            tile_max = fmaxf(tile_max, __shfl_xor(tile_max, offset, kLanes));

        // Key 0 is visible to every query, so the maximum is finite from the first tile on
        // and the differences below are never inf - inf.
        const float new_max = fmaxf(running_max, tile_max);
        const float rescale = expf(running_max - new_max);
        running_max = new_max;
        float tile_sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeysPerLane; ++i) {
            const float p = expf(score[i] - new_max);
            tile_sum += p;
#ifdef ASSAY_MATRIX
            p_tile[row][lane + i * kLanes] = float_to_bf16(p);
#else
            p_tile[row][lane + i * kLanes] = p;
#endif
        }
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
            tile_sum += __shfl_xor(tile_sum, offset, kLanes);
        running_sum = fmaf(running_sum, rescale, tile_sum);
#ifdef ASSAY_MATRIX
        if (lane == 0) row_factor[row] = rescale;
#endif
        __syncthreads(); // p is in LDS

        // Masked keys are left out, not multiplied by zero: their V may be anything.
#ifdef ASSAY_MATRIX
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                acc[i][r] *= row_factor[matrix_d_row(threadIdx.x % kMatrixWave, r)];
        const int first_row_keys = history + first_query - k0 + 1; // visible to the first query
        if (first_row_keys >= kKeyTile)
            add_values(acc, p_tile, v_tile);
        else
            add_visible_values(acc, p_tile, v_tile, first_row_keys, min(kKeyTile, s - k0));
#else
        const int visible_keys = min(kKeyTile, last_key - k0 + 1);
#pragma unroll
        for (int i = 0; i < kDimsPerLane; ++i) acc[i] *= rescale;
        for (int column = 0; column < visible_keys; ++column) {
            const float p = p_tile[row][column];
#pragma unroll
            for (int i = 0; i < kDimsPerLane; ++i)
                acc[i] = fmaf(p, bf16_to_float(v_tile[column][lane + i * kLanes]), acc[i]);
        }
#endif
        __syncthreads(); // all have read k, v and p before the next tile overwrites them
    }

#ifdef ASSAY_MATRIX
    if (lane == 0) row_factor[row] = running_sum;
    __syncthreads(); // the sums are in LDS
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int own_row = matrix_d_row(threadIdx.x % kMatrixWave, r);
        const int own_dim = first_dim() + matrix_d_column(threadIdx.x % kMatrixWave, r);
        if (first_query + own_row >= t) continue;
        bf16_bits* own = o + (static_cast<size_t>(first_query + own_row) * q_heads + head) * kHeadDim;
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            own[own_dim + i * kMatrixSize] = float_to_bf16(acc[i][r] / row_factor[own_row]);
    }
#else
    if (query >= t) return;
    const size_t offset = (static_cast<size_t>(query) * q_heads + head) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i)
        o[offset + lane + i * kLanes] = float_to_bf16(acc[i] / running_sum);
#endif
}

} // namespace

// hipErrorInvalidValue unless 1 <= t <= s and q_heads is a positive multiple of kv_heads.
extern "C" int attention_prefill_d128(const uint16_t* q, const uint16_t* k, const uint16_t* v,
                                      uint16_t* o, int t, int s, int q_heads, int kv_heads,
                                      float scale, hipStream_t stream) {
    if (t < 1 || s < t || q_heads < 1 || kv_heads < 1 || q_heads % kv_heads != 0)
        return hipErrorInvalidValue;
    const dim3 grid((t + kQueryTile - 1) / kQueryTile, q_heads);
    hipLaunchKernelGGL(attention_prefill_d128_kernel, grid, dim3(kThreads), 0, stream, q, k, v, o,
                       t, s, q_heads, kv_heads, scale);
    return hipGetLastError();
}
