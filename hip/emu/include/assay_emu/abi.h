// What the emulator's runtime and a kernel module must agree on.
//
// A module is a shared object compiled from one .hip source at run time. It
// never links against the runtime: it is handed a `Table` of functions when it
// is loaded, so the host program needs no exported symbols.
#pragma once

#include <cstddef>
#include <cstdint>

#define ASSAY_EMU_ABI_VERSION 3

struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct uint3 {
    uint32_t x, y, z;
};

namespace assay_emu {

constexpr unsigned kWaveSize = 64;
constexpr unsigned kMaxBlockThreads = 1024;
constexpr size_t kMaxLdsBytes = 64 * 1024;

// Every emulated thread runs on a stack of this size, aligned to this size, with
// its `LaneView` in the topmost kLaneBytes. A kernel therefore finds its own
// threadIdx by masking the stack pointer, without a call or a thread-local load.
constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kLaneBytes = 256;

struct LaneView {
    uint3 thread_idx;
    uint3 block_idx;
    dim3 block_dim;
    dim3 grid_dim;
};

struct MathConfig {
    uint32_t ulps; // how far expf, exp2f and rsqrtf are moved from the nearest float
    uint64_t seed; // decides the direction, argument by argument
};

// src/emu/report.rs names those that findings can be about, by their numbers.
enum class WaveOp : uint32_t {
    Shfl,
    ShflUp,
    ShflDown,
    ShflXor,
    Ballot,
    Any,
    All,
    Sync,
    Mfma, // D = A B + C of 16 x 16 x 16, bf16 into f32, by AMD's lane layout
    Mmac, // the same by Hygon's
};

// The registers with which a lane takes part in a matrix instruction.
struct MatrixRegisters {
    uint16_t a[4], b[4]; // bf16
    float c[4], d[4];
};

struct WaveCall {
    WaveOp op;
    uint32_t line;
    uint64_t value; // payload of a shuffle, predicate of a vote, address of MatrixRegisters
    int32_t operand; // source lane, delta or mask of a shuffle
    uint32_t width;
};

struct LaunchRequest {
    dim3 grid, block;
    size_t dynamic_lds_bytes;
    void (*body)(const void* closure); // runs one thread of the kernel
    const void* closure;
};

struct Table {
    uint32_t version;
    int (*launch)(const LaunchRequest*);
    void (*barrier)(uint32_t line);
    uint64_t (*wave)(const WaveCall*);
    void* (*dynamic_lds)();
    const MathConfig* (*math)();
    // Called only by modules built with checks. `pc` is an address in the module.
    void (*read)(const void*, size_t bytes, const void* pc);
    void (*write)(const void*, size_t bytes, const void* pc);
    // An atomic that uses what was there, and one (atomicExch) that need not.
    void (*atomic)(const void*, size_t bytes, const void* pc);
    void (*exchange)(const void*, size_t bytes, const void* pc);
    void (*array_overrun)(const char* type, uint32_t line, const void* pc);
};

} // namespace assay_emu
