// probe_convert: f32 to narrower formats, one conversion a thread.
//
//   a [n]: bit patterns of f32; b, c unused; out [n]: the narrow pattern, or kAbsent for a
//   conversion that this target has no instruction for
//
// The `own` conversions are those that kernels include; the others are the device's.
#include "assay_bf16.h"
#include "assay_fp8.h"

namespace {

constexpr int kThreads = 256;
constexpr unsigned kAbsent = 0xffffffffu;

enum Op { kOwnBf16, kOwnF16, kOwnE4m3, kOwnE5m2, kUnitF16, kUnitE4m3, kUnitE5m2 };

// The instruction v_cvt_f16_f32, which every target of these kernels has.
__device__ __forceinline__ unsigned unit_f16(float x) {
#ifdef __ASSAY_EMU__
    (void)x;
    return kAbsent; // the emulator has no conversion of its own
#else
    const _Float16 h = static_cast<_Float16>(x);
    unsigned short low;
    __builtin_memcpy(&low, &h, sizeof low);
    return low;
#endif
}

// v_cvt_pk_fp8_f32 and v_cvt_pk_bf8_f32: gfx940 to gfx942 have the fnuz formats, gfx950 OCP's.
__device__ __forceinline__ unsigned unit_e4m3(float x) {
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
    return static_cast<unsigned>(__builtin_amdgcn_cvt_pk_fp8_f32(x, x, 0, false)) & 0xffu;
#else
    (void)x;
    return kAbsent;
#endif
}

__device__ __forceinline__ unsigned unit_e5m2(float x) {
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
    return static_cast<unsigned>(__builtin_amdgcn_cvt_pk_bf8_f32(x, x, 0, false)) & 0xffu;
#else
    (void)x;
    return kAbsent;
#endif
}

__global__ __launch_bounds__(kThreads) void convert_kernel(const unsigned* a, unsigned* out, int op,
                                                           int n) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= n) return;
    const float x = __uint_as_float(a[i]);
    switch (op) {
    case kOwnBf16: out[i] = float_to_bf16(x); break;
    case kOwnF16: out[i] = float_to_f16(x); break;
    case kOwnE4m3: out[i] = float_to_fp8_e4m3(x); break;
    case kOwnE5m2: out[i] = float_to_fp8_e5m2(x); break;
    case kUnitF16: out[i] = unit_f16(x); break;
    case kUnitE4m3: out[i] = unit_e4m3(x); break;
    default: out[i] = unit_e5m2(x); break;
    }
}

} // namespace

extern "C" int probe_convert(const unsigned* a, const unsigned*, const unsigned*, unsigned* out,
                             int op, int n, hipStream_t stream) {
    if (n < 1 || op < kOwnBf16 || op > kUnitE5m2) return hipErrorInvalidValue;
    hipLaunchKernelGGL(convert_kernel, dim3((n + kThreads - 1) / kThreads), dim3(kThreads), 0,
                       stream, a, out, op, n);
    return hipGetLastError();
}
