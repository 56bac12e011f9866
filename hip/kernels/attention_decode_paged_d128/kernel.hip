// attention_decode_paged_d128: attention of one or a few new queries over a paged cache, all
// bf16, the keys split over workgroups.
//
//   q and o [T, Hq, 128]; k_cache and v_cache [blocks, block_size, Hkv, 128], block_size 16
//   or 32; block_table i32 [entries]; context_len i32 [1]: S, T <= S <= entries block_size
//
// Key j is row j % block_size of block block_table[j / block_size]. Query t sees the keys up
// to S - T + t, and query head h reads kv head h / (Hq / Hkv). Slots and table entries beyond
// the context are never read.
//
// The first kernel has one block for each partition of 256 keys, query head and query, with
// 256 threads, 16 to a key. A score is one product of 8 dims a thread by fmaf, added over 16
// lanes by a butterfly, and scaled. The partition's maximum and its sum of expf(score - maximum)
// go over 64 lanes by a butterfly, then over the 4 waves in order. P stays in f32; each of 16
// threads' groups adds P V over every 16th key by fmaf, and the groups are added by a butterfly
// within a wave, then over the waves in order. Its output (not divided), maximum and sum are
// stored in f32 in the workspace. The second kernel adds the partitions in the order of the
// keys, each times expf(maximum - largest maximum), divides once and rounds to bf16 once.
//
// A NaN or infinity in a visible key or value reaches the output; what is masked does not.
#include "assay_bf16.h"

namespace {

constexpr int kHeadDim = 128;
constexpr int kPartition = 256;
constexpr int kThreads = 256;
constexpr int kWave = 64;
constexpr int kWaves = kThreads / kWave;
constexpr int kVector = 8;                     // dims in 16 bytes
constexpr int kLanes = kHeadDim / kVector;     // threads that share a key, all in one wave
constexpr int kGroups = kThreads / kLanes;     // keys at a time
static_assert(kPartition == kThreads, "one thread exponentiates one score");

// Eight bf16 at an address that is a multiple of 16, as every row of 128 is.
__device__ __forceinline__ void load_vector(const bf16_bits* __restrict__ source,
                                            float (&out)[kVector]) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(source);
    const unsigned words[kVector / 2] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
        out[2 * i] = bf16_to_float(static_cast<bf16_bits>(words[i] & 0xffffu));
        out[2 * i + 1] = bf16_to_float(static_cast<bf16_bits>(words[i] >> 16));
    }
}

// Where the row of a key and kv head starts in either cache.
template <int kBlockSize>
__device__ __forceinline__ size_t cache_row(const int* __restrict__ block_table, int key,
                                            int kv_heads, int kv_head) {
    const size_t block = block_table[key / kBlockSize];
    const size_t slot = block * kBlockSize + key % kBlockSize;
    return (slot * kv_heads + kv_head) * kHeadDim;
}

// The last key that a query sees.
__device__ __forceinline__ int last_visible(int context, int t, int query) {
    return context - t + query;
}

// Where the partitions of a query and head start in the workspace.
__device__ __forceinline__ size_t first_partition(int query, int head, int q_heads,
                                                  int partitions) {
    return (static_cast<size_t>(query) * q_heads + head) * partitions;
}

template <int kBlockSize>
__global__ __launch_bounds__(kThreads) void attention_partition_kernel(
    const bf16_bits* __restrict__ q, const bf16_bits* __restrict__ k_cache,
    const bf16_bits* __restrict__ v_cache, const int* __restrict__ block_table,
    const int* __restrict__ context_len, float* __restrict__ partial_out,
    float* __restrict__ partial_max, float* __restrict__ partial_sum, int t, int q_heads,
    int kv_heads, float scale) {
    __shared__ float p_row[kPartition]; // scores, then P
    __shared__ float wave_max[kWaves];
    __shared__ float wave_sum[kWaves];
    __shared__ float wave_out[kWaves][kHeadDim];

    const int group = threadIdx.x / kLanes;
    const int lane = threadIdx.x % kLanes;
    const int wave = threadIdx.x / kWave;
    const int head = blockIdx.y;
    const int query = blockIdx.z;
    const int kv_head = head / (q_heads / kv_heads);

    // Partitions behind what the query sees have no part in its result.
    const int first_key = blockIdx.x * kPartition;
    const int last_key = last_visible(context_len[0], t, query);
    if (last_key < first_key) return;
    const int visible_keys = min(kPartition, last_key - first_key + 1);

    float q_vector[kVector];
    const size_t q_row = (static_cast<size_t>(query) * q_heads + head) * kHeadDim;
    load_vector(q + q_row + lane * kVector, q_vector);

    // All threads go round alike, so that all lanes take part in the butterfly.
    for (int row0 = 0; row0 < visible_keys; row0 += kGroups) {
        const int row = row0 + group;
        float dot = 0.0f;
        if (row < visible_keys) {
            float k_vector[kVector];
            const size_t k_row =
                cache_row<kBlockSize>(block_table, first_key + row, kv_heads, kv_head);
            load_vector(k_cache + k_row + lane * kVector, k_vector);
#pragma unroll
            for (int i = 0; i < kVector; ++i) dot = fmaf(q_vector[i], k_vector[i], dot);
        }
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
            dot += __shfl_xor(dot, offset, kLanes);
        if (lane == 0 && row < visible_keys) p_row[row] = dot * scale;
    }
    __syncthreads(); // the scores are in LDS

    const bool visible = static_cast<int>(threadIdx.x) < visible_keys;
    const float score = visible ? p_row[threadIdx.x] : -__builtin_inff();
    float top = score;
    for (int offset = kWave / 2; offset > 0; offset /= 2)
        top = fmaxf(top, __shfl_xor(top, offset, kWave));
    if (threadIdx.x % kWave == 0) wave_max[wave] = top;
    __syncthreads(); // the waves' maxima are in LDS
    top = wave_max[0];
    for (int i = 1; i < kWaves; ++i) top = fmaxf(top, wave_max[i]);

    // Scores that are all -inf have no weight beside another partition's: not inf - inf.
    const float subtracted = top == -__builtin_inff() ? 0.0f : top;
    const float p = expf(score - subtracted);
    float sum = p;
    for (int offset = kWave / 2; offset > 0; offset /= 2)
        sum += __shfl_xor(sum, offset, kWave);
    if (threadIdx.x % kWave == 0) wave_sum[wave] = sum;
    p_row[threadIdx.x] = p;
    __syncthreads(); // P and the waves' sums are in LDS

    float acc[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) acc[i] = 0.0f;
    // Masked keys are left out, not multiplied by zero: their slots may hold anything.
    for (int row = group; row < visible_keys; row += kGroups) {
        float v_vector[kVector];
        const size_t v_row =
            cache_row<kBlockSize>(block_table, first_key + row, kv_heads, kv_head);
        load_vector(v_cache + v_row + lane * kVector, v_vector);
        const float weight = p_row[row];
#pragma unroll
        for (int i = 0; i < kVector; ++i) acc[i] = fmaf(weight, v_vector[i], acc[i]);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        for (int offset = kWave / 2; offset >= kLanes; offset /= 2)
            acc[i] += __shfl_xor(acc[i], offset, kWave);
        if (threadIdx.x % kWave < kLanes) wave_out[wave][lane * kVector + i] = acc[i];
    }
    __syncthreads(); // the waves' outputs are in LDS

    sum = wave_sum[0];
    for (int i = 1; i < kWaves; ++i) sum += wave_sum[i];
    const int dim = threadIdx.x;
    const size_t partition = first_partition(query, head, q_heads, gridDim.x) + blockIdx.x;
    if (dim < kHeadDim) {
        float out = wave_out[0][dim];
        for (int i = 1; i < kWaves; ++i) out += wave_out[i][dim];
        partial_out[partition * kHeadDim + dim] = out;
    }
    if (dim == 0) {
        partial_max[partition] = top;
        partial_sum[partition] = sum;
    }
}

__global__ __launch_bounds__(kHeadDim) void attention_reduce_kernel(
    const float* __restrict__ partial_out, const float* __restrict__ partial_max,
    const float* __restrict__ partial_sum, const int* __restrict__ context_len,
    bf16_bits* __restrict__ o, int t, int q_heads, int partitions) {
    const int dim = threadIdx.x;
    const int head = blockIdx.x;
    const int query = blockIdx.y;
    const int used = last_visible(context_len[0], t, query) / kPartition + 1;
    const size_t first = first_partition(query, head, q_heads, partitions);

    float top = -__builtin_inff();
    for (int i = 0; i < used; ++i) top = fmaxf(top, partial_max[first + i]);
    float sum = 0.0f;
    float out = 0.0f;
    for (int i = 0; i < used; ++i) {
        const float weight = expf(partial_max[first + i] - top);
        sum = fmaf(partial_sum[first + i], weight, sum);
        out = fmaf(partial_out[(first + i) * kHeadDim + dim], weight, out);
    }
    const size_t row = static_cast<size_t>(query) * q_heads + head;
    o[row * kHeadDim + dim] = float_to_bf16(out / sum);
}

template <int kBlockSize>
int launch(const bf16_bits* q, const bf16_bits* k_cache, const bf16_bits* v_cache,
           const int* block_table, const int* context_len, bf16_bits* o, float* partial_out,
           float* partial_max, float* partial_sum, int t, int q_heads, int kv_heads,
           int entries, float scale, hipStream_t stream) {
    const int partitions = (entries * kBlockSize + kPartition - 1) / kPartition;
    hipLaunchKernelGGL(HIP_KERNEL_NAME(attention_partition_kernel<kBlockSize>),
                       dim3(partitions, q_heads, t), dim3(kThreads), 0, stream, q, k_cache,
                       v_cache, block_table, context_len, partial_out, partial_max, partial_sum,
                       t, q_heads, kv_heads, scale);
    const int error = hipGetLastError();
    if (error != hipSuccess) return error;
    hipLaunchKernelGGL(attention_reduce_kernel, dim3(q_heads, t), dim3(kHeadDim), 0, stream,
                       partial_out, partial_max, partial_sum, context_len, o, t, q_heads,
                       partitions);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless t is positive, q_heads a positive multiple of kv_heads, block_size
// 16 or 32, and the table holds at least t and fewer than 2^31 - 256 keys. What context_len and
// block_table hold must be within the table and the caches. With P = ceil(entries block_size /
// 256), the workspace is f32: partial_out [t, q_heads, P, 128], partial_max and partial_sum
// [t, q_heads, P]; all buffers are aligned to 16 bytes.
extern "C" int attention_decode_paged_d128(const uint16_t* q, const uint16_t* k_cache,
                                           const uint16_t* v_cache, const int32_t* block_table,
                                           const int32_t* context_len, uint16_t* o,
                                           float* partial_out, float* partial_max,
                                           float* partial_sum, int t, int q_heads, int kv_heads,
                                           int entries, int block_size, float scale,
                                           hipStream_t stream) {
    if (t < 1 || q_heads < 1 || kv_heads < 1 || q_heads % kv_heads != 0 || entries < 1 ||
        (block_size != 16 && block_size != 32) ||
        entries > (0x7fffffff - kPartition) / block_size || t > entries * block_size)
        return hipErrorInvalidValue;
    const auto launch_sized = block_size == 16 ? launch<16> : launch<32>;
    return launch_sized(q, k_cache, v_cache, block_table, context_len, o, partial_out,
                        partial_max, partial_sum, t, q_heads, kv_heads, entries, scale, stream);
}
