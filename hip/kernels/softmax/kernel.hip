// softmax: y_j = e^(x_j - m) / sum_i e^(x_i - m), m the largest of the row; bf16 or f32.
//
//   x and y [rows, D], 16-byte aligned; D of any length
//
// One block of 256 threads takes a row and passes over it three times: for the maximum, for
// the sum, for the quotients, whose exponentials are computed again. f32 throughout. A
// thread's terms are every 256th chunk of 16 bytes, or every 256th element where a row does
// not fill whole chunks, since then rows are not aligned; their sums are added by shuffles
// of 64 lanes, from the far half to the near one, and then wave after wave. The order
// depends on D alone. One division and one rounding an element. -inf gives 0. A row of only
// -inf, and one with a NaN or +inf, is NaN throughout.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWave = 64;
constexpr int kWaves = kThreads / kWave;

struct Bf16 {
    typedef bf16_bits Cell;
    static __device__ __forceinline__ float widen(Cell cell) { return bf16_to_float(cell); }
    static __device__ __forceinline__ Cell narrow(float value) { return float_to_bf16(value); }
};
struct F32 {
    typedef float Cell;
    static __device__ __forceinline__ float widen(Cell cell) { return cell; }
    static __device__ __forceinline__ Cell narrow(float value) { return value; }
};

// What one 16-byte access moves.
template <class T>
struct alignas(16) Chunk {
    static constexpr int kCells = 16 / sizeof(typename T::Cell);
    typename T::Cell cells[kCells];
};

// Calls `use` with each of this thread's elements of a row of d, of which whole chunks come
// first.
template <class T, class Use>
__device__ __forceinline__ void each(const typename T::Cell* __restrict__ row, int d, int chunks,
                                     Use use) {
    constexpr int kCells = Chunk<T>::kCells;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
        const Chunk<T> loaded = reinterpret_cast<const Chunk<T>*>(row)[chunk];
#pragma unroll
        for (int i = 0; i < kCells; ++i) use(T::widen(loaded.cells[i]));
    }
    for (int column = chunks * kCells + threadIdx.x; column < d; column += kThreads)
        use(T::widen(row[column]));
}

__device__ __forceinline__ float exponential(float x, float largest) { return expf(x - largest); }

template <class T>
__global__ __launch_bounds__(kThreads) void softmax_kernel(
    const typename T::Cell* __restrict__ x, typename T::Cell* __restrict__ y, int d) {
    __shared__ float wave_max[kWaves];
    __shared__ float wave_sum[kWaves];
    constexpr int kCells = Chunk<T>::kCells;
    const int chunks = d % kCells == 0 ? d / kCells : 0;
    const int wave = threadIdx.x / kWave;
    const bool first_lane = threadIdx.x % kWave == 0;
    x += static_cast<size_t>(blockIdx.x) * d;
    y += static_cast<size_t>(blockIdx.x) * d;

    float largest = -__builtin_inff();
    each<T>(x, d, chunks, [&](float value) { largest = fmaxf(largest, value); });
    for (int offset = kWave / 2; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor(largest, offset));
    if (first_lane) wave_max[wave] = largest;
    __syncthreads(); // the waves' maxima are in LDS
    for (int i = 0; i < kWaves; ++i) largest = fmaxf(largest, wave_max[i]);

    float sum = 0.0f;
    each<T>(x, d, chunks, [&](float value) { sum += exponential(value, largest); });
    for (int lanes = kWave / 2; lanes > 0; lanes /= 2) sum += __shfl_xor(sum, lanes);
    if (first_lane) wave_sum[wave] = sum;
    __syncthreads(); // the waves' sums are in LDS
    sum = 0.0f;
    for (int i = 0; i < kWaves; ++i) sum += wave_sum[i];

    for (int chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
        const Chunk<T> loaded = reinterpret_cast<const Chunk<T>*>(x)[chunk];
        Chunk<T> result;
#pragma unroll
        for (int i = 0; i < kCells; ++i)
            result.cells[i] = T::narrow(exponential(T::widen(loaded.cells[i]), largest) / sum);
        reinterpret_cast<Chunk<T>*>(y)[chunk] = result;
    }
    for (int column = chunks * kCells + threadIdx.x; column < d; column += kThreads)
        y[column] = T::narrow(exponential(T::widen(x[column]), largest) / sum);
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class T>
int launch(const typename T::Cell* x, typename T::Cell* y, int rows, int d, hipStream_t stream) {
    if (rows < 1 || d < 1 || !aligned(x) || !aligned(y)) return hipErrorInvalidValue;
    hipLaunchKernelGGL(HIP_KERNEL_NAME(softmax_kernel<T>), dim3(rows), dim3(kThreads), 0, stream,
                       x, y, d);
    return hipGetLastError();
}

} // namespace

// hipErrorInvalidValue unless rows and d are positive and the pointers are aligned to 16
// bytes.
extern "C" int softmax_bf16(const uint16_t* x, uint16_t* y, int rows, int d, hipStream_t stream) {
    return launch<Bf16>(x, y, rows, d, stream);
}

extern "C" int softmax_f32(const float* x, float* y, int rows, int d, hipStream_t stream) {
    return launch<F32>(x, y, rows, d, stream);
}
