// The checkers behind every memory access of a kernel built with checks.
#include "session.h"
#include "worker.h"

namespace assay_emu {

namespace {

constexpr int kDynamicSymbol = -2;

// An exchange stores, as atomics do, and uses nothing of what was there.
enum class Kind { Read, Write, Atomic, Exchange };

uint64_t relative(const Worker& worker, const void* pc) {
    const uint8_t* base = worker.session->options.module_base;
    return pc == nullptr ? 0 : static_cast<const uint8_t*>(pc) - base;
}

// Which __shared__ variable holds a byte of static LDS, or -1 for none.
int symbol_at(const Worker& worker, const uint8_t* address) {
    const SessionOptions& o = worker.session->options;
    const auto* anchor = static_cast<const uint8_t*>(o.tls_anchor());
    for (size_t i = 0; i < o.symbol_count; ++i) {
        const uint8_t* begin = anchor + o.symbols[i].offset;
        if (address >= begin && address < begin + o.symbols[i].bytes) return static_cast<int>(i);
    }
    return -1;
}

// What `settled` holds for a byte that needs no more attention from the reads of this
// epoch: written before it, and known to be read by two threads of one wave (then the
// wave's further reads add nothing) or of two waves (then nobody's do).
uint32_t settled_for_wave(const Worker& worker, unsigned thread) {
    return worker.epoch << 5 | thread / kWaveSize;
}
uint32_t settled_for_all(const Worker& worker) { return worker.epoch << 5 | 31; }

struct LdsAccess {
    Worker& worker;
    const uint8_t* address;
    LdsCell* cells;
    uint32_t* settled;
    size_t bytes;
    uint32_t pc;
    uint16_t thread;
    bool dynamic;

    Finding found(FindingKind kind) const {
        Finding f = worker.locate(kind);
        f.symbol = dynamic ? kDynamicSymbol : symbol_at(worker, address);
        f.pc = pc;
        return f;
    }

    // A pair of accesses is the same race whichever came first.
    void race(uint16_t other, uint32_t other_pc) const {
        Finding f = found(FindingKind::DataRace);
        f.detail = other / kWaveSize != thread / kWaveSize;
        f.pc = pc < other_pc ? pc : other_pc;
        f.pc2 = pc < other_pc ? other_pc : pc;
        worker.record(f);
    }

    bool written(const LdsCell& cell) const { return cell.write_epoch >= worker.block_epoch; }
    bool races_with_write(const LdsCell& cell) const {
        return cell.write_epoch == worker.epoch && cell.writer != thread;
    }

    void note_reader(LdsCell& cell) const {
        if (cell.read_epoch != worker.epoch) {
            cell.read_epoch = worker.epoch;
            cell.reader = thread;
            cell.read_pc = pc;
            cell.has_reader2 = false;
        } else if (cell.reader != thread) {
            // Two readers of different waves prove a race with any writer; so the
            // second is replaced only by one that is in another wave than the first.
            const bool other_wave = cell.reader / kWaveSize != thread / kWaveSize;
            const bool has_other_wave =
                cell.has_reader2 && cell.reader / kWaveSize != cell.reader2 / kWaveSize;
            if (cell.has_reader2 && (has_other_wave || !other_wave)) return;
            cell.has_reader2 = true;
            cell.reader2 = thread;
            cell.read2_pc = pc;
        }
    }

    // Reports a race with a reader of this epoch, one of another wave if there is.
    bool race_with_readers(const LdsCell& cell) const {
        if (cell.read_epoch != worker.epoch) return false;
        const bool first = cell.reader != thread;
        const bool second = cell.has_reader2 && cell.reader2 != thread;
        const bool second_crosses = second && cell.reader2 / kWaveSize != thread / kWaveSize;
        const bool first_crosses = first && cell.reader / kWaveSize != thread / kWaveSize;
        if (second && (second_crosses || !first) && !first_crosses) {
            race(cell.reader2, cell.read2_pc);
        } else if (first) {
            race(cell.reader, cell.read_pc);
        }
        return first || second;
    }

    bool is_settled() const {
        const uint32_t first = settled[0];
        if (first != settled_for_all(worker) && first != settled_for_wave(worker, thread))
            return false;
        for (size_t i = 1; i < bytes; ++i)
            if (settled[i] != first) return false;
        return true;
    }

    void read() const {
        if (is_settled()) return;
        bool reported = false;
        for (size_t i = 0; i < bytes; ++i) {
            LdsCell& cell = cells[i];
            if (!reported && !written(cell)) {
                worker.record(found(FindingKind::UninitialisedLds));
                reported = true;
            } else if (!reported && races_with_write(cell)) {
                race(cell.writer, cell.write_pc);
                reported = true;
            }
            note_reader(cell);
            if (cell.has_reader2 && written(cell) && cell.write_epoch != worker.epoch) {
                const bool one_wave = cell.reader / kWaveSize == cell.reader2 / kWaveSize;
                settled[i] = one_wave ? settled_for_wave(worker, cell.reader)
                                      : settled_for_all(worker);
            }
        }
    }

    void write(Kind kind) const {
        const bool atomic = kind != Kind::Write;
        bool reported = false;
        for (size_t i = 0; i < bytes; ++i) {
            LdsCell& cell = cells[i];
            if (!reported && kind == Kind::Atomic && !written(cell)) {
                worker.record(found(FindingKind::UninitialisedLds));
                reported = true;
            }
            if (!reported && races_with_write(cell) && !(atomic && cell.atomic)) {
                race(cell.writer, cell.write_pc);
                reported = true;
            }
            if (!reported) reported = race_with_readers(cell);
            settled[i] = 0;
            cell.write_epoch = worker.epoch;
            cell.writer = thread;
            cell.write_pc = pc;
            cell.atomic = atomic;
        }
    }
};

// Notes that `block` stored to a byte, or read it: keeps the two lowest blocks of this launch.
void note_block(uint64_t* cell, uint32_t block) {
    const uint32_t id = block + 1;
    uint64_t seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        const auto low = static_cast<uint32_t>(seen), high = static_cast<uint32_t>(seen >> 32);
        uint64_t next;
        if (seen == 0 || low >= kUpdatedUnset) {
            next = id;
        } else if (low == id || high == id) {
            return;
        } else if (id < low) {
            next = uint64_t{low} << 32 | id;
        } else if (high == 0 || id < high) {
            next = uint64_t{id} << 32 | low;
        } else {
            return;
        }
        if (__atomic_compare_exchange_n(cell, &seen, next, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return;
    }
}

// Notes an atomic on a byte. Atomics of different blocks may meet, so their blocks are not kept. True
// when it used a byte that held nothing before the launch and that nobody stored to: not of the first
// atomic alone but of all, so that the order of blocks does not matter.
bool note_atomic(uint64_t* cell, bool exchange, bool initialised) {
    const bool sets = exchange || initialised;
    uint64_t seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        const bool unset = seen == 0 || seen == kUpdatedUnset;
        if (!unset) return false;
        const uint64_t next = sets ? kStoredEarlier : kUpdatedUnset;
        if (seen == next || __atomic_compare_exchange_n(cell, &seen, next, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED))
            return !sets;
    }
}

void check_global(Worker& worker, const uint8_t* address, size_t bytes, const void* pc,
                  Kind kind) {
    const SessionOptions& o = worker.session->options;
    const auto inside = [&](const Buffer& b) {
        return address >= b.data && address + bytes <= b.data + b.bytes;
    };
    if (worker.last_buffer >= o.buffer_count || !inside(o.buffers[worker.last_buffer])) {
        const int index = worker.session->buffer_at(address);
        if (index >= 0) worker.last_buffer = static_cast<size_t>(index);
    }
    const Access access = kind == Kind::Read ? Access::Read : Access::Write;
    const Buffer& buffer = o.buffers[worker.last_buffer];
    const bool allowed = inside(buffer) && (access == Access::Read || buffer.writable != 0);
    if (!allowed) report_bad_access(worker, address, access, pc);
    if (buffer.stores == nullptr) return;
    uint64_t* cell = buffer.stores + (address - buffer.data);
    bool unset = false;
    if (kind == Kind::Read) {
        for (size_t i = 0; i < bytes; ++i) {
            note_block(&buffer.loads[address - buffer.data + i], static_cast<uint32_t>(worker.block));
            unset |= __atomic_load_n(cell + i, __ATOMIC_RELAXED) == 0;
        }
        unset &= buffer.initialised == 0;
    } else {
        for (size_t i = 0; i < bytes; ++i) {
            if (kind == Kind::Write) {
                note_block(cell + i, static_cast<uint32_t>(worker.block));
            } else {
                unset |= note_atomic(cell + i, kind == Kind::Exchange, buffer.initialised != 0);
            }
        }
    }
    if (!unset) return;
    Finding f = worker.locate(FindingKind::UninitialisedBuffer);
    f.buffer = static_cast<int32_t>(&buffer - o.buffers);
    f.pc = relative(worker, pc);
    f.offset = address - buffer.data;
    worker.record(f);
}

[[noreturn]] void report_lds_overrun(Worker& worker, int symbol, const void* pc) {
    Finding f = worker.locate(FindingKind::LdsOverrun);
    f.symbol = symbol;
    f.pc = relative(worker, pc);
    worker.record(f);
    worker.abandon_block();
}

// Accesses outside LDS and the arena are the kernel's own locals and arguments.
void check(const void* pointer, size_t bytes, const void* pc, Kind kind) {
    Worker* worker = this_worker;
    if (worker == nullptr || !worker->in_kernel) return;
    const auto* address = static_cast<const uint8_t*>(pointer);
    const auto thread = static_cast<uint16_t>(worker->current->index);
    const auto pc32 = static_cast<uint32_t>(relative(*worker, pc));

    const size_t in_static = address - worker->lds_base;
    const uint8_t* mapping = worker->dynamic_mapping();
    size_t cell;
    bool dynamic = false;
    if (in_static < worker->lds_bytes) {
        if (in_static + bytes > worker->lds_bytes)
            report_lds_overrun(*worker, symbol_at(*worker, address), pc);
        cell = in_static;
    } else if (static_cast<size_t>(address - mapping) < kDynamicLdsMapping) {
        const size_t offset = address - worker->dynamic_lds;
        if (offset + bytes > worker->dynamic_lds_bytes || offset > worker->dynamic_lds_bytes)
            report_lds_overrun(*worker, kDynamicSymbol, pc);
        cell = worker->lds_bytes + offset;
        dynamic = true;
    } else {
        if (worker->session->in_arena(address)) check_global(*worker, address, bytes, pc, kind);
        return;
    }
    const LdsAccess access{*worker, address,  &worker->shadow[cell], &worker->settled[cell],
                           bytes,   pc32,     thread,                dynamic};
    if (kind == Kind::Read) {
        access.read();
    } else {
        access.write(kind);
    }
}

} // namespace

void check_read(const void* p, size_t bytes, const void* pc) { check(p, bytes, pc, Kind::Read); }
void check_write(const void* p, size_t bytes, const void* pc) { check(p, bytes, pc, Kind::Write); }
void check_atomic(const void* p, size_t bytes, const void* pc) {
    check(p, bytes, pc, Kind::Atomic);
}
void check_exchange(const void* p, size_t bytes, const void* pc) {
    check(p, bytes, pc, Kind::Exchange);
}

void report_array_overrun(const char* type, uint32_t line, const void* pc) {
    Worker* worker = this_worker;
    if (worker == nullptr || !worker->in_kernel) return;
    Finding f = worker->locate(FindingKind::LdsOverrun);
    f.line = line;
    f.pc = relative(*worker, pc);
    f.text = type;
    worker->record(f);
    worker->abandon_block();
}

void report_bad_access(Worker& worker, const uint8_t* address, Access access, const void* pc) {
    const SessionOptions& o = worker.session->options;
    Finding f = worker.locate(FindingKind::WildAccess);
    f.detail = static_cast<uint32_t>(access);
    f.pc = relative(worker, pc);
    f.offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(address));
    const uint8_t* mapping = worker.dynamic_mapping();
    if (worker.session->in_arena(address) && o.buffer_count != 0) {
        const int index = worker.session->buffer_at(address);
        const Buffer& buffer = o.buffers[index];
        f.buffer = index;
        f.offset = address - buffer.data;
        const bool inside = address >= buffer.data && address < buffer.data + buffer.bytes;
        // A store that begins in an output and crosses its end modifies no input.
        const bool input = inside && buffer.writable == 0;
        f.kind = input && access != Access::Read ? FindingKind::InputModified
                                                 : FindingKind::OutOfBounds;
    } else if (static_cast<size_t>(address - mapping) < kDynamicLdsMapping) {
        f.kind = FindingKind::LdsOverrun;
        f.symbol = kDynamicSymbol;
        f.offset = 0;
    } else if (worker.is_stack_guard(address)) {
        f.kind = FindingKind::StackOverflow;
        f.offset = 0;
    }
    worker.record(f);
    worker.abandon_block();
}

} // namespace assay_emu
