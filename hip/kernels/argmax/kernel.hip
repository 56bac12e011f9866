// argmax: the index of the largest element of each row, torch's rules: greedy decoding.
//
//   x [rows, V] in bf16, f16 or f32, 16-byte aligned; y i32 [rows]
//
// Of equal elements the first wins (zeros of either sign are equal); the first NaN wins over
// everything. Comparisons are exact, on values widened to f32. One block of 256 threads
// takes a row: each thread keeps the best of every 256th chunk of 16 bytes (of every 256th
// element where a row does not fill whole chunks, since then rows are not aligned), waves
// reduce by shuffles of 64 lanes, and the first thread reduces the waves' bests from LDS.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWave = 64;
constexpr int kWaves = kThreads / kWave;

struct Bf16 {
    typedef bf16_bits Cell;
    static __device__ __forceinline__ float widen(Cell cell) { return bf16_to_float(cell); }
};
struct F16 {
    typedef f16_bits Cell;
    static __device__ __forceinline__ float widen(Cell cell) { return f16_to_float(cell); }
};
struct F32 {
    typedef float Cell;
    static __device__ __forceinline__ float widen(Cell cell) { return cell; }
};

// What one 16-byte load gives.
template <class T>
struct alignas(16) Chunk {
    static constexpr int kCells = 16 / sizeof(typename T::Cell);
    typename T::Cell cells[kCells];
};

struct Best {
    float value;
    int index;
};

__device__ __forceinline__ bool beats(Best a, Best b) {
    const bool a_is_nan = a.value != a.value;
    const bool b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan;
    const bool equal = a_is_nan || a.value == b.value;
    return equal ? a.index < b.index : a.value > b.value;
}

__device__ __forceinline__ void consider(Best& best, float value, int index) {
    const Best other = {value, index};
    if (beats(other, best)) best = other;
}

template <class T>
__global__ __launch_bounds__(kThreads) void argmax_kernel(
    const typename T::Cell* __restrict__ x, int* __restrict__ y, int v) {
    __shared__ float wave_value[kWaves];
    __shared__ int wave_index[kWaves];
    const typename T::Cell* row = x + static_cast<size_t>(blockIdx.x) * v;

    // -inf at index 0 is what a row of only -inf gives, and anything else beats it.
    Best best = {-__builtin_inff(), 0};
    const int end = v;
    constexpr int kCells = Chunk<T>::kCells;
    const int chunks = v % kCells == 0 ? end / kCells : 0;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
        const Chunk<T> loaded = reinterpret_cast<const Chunk<T>*>(row)[chunk];
#pragma unroll
        for (int i = 0; i < kCells; ++i)
            consider(best, T::widen(loaded.cells[i]), chunk * kCells + i);
    }
    for (int index = chunks * kCells + threadIdx.x; index < end; index += kThreads)
        consider(best, T::widen(row[index]), index);

    for (int offset = kWave / 2; offset > 0; offset /= 2) {
        const float value = __shfl_xor(best.value, offset);
        const int index = __shfl_xor(best.index, offset);
        consider(best, value, index);
    }
    if (threadIdx.x % kWave == 0) {
        wave_value[threadIdx.x / kWave] = best.value;
        wave_index[threadIdx.x / kWave] = best.index;
    }
    __syncthreads(); // the waves' bests are in LDS
    if (threadIdx.x != 0) return;
    for (int wave = 1; wave < kWaves; ++wave)
        consider(best, wave_value[wave], wave_index[wave]);
    y[blockIdx.x] = best.index;
}

template <class T>
int launch(const typename T::Cell* x, int* y, int rows, int v, hipStream_t stream) {
    if (rows < 1 || v < 1 || reinterpret_cast<uintptr_t>(x) % 16 != 0) return hipErrorInvalidValue;
    hipLaunchKernelGGL(HIP_KERNEL_NAME(argmax_kernel<T>), dim3(rows), dim3(kThreads), 0, stream, x,
                       y, v);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless rows and v are positive and x is aligned to 16 bytes.
extern "C" int argmax_bf16(const uint16_t* x, int32_t* y, int rows, int v, hipStream_t stream) {
    return launch<Bf16>(x, y, rows, v, stream);
}

extern "C" int argmax_f16(const uint16_t* x, int32_t* y, int rows, int v, hipStream_t stream) {
    return launch<F16>(x, y, rows, v, stream);
}

extern "C" int argmax_f32(const float* x, int32_t* y, int rows, int v, hipStream_t stream) {
    return launch<F32>(x, y, rows, v, stream);
}
