// attention_prefill_d128: O = softmax(scale Q K^T + causal mask) V, all bf16.
//
//   Q [T, Hq, 128], K and V [S, Hkv, 128], O [T, Hq, 128], T <= S.
//
// Query t sees the keys up to S - T + t (the mask ends in the lower right corner), and
// query head h reads kv head h / (Hq / Hkv). One block computes 16 queries of one head with
// 256 threads, 16 to a query, and passes over the keys in tiles of 32 with an online
// softmax: running maximum, running sum and accumulator in f32, the latter two rescaled
// when the maximum grows. P stays in f32. The output is divided and rounded to bf16 once.
#include "assay_bf16.h"

namespace {

constexpr int kHeadDim = 128;
constexpr int kQueryTile = 16;
constexpr int kKeyTile = 32;
constexpr int kThreads = 256;
constexpr int kLanes = kThreads / kQueryTile; // threads that share a query, all in one wave
constexpr int kKeysPerLane = kKeyTile / kLanes;
constexpr int kDimsPerLane = kHeadDim / kLanes;
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

__global__ __launch_bounds__(kThreads) void attention_prefill_d128_kernel(
    const bf16_bits* __restrict__ q, const bf16_bits* __restrict__ k,
    const bf16_bits* __restrict__ v, bf16_bits* __restrict__ o, int t, int s, int q_heads,
    int kv_heads, float scale) {
    __shared__ bf16_bits q_tile[kQueryTile][kRow];
    __shared__ bf16_bits k_tile[kKeyTile][kRow];
    __shared__ bf16_bits v_tile[kKeyTile][kRow];
    __shared__ float p_tile[kQueryTile][kKeyTile + 1];

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
    float acc[kDimsPerLane];
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i) acc[i] = 0.0f;

    for (int k0 = 0; k0 < key_end; k0 += kKeyTile) {
        load_rows(k_tile, kKeyTile, k, k0, s, kv_heads, kv_head);
        load_rows(v_tile, kKeyTile, v, k0, s, kv_heads, kv_head);
        __syncthreads(); // q, k and v are in LDS

        float score[kKeysPerLane];
        float tile_max = -__builtin_inff();
#pragma unroll
        for (int i = 0; i < kKeysPerLane; ++i) {
            const int column = lane + i * kLanes;
            float dot = 0.0f;
            for (int dim = 0; dim < kHeadDim; ++dim) {
                const float q_value = bf16_to_float(q_tile[row][dim]);
                dot = fmaf(q_value, bf16_to_float(k_tile[column][dim]), dot);
            }
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
            p_tile[row][lane + i * kLanes] = p;
        }
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
            tile_sum += __shfl_xor(tile_sum, offset, kLanes);
        running_sum = fmaf(running_sum, rescale, tile_sum);
        __syncthreads(); // p is in LDS

        // Masked keys are left out, not multiplied by zero: their V may be anything.
        const int visible_keys = min(kKeyTile, last_key - k0 + 1);
#pragma unroll
        for (int i = 0; i < kDimsPerLane; ++i) acc[i] *= rescale;
        for (int column = 0; column < visible_keys; ++column) {
            const float p = p_tile[row][column];
#pragma unroll
            for (int i = 0; i < kDimsPerLane; ++i)
                acc[i] = fmaf(p, bf16_to_float(v_tile[column][lane + i * kLanes]), acc[i]);
        }
        __syncthreads(); // all have read k, v and p before the next tile overwrites them
    }

    if (query >= t) return;
    const size_t offset = (static_cast<size_t>(query) * q_heads + head) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i)
        o[offset + lane + i * kLanes] = float_to_bf16(acc[i] / running_sum);
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
