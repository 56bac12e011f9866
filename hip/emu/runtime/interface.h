// The C interface between the Rust crate and the emulator's runtime.
// src/emu/ffi.rs mirrors every struct here field by field.
#pragma once

#include <cstddef>
#include <cstdint>

#include "assay_emu/abi.h"

namespace assay_emu {

// A device buffer: `data` lies somewhere in `span`, whose other pages are not
// accessible. `stores` and `loads` have one cell a byte in checked runs, and are null otherwise.
// `initialised` says whether it holds something before the first launch.
struct Buffer {
    uint8_t* span;
    size_t span_bytes;
    uint8_t* data;
    size_t bytes;
    uint64_t* stores;
    uint64_t* loads;
    uint32_t writable;
    uint32_t initialised;
};

// A __shared__ variable, relative to the module's anchor variable.
struct LdsSymbol {
    int64_t offset;
    size_t bytes;
};

struct SessionOptions {
    const Buffer* buffers;
    size_t buffer_count;
    const uint8_t* arena;
    size_t arena_bytes;
    const LdsSymbol* symbols;
    size_t symbol_count;
    void* (*tls_anchor)();
    const uint8_t* module_base;
    uint64_t seed;
    uint64_t deadline_ns;
    uint32_t threads;
    uint32_t ulps;
    uint32_t flush_subnormals;
};

enum class FindingKind : uint32_t {
    OutOfBounds = 1,
    WildAccess = 2,
    InputModified = 3,
    UninitialisedLds = 4,
    DataRace = 5,
    OverlappingStores = 6,
    ExitedBeforeBarrier = 7,
    DifferentBarrier = 8,
    LdsOverrun = 9,
    InactiveLane = 10,
    Hang = 11,
    StackOverflow = 12,
    GlobalRace = 13,
    UninitialisedBuffer = 14,
};

enum class Access : uint32_t { Read = 0, Write = 1, Unknown = 2 };

// One finding, with how often it occurred and its first occurrence in the order
// of (launch, block, thread). The fields up to `line2` identify it.
struct Finding {
    FindingKind kind;
    uint32_t detail; // Access of a bad access, 1 for a cross-wave race, WaveOp of a lane
    int32_t buffer; // index into the buffers, or -1
    int32_t symbol; // index into the LDS symbols, or -1; -2 is dynamic LDS
    uint64_t pc, pc2; // relative to the module, 0 if unknown
    uint32_t line, line2; // of barriers and wave operations
    const char* text; // type of an overrun array

    uint64_t count;
    int64_t offset;
    uint64_t launch, block, block2;
    uint32_t thread;
    uint32_t block_at[3], block2_at[3], thread_at[3];
};

} // namespace assay_emu

extern "C" {
const assay_emu::Table* assay_emu_table();
// Opens the session in which the calling thread's next launches run. The options
// and all that they point to must stay valid until the session is closed.
void* assay_emu_session_open(const assay_emu::SessionOptions*);
// The findings so far, sorted. Valid until the session is closed.
const assay_emu::Finding* assay_emu_session_findings(void* session, size_t* count);
void assay_emu_session_close(void* session);
}
