// A session: the launches made by one host thread under one set of options.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "interface.h"
#include "worker.h"

namespace assay_emu {

struct Session {
    SessionOptions options;
    MathConfig math;
    uint64_t launches = 0;
    std::atomic<uint64_t> next_block{0};
    std::atomic<bool> cancelled{false};
    std::vector<Finding> findings;

    int launch(const LaunchRequest& request);
    // Which buffer an arena address belongs to, by the span it lies in, or, beyond
    // all spans, the nearest before it; -1 if there are no buffers.
    int buffer_at(const uint8_t* address) const;
    bool in_arena(const uint8_t* address) const {
        return address >= options.arena && address < options.arena + options.arena_bytes;
    }

private:
    bool wait_for(std::vector<std::unique_ptr<Worker>>& workers);
    void find_conflicts_of_blocks(const LaunchRequest& request);
    void merge_findings();
};

// checks.cpp: what kernels built with checks call on every access.
void check_read(const void* address, size_t bytes, const void* pc);
void check_write(const void* address, size_t bytes, const void* pc);
void check_atomic(const void* address, size_t bytes, const void* pc);
void check_exchange(const void* address, size_t bytes, const void* pc);
void report_array_overrun(const char* type, uint32_t line, const void* pc);
// Records a bad access to global memory and stops the block.
[[noreturn]] void report_bad_access(Worker& worker, const uint8_t* address, Access access,
                                    const void* pc);

// A cell of Buffer::stores or ::loads: the two lowest blocks that stored to the byte, or read
// it, in this launch, each plus one; of stores also, in the lower half, kStoredEarlier, or
// kUpdatedUnset where only atomics of this launch used the byte, which held nothing.
constexpr uint32_t kStoredEarlier = 0xffffffffu;
constexpr uint32_t kUpdatedUnset = 0xfffffffeu;
constexpr uint64_t kMostBlocks = kUpdatedUnset - 1;

// signals.cpp
void install_signal_handlers();
int cancel_signal();

} // namespace assay_emu
