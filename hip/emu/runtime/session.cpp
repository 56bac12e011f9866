#include "session.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include <signal.h>

namespace assay_emu {

namespace {

thread_local Session* this_session = nullptr;

constexpr int kSuccess = 0, kInvalidConfiguration = 9, kNotInitialized = 3, kLaunchFailure = 719;

// Workers are kept between launches: their stacks are warm.
std::mutex pool_lock;
std::vector<std::unique_ptr<Worker>> pool;

std::unique_ptr<Worker> take_worker() {
    {
        std::lock_guard<std::mutex> guard(pool_lock);
        if (!pool.empty()) {
            auto worker = std::move(pool.back());
            pool.pop_back();
            return worker;
        }
    }
    return std::make_unique<Worker>();
}

void give_back(std::vector<std::unique_ptr<Worker>>& workers) {
    std::lock_guard<std::mutex> guard(pool_lock);
    for (auto& worker : workers) pool.push_back(std::move(worker));
    workers.clear();
}

bool launchable(const LaunchRequest& r) {
    const uint64_t threads = uint64_t{r.block.x} * r.block.y * r.block.z;
    const uint64_t blocks = uint64_t{r.grid.x} * r.grid.y * r.grid.z;
    return threads >= 1 && threads <= kMaxBlockThreads && blocks >= 1 && blocks < kMostBlocks &&
           r.dynamic_lds_bytes <= kMaxLdsBytes;
}

} // namespace

// Waits for the workers; past the deadline it takes the running fibers off. False
// after a hang. The signal is repeated, for one that arrives between two fibers has
// no effect.
bool Session::wait_for(std::vector<std::unique_ptr<Worker>>& workers) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::nanoseconds(options.deadline_ns);
    auto pause = std::chrono::microseconds(20);
    for (auto& worker : workers) {
        while (!worker->finished.load()) {
            std::this_thread::sleep_for(pause);
            pause = std::min(pause * 2, std::chrono::microseconds(1000));
            if (Clock::now() < deadline) continue;
            cancelled.store(true);
            if (!worker->finished.load()) pthread_kill(worker->thread, cancel_signal());
        }
    }
    return !cancelled.load();
}

int Session::launch(const LaunchRequest& request) {
    if (!launchable(request)) return kInvalidConfiguration;
    if (cancelled.load()) return kLaunchFailure;
    const uint64_t blocks = uint64_t{request.grid.x} * request.grid.y * request.grid.z;
    const auto count = std::clamp<uint64_t>(options.threads, 1, blocks);
    next_block.store(0);

    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < count; ++i) {
        workers.push_back(take_worker());
        Worker& worker = *workers.back();
        worker.finished.store(false);
        threads.emplace_back([this, &worker, &request] { worker.run(*this, request); });
        worker.thread = threads.back().native_handle();
    }
    const bool completed = wait_for(workers);
    for (auto& thread : threads) thread.join();
    for (auto& worker : workers) worker->findings.drain(findings);
    give_back(workers);

    if (!completed) {
        // Where each thread was is a matter of chance: only that it hung is certain.
        Finding hang{};
        hang.kind = FindingKind::Hang;
        hang.buffer = hang.symbol = -1;
        hang.count = 1;
        hang.launch = launches;
        findings.push_back(hang);
    }
    find_conflicts_of_blocks(request);
    merge_findings();
    ++launches;
    return completed ? kSuccess : kLaunchFailure;
}

int Session::buffer_at(const uint8_t* address) const {
    int best = options.buffer_count == 0 ? -1 : 0;
    for (size_t i = 0; i < options.buffer_count; ++i) {
        const Buffer& buffer = options.buffers[i];
        if (address >= buffer.span) best = static_cast<int>(i); // spans ascend
    }
    return best;
}

namespace {

int launch(const LaunchRequest* request) {
    return this_session == nullptr ? kNotInitialized : this_session->launch(*request);
}

void barrier(uint32_t line) {
    Worker& worker = *this_worker;
    worker.current->line = line;
    worker.current->state = LaneState::AtBarrier;
    ++worker.at_barrier;
    worker.yield();
}

uint64_t wave(const WaveCall* call) {
    Worker& worker = *this_worker;
    Lane& lane = *worker.current;
    worker.waves[lane.index].call = *call;
    lane.state = LaneState::AtWaveOp;
    ++worker.at_wave_op;
    return worker.yield();
}

void* dynamic_lds() { return this_worker->dynamic_lds; }

const MathConfig* math() {
    static const MathConfig exact{0, 0};
    return this_worker == nullptr ? &exact : &this_worker->session->math;
}

const Table table{ASSAY_EMU_ABI_VERSION,
                  launch,
                  barrier,
                  wave,
                  dynamic_lds,
                  math,
                  check_read,
                  check_write,
                  check_atomic,
                  check_exchange,
                  report_array_overrun};

} // namespace

} // namespace assay_emu

using assay_emu::Session;

const assay_emu::Table* assay_emu_table() { return &assay_emu::table; }

void* assay_emu_session_open(const assay_emu::SessionOptions* options) {
    assay_emu::install_signal_handlers();
    auto* session = new Session;
    session->options = *options;
    session->math = {options->ulps, options->seed};
    assay_emu::this_session = session;
    return session;
}

const assay_emu::Finding* assay_emu_session_findings(void* session, size_t* count) {
    const auto& findings = static_cast<Session*>(session)->findings;
    *count = findings.size();
    return findings.data();
}

void assay_emu_session_close(void* session) {
    assay_emu::this_session = nullptr;
    delete static_cast<Session*>(session);
}
