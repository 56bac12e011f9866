// HIP as the emulator offers it: the same kernel source compiles here as C++ and
// with hipcc as HIP. Only what a kernel needs; a missing name is a compile error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <tuple>
#include <type_traits>
#include <utility>

#include "assay_emu/abi.h"

#define __ASSAY_EMU__ 1
#define __HIP_PLATFORM_AMD__ 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
// One block at a time runs on an OS thread, so its LDS is thread-local storage.
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))
#define HIP_DYNAMIC_SHARED(type, name) \
    type* name = static_cast<type*>(::assay_emu::table->dynamic_lds());
#define HIP_KERNEL_NAME(...) __VA_ARGS__

enum hipError_t {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorInvalidConfiguration = 9,
    hipErrorNotInitialized = 3,
    hipErrorLaunchFailure = 719,
};
typedef struct ihipStream_t* hipStream_t;

namespace assay_emu {

// Set once when the module is loaded, before anything else is called.
static const Table* table;
static thread_local hipError_t last_error = hipSuccess; // a host thread's, as in HIP

inline const LaneView& lane_view() {
    const auto sp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return *reinterpret_cast<const LaneView*>((sp | (kStackBytes - 1)) + 1 - kLaneBytes);
}

template <class... Params, class... Args>
inline void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t dynamic_lds,
                   hipStream_t, Args&&... args) {
    using Closure = std::pair<void (*)(Params...), std::tuple<Params...>>;
    const Closure closure(kernel, std::tuple<Params...>(std::forward<Args>(args)...));
    const LaunchRequest request{
        grid, block, dynamic_lds,
        [](const void* p) {
            const auto& c = *static_cast<const Closure*>(p);
            std::apply(c.first, c.second);
        },
        &closure};
    last_error = static_cast<hipError_t>(table->launch(&request));
}

} // namespace assay_emu

#define hipLaunchKernelGGL(kernel, grid, block, dynamic_lds, stream, ...) \
    ::assay_emu::launch(kernel, grid, block, dynamic_lds, stream, ##__VA_ARGS__)

inline hipError_t hipGetLastError() {
    const hipError_t error = assay_emu::last_error;
    assay_emu::last_error = hipSuccess;
    return error;
}
inline hipError_t hipPeekAtLastError() { return assay_emu::last_error; }

#define threadIdx (::assay_emu::lane_view().thread_idx)
#define blockIdx (::assay_emu::lane_view().block_idx)
#define blockDim (::assay_emu::lane_view().block_dim)
#define gridDim (::assay_emu::lane_view().grid_dim)
static constexpr int warpSize = assay_emu::kWaveSize;

// The compiler barriers keep it from carrying LDS values in registers across.
inline __attribute__((always_inline)) void assay_emu_barrier(int line) {
    asm volatile("" ::: "memory");
    assay_emu::table->barrier(static_cast<uint32_t>(line));
    asm volatile("" ::: "memory");
}
inline __attribute__((always_inline)) void __syncthreads(int line = __builtin_LINE()) {
    assay_emu_barrier(line);
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

struct uint2 { unsigned x, y; } __attribute__((aligned(8)));
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct ushort2 { unsigned short x, y; } __attribute__((aligned(4)));
struct ushort4 { unsigned short x, y, z, w; } __attribute__((aligned(8)));

inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
inline int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
inline float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
inline float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }

#include "assay_emu/math.h"
#include "assay_emu/wave.h"
#include "assay_emu/matrix.h"
#include "assay_emu/atomics.h"
#ifdef ASSAY_EMU_CHECKED
#include "assay_emu/checks.h"
#endif

// What the host program looks up. The anchor's address, minus its offset in the
// symbol table, is where this thread's copy of the module's LDS begins.
static thread_local unsigned long long assay_emu_anchor;
extern "C" __attribute__((visibility("default"))) void* assay_emu_tls_anchor() {
    return &assay_emu_anchor;
}
// Not instrumented: the checks' callbacks need the table that this sets.
extern "C" __attribute__((visibility("default"), no_sanitize_thread)) int assay_emu_attach(
    const assay_emu::Table* table) {
    if (table->version != ASSAY_EMU_ABI_VERSION) return 1;
    assay_emu::table = table;
    return 0;
}
