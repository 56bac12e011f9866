// kv_store_paged: writes the keys and values of T tokens into the slots of a paged cache.
//
//   k and v [T, Hkv, D]; k_cache and v_cache [blocks, block_size, Hkv, D], updated in place;
//   slot_mapping i32 [T]; all but slot_mapping 16-byte aligned
//
// Token t goes to row slot_mapping[t] of the cache: slot s is row s % block_size of block
// s / block_size. A slot of -1 is padding and is not written; all rows that no slot names
// keep their bits. Slots that occur twice would be a race and are outside the contract.
// Two forms: a copy of 16-bit numbers, which keeps every bit, and bf16 into a cache of e4m3
// (OCP: no infinities, largest 448), which stores x / scale: one division in f32, rounded
// once to nearest even; beyond 448, infinities too, becomes 448 with its sign; NaN stays
// NaN. One block of 256 threads takes a token, eight numbers a thread where a row of Hkv D
// is a multiple of eight, else, since then rows are not aligned, one by one.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kPerChunk = 8;

// What a thread moves at a time.
template <class Cell>
struct alignas(kPerChunk * sizeof(Cell)) Chunk {
    Cell cells[kPerChunk];
};

// The nearest e4m3, ties to even.
__device__ __forceinline__ uint8_t float_to_e4m3(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = bits >> 24 & 0x80u;
    const unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu); // NaN
    if (magnitude > 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu); // beyond 448
    if (magnitude >= 0x3c800000u) { // from 2^-6 on the results are normal
        const unsigned rounded = magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u);
        return static_cast<uint8_t>(sign | rounded >> 20);
    }
    // Subnormal results: adding 2^14 aligns the unit in the last place to 2^-9.
    const unsigned aligned = __float_as_uint(__uint_as_float(magnitude) + 16384.0f);
    return static_cast<uint8_t>(sign | (aligned - 0x46800000u));
}

struct Copy {
    typedef uint16_t Cell;
    static __device__ __forceinline__ Cell store(uint16_t x, float) { return x; }
};
struct Bf16ToFp8 {
    typedef uint8_t Cell;
    static __device__ __forceinline__ Cell store(bf16_bits x, float scale) {
        const float scaled = bf16_to_float(x) / scale;
        return float_to_e4m3(scaled);
    }
};

// One token's row of keys or of values.
template <class Form>
__device__ __forceinline__ void store_row(const uint16_t* __restrict__ from,
                                          typename Form::Cell* __restrict__ to, int heads,
                                          int head_dim, float scale) {
    typedef typename Form::Cell Cell;
    const int row = heads * head_dim;
    const int chunks = row % kPerChunk == 0 ? row / kPerChunk : 0;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
        const Chunk<uint16_t> loaded = reinterpret_cast<const Chunk<uint16_t>*>(from)[chunk];
        Chunk<Cell> stored;
#pragma unroll
        for (int i = 0; i < kPerChunk; ++i) stored.cells[i] = Form::store(loaded.cells[i], scale);
        reinterpret_cast<Chunk<Cell>*>(to)[chunk] = stored;
    }
    for (int i = chunks * kPerChunk + threadIdx.x; i < row; i += kThreads)
        to[i] = Form::store(from[i], scale);
}

template <class Form>
__global__ __launch_bounds__(kThreads) void kv_store_paged_kernel(
    const uint16_t* __restrict__ k, const uint16_t* __restrict__ v,
    typename Form::Cell* __restrict__ k_cache, typename Form::Cell* __restrict__ v_cache,
    const int* __restrict__ slot_mapping, int block_size, int heads, int head_dim, float k_scale,
    float v_scale) {
    const int token = blockIdx.x;
    const int slot = slot_mapping[token];
    if (slot < 0) return;
    const size_t row = static_cast<size_t>(heads) * head_dim;
    const int block = slot / block_size;
    const int within = slot % block_size;
    const size_t from = token * row;
    const size_t to = (static_cast<size_t>(block) * block_size + within) * row;
    store_row<Form>(k + from, k_cache + to, heads, head_dim, k_scale);
    store_row<Form>(v + from, v_cache + to, heads, head_dim, v_scale);
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class Form>
int launch(const uint16_t* k, const uint16_t* v, typename Form::Cell* k_cache,
           typename Form::Cell* v_cache, const int* slot_mapping, int t, int block_size, int heads,
           int head_dim, float k_scale, float v_scale, hipStream_t stream) {
    const bool sizes = t >= 1 && block_size >= 1 && heads >= 1 && head_dim >= 1 &&
                       heads <= 0x7fffffff / head_dim;
    const bool pointers = aligned(k) && aligned(v) && aligned(k_cache) && aligned(v_cache);
    const bool scales = k_scale > 0.0f && v_scale > 0.0f;
    if (!sizes || !pointers || !scales) return hipErrorInvalidValue;
    hipLaunchKernelGGL(HIP_KERNEL_NAME(kv_store_paged_kernel<Form>), dim3(t), dim3(kThreads), 0,
                       stream, k, v, k_cache, v_cache, slot_mapping, block_size, heads, head_dim,
                       k_scale, v_scale);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless the sizes are positive, Hkv D is below 2^31, and all pointers
// but slot_mapping are aligned to 16 bytes. The slots must lie in the cache or be -1.
extern "C" int kv_store_paged_copy(const uint16_t* k, const uint16_t* v, uint16_t* k_cache,
                                   uint16_t* v_cache, const int32_t* slot_mapping, int t,
                                   int block_size, int heads, int head_dim, hipStream_t stream) {
    return launch<Copy>(k, v, k_cache, v_cache, slot_mapping, t, block_size, heads, head_dim, 1.0f,
                        1.0f, stream);
}

// The same, and unless both scales are positive.
extern "C" int kv_store_paged_fp8(const uint16_t* k, const uint16_t* v, uint8_t* k_cache,
                                  uint8_t* v_cache, const int32_t* slot_mapping, int t,
                                  int block_size, int heads, int head_dim, float k_scale,
                                  float v_scale, hipStream_t stream) {
    return launch<Bf16ToFp8>(k, v, k_cache, v_cache, slot_mapping, t, block_size, heads, head_dim,
                             k_scale, v_scale, stream);
}
