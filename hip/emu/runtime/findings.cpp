#include <algorithm>
#include <cstring>
#include <tuple>

#include "session.h"
#include "worker.h"

namespace assay_emu {

namespace {

auto identity(const Finding& f) {
    return std::make_tuple(f.kind, f.detail, f.buffer, f.symbol, f.pc, f.pc2, f.line, f.line2);
}

auto position(const Finding& f) {
    return std::make_tuple(f.launch, f.block, f.thread, f.offset);
}

size_t hash(const Finding& f) {
    uint64_t h = 0;
    const uint64_t parts[] = {static_cast<uint64_t>(f.kind), f.detail,
                              static_cast<uint64_t>(f.buffer), static_cast<uint64_t>(f.symbol),
                              f.pc, f.pc2, f.line, f.line2};
    for (uint64_t part : parts) h = (h ^ part) * 0x9e3779b97f4a7c15ull + (h >> 31);
    return static_cast<size_t>(h >> 17);
}

// Adds `other` to `into`; they are the same finding.
void combine(Finding& into, const Finding& other) {
    const uint64_t count = into.count + other.count;
    if (position(other) < position(into)) into = other;
    into.count = count;
}

} // namespace

void FindingTable::record(const Finding& finding) {
    // Sites are code locations, so a kernel can't have nearly as many.
    if (used_ >= kSlots - 1) return;
    for (size_t i = hash(finding) % kSlots;; i = (i + 1) % kSlots) {
        Finding& slot = slots_[i];
        if (slot.count == 0) {
            slot = finding;
            ++used_;
            return;
        }
        if (identity(slot) == identity(finding)) {
            combine(slot, finding);
            return;
        }
    }
}

void FindingTable::drain(std::vector<Finding>& into) {
    if (used_ == 0) return;
    for (Finding& slot : slots_) {
        if (slot.count != 0) into.push_back(slot);
        slot.count = 0;
    }
    used_ = 0;
}

// The same findings in the same order whatever the number of workers was.
void Session::merge_findings() {
    std::sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
        return std::make_tuple(identity(a), position(a)) <
               std::make_tuple(identity(b), position(b));
    });
    std::vector<Finding> merged;
    for (const Finding& finding : findings) {
        if (!merged.empty() && identity(merged.back()) == identity(finding)) {
            combine(merged.back(), finding);
        } else {
            merged.push_back(finding);
        }
    }
    findings = std::move(merged);
}

// Two different blocks of which one stored to a byte and the other read it, if there are such.
static bool read_elsewhere(uint64_t stores, uint64_t loads, uint32_t& writer, uint32_t& reader) {
    for (const uint32_t w : {static_cast<uint32_t>(stores), static_cast<uint32_t>(stores >> 32)}) {
        for (const uint32_t r : {static_cast<uint32_t>(loads), static_cast<uint32_t>(loads >> 32)}) {
            if (w == 0 || w >= kUpdatedUnset || r == 0 || w == r) continue;
            writer = w;
            reader = r;
            return true;
        }
    }
    return false;
}

// Blocks of a launch are not ordered: where one stores what another stores or reads, the result
// depends on chance.
void Session::find_conflicts_of_blocks(const LaunchRequest& request) {
    for (size_t i = 0; i < options.buffer_count; ++i) {
        const Buffer& buffer = options.buffers[i];
        if (buffer.stores == nullptr) continue;
        Finding overlap{}, race{};
        const auto note = [](Finding& finding, size_t byte, uint32_t first, uint32_t second) {
            if (finding.count++ != 0) return;
            finding.offset = static_cast<int64_t>(byte);
            finding.block = first - 1;
            finding.block2 = second - 1;
        };
        for (size_t byte = 0; byte < buffer.bytes; ++byte) {
            uint64_t& cell = buffer.stores[byte];
            const auto first = static_cast<uint32_t>(cell);
            const auto second = static_cast<uint32_t>(cell >> 32);
            if (second != 0) note(overlap, byte, first, second);
            uint32_t writer, reader;
            if (read_elsewhere(cell, buffer.loads[byte], writer, reader))
                note(race, byte, writer, reader);
            if (cell != 0) cell = kStoredEarlier;
            buffer.loads[byte] = 0;
        }
        const auto report = [&](Finding& finding, FindingKind kind) {
            if (finding.count == 0) return;
            finding.kind = kind;
            finding.buffer = static_cast<int32_t>(i);
            finding.symbol = -1;
            finding.launch = launches;
            const auto place = [&](uint64_t block, uint32_t at[3]) {
                at[0] = static_cast<uint32_t>(block % request.grid.x);
                at[1] = static_cast<uint32_t>(block / request.grid.x % request.grid.y);
                at[2] = static_cast<uint32_t>(block / request.grid.x / request.grid.y);
            };
            place(finding.block, finding.block_at);
            place(finding.block2, finding.block2_at);
            findings.push_back(finding);
        };
        report(overlap, FindingKind::OverlappingStores);
        report(race, FindingKind::GlobalRace);
    }
}

} // namespace assay_emu
