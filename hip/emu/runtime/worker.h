// A worker is one OS thread's share of a launch: it runs one block after another,
// every thread of a block on a fiber of its own.
#pragma once

#include <atomic>
#include <vector>

#include <pthread.h>

#include "fiber.h"
#include "interface.h"

namespace assay_emu {

struct Session;

enum class LaneState : uint8_t { Ready, AtBarrier, AtWaveOp, Exited };

// A thread of the block that is running. Its LaneView lies in its stack. Small, since a barrier visits
// all of them: with their stacks they should fit a core's first cache.
struct Lane {
    Context context;
    uint32_t line; // of the barrier it waits at
    uint16_t index; // linear thread index in the block
    LaneState state;
};

// The wave operation that a lane waits at, and what comes of it.
struct WaveSlot {
    WaveCall call;
    uint64_t result;
};

// What is known about one byte of LDS. Epochs grow at every barrier and block and
// never restart, so the cells need no clearing between blocks.
struct LdsCell {
    uint32_t write_epoch, read_epoch;
    uint32_t write_pc, read_pc, read2_pc;
    uint16_t writer, reader, reader2; // reader2 differs from reader, in its wave if possible
    bool has_reader2, atomic;
};

// Distinct findings by open addressing. Fixed in size: it is written on fibers and
// in signal handlers, where allocation is not allowed.
class FindingTable {
public:
    FindingTable() : slots_(kSlots) {}
    void record(const Finding& finding);
    void drain(std::vector<Finding>& into);

private:
    static constexpr size_t kSlots = 1024;
    std::vector<Finding> slots_;
    size_t used_ = 0;
};

struct Worker {
    Worker();
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // Runs blocks of the launch until none is left. The body of an OS thread.
    void run(Session& session, const LaunchRequest& request);

    // Stops the running block for good; called on a fiber or in a signal handler.
    [[noreturn]] void abandon_block();
    // Saves the running lane and gives way to the next one of the round, or to the scheduler after the
    // last. Returns the lane's result of a wave operation when its turn comes again.
    uint64_t yield();

    // A finding located at the current lane; the caller adds what is particular.
    Finding locate(FindingKind kind) const;
    void record(const Finding& finding);

    uint8_t* stack(unsigned lane) const { return stacks_ + lane * kStackBytes; }
    bool is_stack_guard(const uint8_t* address) const;

    Session* session = nullptr;
    const LaunchRequest* request = nullptr;
    uint64_t block = 0;
    uint32_t threads = 0;
    Lane* current = nullptr;
    unsigned at_barrier = 0, at_wave_op = 0; // lanes that wait there
    std::vector<Lane> lanes{kMaxBlockThreads};
    std::vector<WaveSlot> waves{kMaxBlockThreads};
    // Whether a fiber is in kernel code, so that a signal may take it off.
    volatile bool in_kernel = false;
    std::atomic<bool> finished{false};
    pthread_t thread{};

    // LDS. Shadow cells of static LDS come first, those of dynamic LDS follow.
    uint8_t* lds_base = nullptr;
    size_t lds_bytes = 0;
    uint8_t* dynamic_lds = nullptr;
    size_t dynamic_lds_bytes = 0;
    uint8_t* dynamic_mapping() const { return dynamic_; }
    std::vector<LdsCell> shadow;
    std::vector<uint32_t> settled; // a digest of the shadow; see checks.cpp
    uint32_t epoch = 0, block_epoch = 0;

    FindingTable findings;
    size_t last_buffer = 0; // where the latest global access went

private:
    void reserve_lanes(unsigned count);
    void place_lds();
    void poison_lds();
    void start_block(uint64_t block);
    void run_block();
    bool run_ready_lanes();
    Lane* next_ready();
    void release_barrier();
    void resolve_wave(unsigned first, unsigned last);
    void resolve_matrix(WaveOp op, unsigned first, uint64_t active);

    uint8_t* stacks_ = nullptr;
    unsigned guarded_lanes_ = 0;
    uint8_t* dynamic_ = nullptr;
    uint8_t* signal_stack_ = nullptr;
    std::vector<uint16_t> order_;
    unsigned phase_ = 0;
    unsigned position_ = 0, left_ = 0; // in the round that runs: the next in the order, how many are left
    Context scheduler_{};
    bool abandoned_ = false;
};

constexpr size_t kDynamicLdsMapping = kMaxLdsBytes + 2 * kMaxLdsBytes; // guard, LDS, guard
constexpr size_t kSignalStackBytes = 64 * 1024;

// The worker whose fibers run on this OS thread, or null.
extern thread_local Worker* this_worker;

} // namespace assay_emu
