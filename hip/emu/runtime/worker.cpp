#include "worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <signal.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "session.h"

namespace assay_emu {

thread_local Worker* this_worker = nullptr;

namespace {

uint8_t* map(size_t bytes, int protection) {
    void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("assay emulator: mmap");
        abort();
    }
    return static_cast<uint8_t*>(p);
}

// Subnormal floats as a device that flushes them treats them, on results and
// operands alike. Thread-wide, so it is set once on each worker's own OS thread.
void set_flush_subnormals(bool flush) {
#if defined(__x86_64__)
    constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
    const unsigned bits = kFlushToZero | kDenormalsAreZero;
    _mm_setcsr(flush ? _mm_getcsr() | bits : _mm_getcsr() & ~bits);
#elif defined(__aarch64__)
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    constexpr uint64_t kFlushToZero = 1u << 24;
    control = flush ? control | kFlushToZero : control & ~kFlushToZero;
    asm volatile("msr fpcr, %0" ::"r"(control));
#else
#error "no way to flush subnormals is known for this architecture"
#endif
}

} // namespace

Worker::Worker() {
    // Stacks are aligned to their size: map one more and use the aligned middle.
    uint8_t* raw = map((kMaxBlockThreads + 1) * kStackBytes, PROT_READ | PROT_WRITE);
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (address + kStackBytes - 1) & ~(kStackBytes - 1);
    uint8_t* begin = reinterpret_cast<uint8_t*>(aligned);
    if (begin != raw) munmap(raw, begin - raw);
    uint8_t* end = begin + kMaxBlockThreads * kStackBytes;
    const size_t rest = raw + (kMaxBlockThreads + 1) * kStackBytes - end;
    if (rest != 0) munmap(end, rest);
    stacks_ = begin;

    dynamic_ = map(kDynamicLdsMapping, PROT_NONE);
    mprotect(dynamic_ + kMaxLdsBytes, kMaxLdsBytes, PROT_READ | PROT_WRITE);
    signal_stack_ = map(kSignalStackBytes, PROT_READ | PROT_WRITE);
}

Worker::~Worker() {
    munmap(stacks_, kMaxBlockThreads * kStackBytes);
    munmap(dynamic_, kDynamicLdsMapping);
    munmap(signal_stack_, kSignalStackBytes);
}

constexpr size_t kGuardBytes = 4096;

void Worker::reserve_lanes(unsigned count) {
    for (; guarded_lanes_ < count; ++guarded_lanes_)
        mprotect(stack(guarded_lanes_), kGuardBytes, PROT_NONE);
}

bool Worker::is_stack_guard(const uint8_t* address) const {
    return address >= stacks_ && address < stacks_ + kMaxBlockThreads * kStackBytes &&
           (address - stacks_) % kStackBytes < kGuardBytes;
}

void Worker::run(Session& s, const LaunchRequest& r) {
    session = &s;
    request = &r;
    threads = r.block.x * r.block.y * r.block.z;
    stack_t previous, own{};
    own.ss_sp = signal_stack_;
    own.ss_size = kSignalStackBytes;
    sigaltstack(&own, &previous);
    set_flush_subnormals(s.options.flush_subnormals != 0);
    this_worker = this;
    reserve_lanes(threads);
    place_lds();

    const uint64_t blocks = uint64_t{r.grid.x} * r.grid.y * r.grid.z;
    while (!s.cancelled.load(std::memory_order_relaxed)) {
        const uint64_t next = s.next_block.fetch_add(1, std::memory_order_relaxed);
        if (next >= blocks) break;
        start_block(next);
        run_block();
    }
    this_worker = nullptr;
    sigaltstack(&previous, nullptr);
    finished.store(true);
}

// `settled` keeps an epoch in 27 bits; the launch that passes the limit has as many
// barriers again before it would overflow.
constexpr uint32_t kEpochLimit = 1u << 26;

// Finds this thread's copy of the module's LDS.
void Worker::place_lds() {
    const SessionOptions& o = session->options;
    auto* anchor = static_cast<uint8_t*>(o.tls_anchor());
    int64_t low = 0, high = 0;
    for (size_t i = 0; i < o.symbol_count; ++i) {
        const auto end = o.symbols[i].offset + static_cast<int64_t>(o.symbols[i].bytes);
        low = i == 0 ? o.symbols[i].offset : std::min(low, o.symbols[i].offset);
        high = i == 0 ? end : std::max(high, end);
    }
    lds_base = anchor + low;
    lds_bytes = static_cast<size_t>(high - low);
    dynamic_lds_bytes = request->dynamic_lds_bytes;
    // Ends where the guard begins, but aligned as LDS is.
    dynamic_lds = dynamic_ + 2 * kMaxLdsBytes - (dynamic_lds_bytes + 15) / 16 * 16;
    const size_t cells = lds_bytes + dynamic_lds_bytes;
    if (shadow.size() < cells) {
        shadow.resize(cells);
        settled.resize(cells);
    }
    if (epoch > kEpochLimit) {
        std::fill(shadow.begin(), shadow.end(), LdsCell{});
        std::fill(settled.begin(), settled.end(), 0);
        epoch = 0;
    }
}

// On a device LDS holds what an earlier block left. 0xff makes a NaN of every
// float, so that reading it shows in the result.
void Worker::poison_lds() {
    const SessionOptions& o = session->options;
    auto* anchor = static_cast<uint8_t*>(o.tls_anchor());
    for (size_t i = 0; i < o.symbol_count; ++i)
        memset(anchor + o.symbols[i].offset, 0xff, o.symbols[i].bytes);
    memset(dynamic_lds, 0xff, dynamic_lds_bytes);
}

Finding Worker::locate(FindingKind kind) const {
    Finding f{};
    f.kind = kind;
    f.buffer = -1;
    f.symbol = -1;
    f.count = 1;
    f.launch = session->launches;
    f.block = block;
    const dim3& grid = request->grid;
    f.block_at[0] = static_cast<uint32_t>(block % grid.x);
    f.block_at[1] = static_cast<uint32_t>(block / grid.x % grid.y);
    f.block_at[2] = static_cast<uint32_t>(block / grid.x / grid.y);
    if (current != nullptr) {
        const dim3& size = request->block;
        f.thread = current->index;
        f.thread_at[0] = f.thread % size.x;
        f.thread_at[1] = f.thread / size.x % size.y;
        f.thread_at[2] = f.thread / size.x / size.y;
    }
    return f;
}

void Worker::record(const Finding& finding) {
    const bool was_in_kernel = in_kernel;
    in_kernel = false; // a cancel signal must not leave the table half written
    findings.record(finding);
    in_kernel = was_in_kernel;
}

} // namespace assay_emu
