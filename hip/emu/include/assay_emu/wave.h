// Wave operations of a 64-lane wave. Each is resolved by the scheduler once every
// lane of the wave that is going to take part stands at it.
#pragma once

namespace assay_emu {

template <class T>
inline T shuffle(WaveOp op, T value, int operand, int width, uint32_t line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
    WaveCall call{op, line, 0, operand, static_cast<uint32_t>(width)};
    memcpy(&call.value, &value, sizeof(T));
    const uint64_t moved = table->wave(&call);
    memcpy(&value, &moved, sizeof(T));
    return value;
}

inline uint64_t vote(WaveOp op, bool predicate, uint32_t line) {
    const WaveCall call{op, line, predicate, 0, kWaveSize};
    return table->wave(&call);
}

} // namespace assay_emu

template <class T>
inline T __shfl(T v, int lane, int width = 64, int line = __builtin_LINE()) {
    return assay_emu::shuffle(assay_emu::WaveOp::Shfl, v, lane, width, line);
}
template <class T>
inline T __shfl_up(T v, unsigned delta, int width = 64, int line = __builtin_LINE()) {
    return assay_emu::shuffle(assay_emu::WaveOp::ShflUp, v, static_cast<int>(delta), width, line);
}
template <class T>
inline T __shfl_down(T v, unsigned delta, int width = 64, int line = __builtin_LINE()) {
    return assay_emu::shuffle(assay_emu::WaveOp::ShflDown, v, static_cast<int>(delta), width, line);
}
template <class T>
inline T __shfl_xor(T v, int mask, int width = 64, int line = __builtin_LINE()) {
    return assay_emu::shuffle(assay_emu::WaveOp::ShflXor, v, mask, width, line);
}

inline unsigned long long __ballot(int predicate, int line = __builtin_LINE()) {
    return assay_emu::vote(assay_emu::WaveOp::Ballot, predicate != 0, line);
}
inline int __any(int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(assay_emu::vote(assay_emu::WaveOp::Any, predicate != 0, line));
}
inline int __all(int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(assay_emu::vote(assay_emu::WaveOp::All, predicate != 0, line));
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __lane_id() {
    const auto& view = assay_emu::lane_view();
    return (view.thread_idx.x +
            view.block_dim.x * (view.thread_idx.y + view.block_dim.y * view.thread_idx.z)) %
           assay_emu::kWaveSize;
}
