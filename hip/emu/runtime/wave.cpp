// Wave operations: shuffles, votes and matrix instructions among the 64 lanes of a wave.
#include "matrix.h"
#include "session.h"
#include "worker.h"

#include <algorithm>

namespace assay_emu {

namespace {

// The lane, within the wave, that a shuffle of `self` reads from.
unsigned source_lane(const WaveCall& call, unsigned self) {
    const unsigned width = call.width;
    const unsigned group = self & ~(width - 1);
    const unsigned operand = static_cast<unsigned>(call.operand);
    switch (call.op) {
    case WaveOp::Shfl:
        return group + (operand & (width - 1));
    case WaveOp::ShflUp:
        return operand > self - group ? self : self - operand;
    case WaveOp::ShflDown:
        return self - group + operand >= width ? self : self + operand;
    case WaveOp::ShflXor: {
        const unsigned other = self ^ operand;
        return other >= group + width ? self : other;
    }
    default:
        return self;
    }
}

bool is_shuffle(WaveOp op) { return op <= WaveOp::ShflXor; }

bool is_matrix(WaveOp op) { return op == WaveOp::Mfma || op == WaveOp::Mmac; }

} // namespace

// Resolves one operation for the lanes [first, last) of a wave: of the operations
// that lanes wait at, the one on the lowest source line. In structured code that is
// the one inside the loop or the first branch, which the hardware also runs before
// the lanes meet again; lanes elsewhere are inactive.
void Worker::resolve_wave(unsigned first, unsigned last) {
    const WaveCall* chosen = nullptr;
    for (unsigned i = first; i < last; ++i) {
        if (lanes[i].state != LaneState::AtWaveOp) continue;
        const WaveCall& call = waves[i].call;
        if (chosen == nullptr || call.line < chosen->line ||
            (call.line == chosen->line && call.op < chosen->op))
            chosen = &call;
    }
    if (chosen == nullptr) return;

    const WaveOp op = chosen->op;
    const uint32_t line = chosen->line;
    uint64_t active = 0, votes = 0;
    for (unsigned i = first; i < last; ++i) {
        const WaveCall& call = waves[i].call;
        if (lanes[i].state != LaneState::AtWaveOp || call.op != op || call.line != line) continue;
        active |= uint64_t{1} << (i - first);
        if (call.value != 0) votes |= uint64_t{1} << (i - first);
    }

    if (is_matrix(op)) {
        resolve_matrix(op, first, active);
        return;
    }
    for (unsigned i = first; i < last; ++i) {
        const unsigned self = i - first;
        if ((active >> self & 1) == 0) continue;
        Lane& lane = lanes[i];
        uint64_t& result = waves[i].result;
        lane.state = LaneState::Ready;
        --at_wave_op;
        if (op == WaveOp::Ballot) {
            result = votes;
        } else if (op == WaveOp::Any) {
            result = votes != 0;
        } else if (op == WaveOp::All) {
            result = votes == active;
        } else if (is_shuffle(op)) {
            const unsigned source = source_lane(waves[i].call, self);
            if (active >> source & 1) {
                result = waves[first + source].call.value;
                continue;
            }
            result = ~uint64_t{0};
            current = &lane;
            Finding f = locate(FindingKind::InactiveLane);
            f.detail = static_cast<uint32_t>(op);
            f.line = line;
            record(f);
            current = nullptr;
        }
    }
}

// The hardware reads the registers of all 64 lanes whatever the execution mask says, so a
// matrix instruction that not all of them stand at has operands that nobody provided.
void Worker::resolve_matrix(WaveOp op, unsigned first, uint64_t active) {
    MatrixRegisters* registers[kWaveSize] = {};
    Lane* some = nullptr;
    for (unsigned self = 0; self < kWaveSize; ++self) {
        if ((active >> self & 1) == 0) continue;
        Lane& lane = lanes[first + self];
        lane.state = LaneState::Ready;
        --at_wave_op;
        registers[self] = reinterpret_cast<MatrixRegisters*>(waves[first + self].call.value);
        if (some == nullptr) some = &lane;
    }
    if (active == ~uint64_t{0}) {
        multiply(op, registers, session->options.ulps);
        return;
    }
    for (MatrixRegisters* lane : registers)
        if (lane != nullptr) std::fill_n(lane->d, 4, __builtin_nanf(""));
    current = some;
    Finding f = locate(FindingKind::InactiveLane);
    f.detail = static_cast<uint32_t>(op);
    f.line = waves[some->index].call.line;
    record(f);
    current = nullptr;
}

} // namespace assay_emu
