// silu_mul: y = silu(gate) * up, silu(g) = g / (1 + e^-g), all bf16: the SwiGLU of Qwen's MLP.
//
//   gate, up and y: n elements each, in any shape; 16-byte aligned
//
// Both operands are widened to f32, where the exponential, the division and the product are
// computed; the product is rounded to bf16 once. A thread takes 8 consecutive elements by
// 16-byte loads, and the last n % 8 elements go one to a thread. Non-finite values follow
// IEEE: silu(-inf) is -inf / inf, a NaN, and a gate so low that e^-g overflows gives a zero
// of up's opposite sign.
#include "assay_bf16.h"

namespace {

constexpr int kThreads = 256;
constexpr int kPerChunk = 8;

// What one 16-byte access moves.
struct alignas(16) Chunk {
    bf16_bits cells[kPerChunk];
};

__device__ __forceinline__ float silu(float gate) {
    const float e = expf(-gate);
    return gate / (1.0f + e);
}

__device__ __forceinline__ bf16_bits element(bf16_bits gate_bits, bf16_bits up_bits) {
    const float gate = bf16_to_float(gate_bits);
    const float up = bf16_to_float(up_bits);
    const float activated = silu(gate);
    const float product = activated * up;
    return float_to_bf16(product);
}

__global__ __launch_bounds__(kThreads) void silu_mul_kernel(const bf16_bits* __restrict__ gate,
                                                            const bf16_bits* __restrict__ up,
                                                            bf16_bits* __restrict__ y, size_t n) {
    const size_t thread = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
    const size_t chunks = n / kPerChunk;
    if (thread < chunks) {
        const Chunk gates = reinterpret_cast<const Chunk*>(gate)[thread];
        const Chunk ups = reinterpret_cast<const Chunk*>(up)[thread];
        Chunk result;
#pragma unroll
        for (int i = 0; i < kPerChunk; ++i) result.cells[i] = element(gates.cells[i], ups.cells[i]);
        reinterpret_cast<Chunk*>(y)[thread] = result;
    }
    const size_t last = chunks * kPerChunk + thread;
    if (last < n) y[last] = element(gate[last], up[last]);
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

} // namespace

// hipErrorInvalidValue unless n >= 1 and the pointers are aligned to 16 bytes.
extern "C" int silu_mul(const uint16_t* gate, const uint16_t* up, uint16_t* y, int n,
                        hipStream_t stream) {
    if (n < 1 || !aligned(gate) || !aligned(up) || !aligned(y)) return hipErrorInvalidValue;
    const int threads = n / kPerChunk + n % kPerChunk;
    const dim3 grid((threads + kThreads - 1) / kThreads);
    hipLaunchKernelGGL(silu_mul_kernel, grid, dim3(kThreads), 0, stream, gate, up, y,
                       static_cast<size_t>(n));
    return hipGetLastError();
}
