// embedding: y[t] = weight[ids[t]], a gather of rows of 16-bit numbers.
//
//   ids i32 or i64 [T], each in [0, V); weight [V, H] and y [T, H], bf16 or f16, 16-byte
//   aligned
//
// A copy: bits are kept, NaN and subnormals too, and rows that no id names are not read.
// One block of 256 threads takes a token, by accesses of 16 bytes where a row fills whole
// ones, and else, since then rows are not aligned, by elements. Offsets are 64-bit.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kPerChunk = 8; // what one 16-byte access moves

template <class Id>
__global__ __launch_bounds__(kThreads) void embedding_kernel(const Id* __restrict__ ids,
                                                             const uint16_t* __restrict__ weight,
                                                             uint16_t* __restrict__ output, int h) {
    const int token = blockIdx.x;
    const Id id = ids[token];
    const uint16_t* from = weight + static_cast<size_t>(id) * h;
    uint16_t* to = output + static_cast<size_t>(token) * h;
    const int chunks = h % kPerChunk == 0 ? h / kPerChunk : 0;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
        // By words: the copy of a struct may become a call of memcpy, which an emulator that
        // was built by an older clang does not see.
        const uint4& source = reinterpret_cast<const uint4*>(from)[chunk];
        const unsigned x = source.x, y = source.y, z = source.z, w = source.w;
        uint4& target = reinterpret_cast<uint4*>(to)[chunk];
        target.x = x;
        target.y = y;
        target.z = z;
        target.w = w;
    }
    for (int column = chunks * kPerChunk + threadIdx.x; column < h; column += kThreads)
        to[column] = from[column];
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class Id>
int launch(const Id* ids, const uint16_t* weight, uint16_t* y, int t, int h, hipStream_t stream) {
    if (t < 1 || h < 1 || !aligned(weight) || !aligned(y)) return hipErrorInvalidValue;
    const dim3 grid(t);
    hipLaunchKernelGGL(HIP_KERNEL_NAME(embedding_kernel<Id>), grid, dim3(kThreads), 0, stream, ids,
                       weight, y, h);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless t and h are positive and weight and y are aligned to 16
// bytes. The ids must lie in the table.
extern "C" int embedding_i32(const int32_t* ids, const uint16_t* weight, uint16_t* y, int t, int h,
                             hipStream_t stream) {
    return launch<int32_t>(ids, weight, y, t, h, stream);
}

extern "C" int embedding_i64(const int64_t* ids, const uint16_t* weight, uint16_t* y, int t, int h,
                             hipStream_t stream) {
    return launch<int64_t>(ids, weight, y, t, h, stream);
}
