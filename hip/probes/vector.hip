// probe_vector: single operations of the vector unit, one a thread, as the compiler makes them.
//
//   a, b, c [n]: bit patterns of f32, or of f16 in the lower half; out [n] the same; op below
//
// Operands come from memory, so that nothing is folded by the compiler. What each result means is
// decided by exact integer arithmetic on the host.
#include <hip/hip_runtime.h>

namespace {

constexpr int kThreads = 256;

enum Op { kAdd, kMul, kFma, kMulAdd, kDiv, kSqrt, kExp, kHalfAdd, kHalfMul, kHalfFma };

#ifdef __ASSAY_EMU__
// The emulator's f16 unit, since host compilers need not have one: exact integers, rounded once.
// A finite f16 is an integer times 2^-24, so a product is one times 2^-48 and fits 128 bits.
typedef unsigned short Half;
typedef __int128 Wide;

inline Wide units(Half h) {
    const int exponent = h >> 10 & 0x1f;
    const Wide fraction = h & 0x3ff;
    const Wide magnitude = exponent == 0 ? fraction : (fraction | 0x400) << (exponent - 1);
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest f16, ties to even, of `exact` times 2^-48.
inline Half nearest(Wide exact) {
    const bool negative = exact < 0;
    const unsigned __int128 magnitude = negative ? -exact : exact;
    const unsigned sign = negative ? 0x8000u : 0u;
    int top = 0;
    while (top < 127 && (magnitude >> (top + 1)) != 0) ++top;
    const int drop = top - 10 > 24 ? top - 10 : 24; // the last place is 2^-24 at least
    const unsigned __int128 one = 1, half = one << (drop - 1);
    const unsigned __int128 rest = magnitude & ((one << drop) - 1);
    unsigned kept = static_cast<unsigned>(magnitude >> drop);
    if (rest > half || (rest == half && (kept & 1u) != 0)) ++kept;
    // The hidden bit, and a carry into it, add to the exponent by themselves.
    const unsigned bits = kept + (static_cast<unsigned>(drop - 24) << 10);
    return static_cast<Half>(sign | (bits < 0x7c00u ? bits : 0x7c00u));
}

inline Half half_fma(Half a, Half b, Half c) {
    return nearest(units(a) * units(b) + units(c) * (Wide{1} << 24));
}
inline Half half_add(Half a, Half b) { return nearest((units(a) + units(b)) * (Wide{1} << 24)); }
inline Half half_mul(Half a, Half b) { return nearest(units(a) * units(b)); }
inline unsigned half_bits(Half h) { return h; }
inline Half half_from(unsigned bits) { return static_cast<Half>(bits); }
#else
typedef _Float16 Half;

__device__ __forceinline__ Half half_from(unsigned bits) {
    const unsigned short low = static_cast<unsigned short>(bits);
    Half h;
    __builtin_memcpy(&h, &low, sizeof h);
    return h;
}
__device__ __forceinline__ unsigned half_bits(Half h) {
    unsigned short low;
    __builtin_memcpy(&low, &h, sizeof low);
    return low;
}
__device__ __forceinline__ Half half_fma(Half a, Half b, Half c) {
    return __builtin_fmaf16(a, b, c);
}
__device__ __forceinline__ Half half_add(Half a, Half b) { return a + b; }
__device__ __forceinline__ Half half_mul(Half a, Half b) { return a * b; }
#endif

__device__ __forceinline__ float run_f32(int op, float a, float b, float c) {
    switch (op) {
    case kAdd: return a + b;
    case kMul: return a * b;
    case kFma: return fmaf(a, b, c);
    case kMulAdd: return a * b + c;
    case kDiv: return a / b;
    case kSqrt: return sqrtf(a);
    default: return expf(a);
    }
}

__device__ __forceinline__ Half run_f16(int op, Half a, Half b, Half c) {
    switch (op) {
    case kHalfAdd: return half_add(a, b);
    case kHalfMul: return half_mul(a, b);
    default: return half_fma(a, b, c);
    }
}

__global__ __launch_bounds__(kThreads) void vector_kernel(const unsigned* a, const unsigned* b,
                                                          const unsigned* c, unsigned* out, int op,
                                                          int n) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= n) return;
    if (op >= kHalfAdd) {
        out[i] = half_bits(run_f16(op, half_from(a[i]), half_from(b[i]), half_from(c[i])));
        return;
    }
    const float x = __uint_as_float(a[i]), y = __uint_as_float(b[i]), z = __uint_as_float(c[i]);
    out[i] = __float_as_uint(run_f32(op, x, y, z));
}

} // namespace

extern "C" int probe_vector(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* out,
                            int op, int n, hipStream_t stream) {
    if (n < 1 || op < kAdd || op > kHalfFma) return hipErrorInvalidValue;
    hipLaunchKernelGGL(vector_kernel, dim3((n + kThreads - 1) / kThreads), dim3(kThreads), 0,
                       stream, a, b, c, out, op, n);
    return hipGetLastError();
}
