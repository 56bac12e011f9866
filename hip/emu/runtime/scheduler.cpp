// Runs the threads of one block until all have exited.
//
// All ready threads run, in an order that the seed decides, until each waits or
// has exited. Then wave operations are resolved, and only when no thread waits at
// one is the barrier looked at. So the schedule, and with it every finding, is a
// function of (seed, block) alone.
#include <algorithm>

#include "session.h"
#include "worker.h"

namespace assay_emu {

namespace {

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// The first frame of every fiber.
void lane_main() {
    Worker& worker = *this_worker;
    worker.request->body(worker.request->closure);
    worker.in_kernel = false;
    worker.current->state = LaneState::Exited;
    worker.yield();
    __builtin_unreachable(); // an exited lane is never resumed
}

} // namespace

// Going to the next lane directly saves the way through the scheduler, and a switch in tail position
// leaves nothing on the lane's stack but its registers: together half of what a barrier costs.
//
// `in_kernel` is set before the switch and not after it: a signal in between finds a worker whose
// bookkeeping is done, and abandons a block whose lanes are not resumed.
uint64_t Worker::yield() {
    in_kernel = false;
    Context& from = current->context;
    Lane* next = next_ready();
    if (next == nullptr) return switch_context(from, scheduler_, 0);
    current = next;
    const uint64_t result = waves[next->index].result;
    Context& to = next->context;
    in_kernel = true;
    return switch_context(from, to, result);
}

void Worker::abandon_block() {
    in_kernel = false;
    abandoned_ = true;
    switch_context(current->context, scheduler_, 0);
    __builtin_unreachable(); // the block's lanes are never resumed
}

void Worker::start_block(uint64_t number) {
    block = number;
    block_epoch = ++epoch;
    abandoned_ = false;
    phase_ = 0;
    at_barrier = at_wave_op = 0;
    poison_lds();

    const dim3& grid = request->grid;
    const dim3& size = request->block;
    for (uint32_t i = 0; i < threads; ++i) {
        uint8_t* base = stack(i);
        auto& view = *reinterpret_cast<LaneView*>(base + kStackBytes - kLaneBytes);
        view.thread_idx = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        view.block_idx = {static_cast<uint32_t>(block % grid.x),
                          static_cast<uint32_t>(block / grid.x % grid.y),
                          static_cast<uint32_t>(block / grid.x / grid.y)};
        view.block_dim = size;
        view.grid_dim = grid;
        Lane& lane = lanes[i];
        lane.index = static_cast<uint16_t>(i);
        lane.state = LaneState::Ready;
        // Stacks aligned to a power of two would share a few cache sets; start each
        // at another offset.
        const size_t colour = i * 320 % (kStackBytes / 2);
        prepare(lane.context, base, kStackBytes - kLaneBytes - colour, lane_main);
    }

    order_.resize(threads);
    for (uint32_t i = 0; i < threads; ++i) order_[i] = static_cast<uint16_t>(i);
    if (session->options.seed == 0) return; // the natural order
    uint64_t state = mix(session->options.seed ^ mix(block));
    for (uint32_t i = threads - 1; i > 0; --i) {
        state = mix(state);
        std::swap(order_[i], order_[state % (i + 1)]);
    }
}

// The next lane of this round that is ready, or null after the last one and when the launch was
// cancelled. Lanes become ready between rounds only.
Lane* Worker::next_ready() {
    if (session->cancelled.load(std::memory_order_relaxed)) return nullptr;
    while (left_ != 0) {
        Lane& lane = lanes[order_[position_]];
        position_ = position_ + 1 == threads ? 0 : position_ + 1;
        --left_;
        if (lane.state != LaneState::Ready) continue;
#ifdef ASSAY_EMU_OWN_SWITCH
        // The lane after it will pop its registers soon, from a stack that no cache line is shared with.
        __builtin_prefetch(lanes[order_[position_]].context);
#endif
        return &lane;
    }
    return nullptr;
}

// Runs every ready lane once, starting elsewhere in the order each time; false if
// the block was abandoned.
bool Worker::run_ready_lanes() {
    position_ = session->options.seed == 0 ? 0 : phase_++ * 37 % threads;
    left_ = threads;
    Lane* first = next_ready();
    if (first != nullptr) {
        current = first;
        in_kernel = true;
        switch_context(scheduler_, first->context, waves[first->index].result);
    }
    current = nullptr;
    return !abandoned_ && !session->cancelled.load(std::memory_order_relaxed);
}

void Worker::run_block() {
    while (run_ready_lanes()) {
        if (at_wave_op != 0) {
            for (uint32_t first = 0; first < threads; first += kWaveSize)
                resolve_wave(first, std::min(first + kWaveSize, threads));
        } else if (at_barrier != 0) {
            at_barrier = 0;
            release_barrier();
        } else {
            break;
        }
    }
    current = nullptr;
}

void Worker::release_barrier() {
    uint32_t lowest = UINT32_MAX, highest = 0;
    Lane *waiting = nullptr, *exited = nullptr;
    for (uint32_t i = 0; i < threads; ++i) {
        Lane& lane = lanes[i];
        if (lane.state == LaneState::Exited) {
            if (exited == nullptr) exited = &lane;
            continue;
        }
        if (waiting == nullptr) waiting = &lane;
        lowest = std::min(lowest, lane.line);
        highest = std::max(highest, lane.line);
        lane.state = LaneState::Ready;
    }
    if (exited != nullptr) {
        current = exited;
        Finding f = locate(FindingKind::ExitedBeforeBarrier);
        f.line = lowest;
        record(f);
    }
    if (lowest != highest) {
        current = waiting;
        Finding f = locate(FindingKind::DifferentBarrier);
        f.line = lowest;
        f.line2 = highest;
        record(f);
    }
    current = nullptr;
    ++epoch;
}

} // namespace assay_emu
