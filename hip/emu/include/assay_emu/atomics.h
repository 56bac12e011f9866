// Atomics on LDS and global memory. Blocks run on several OS threads, so these are
// the host's own. The order in which float additions arrive from different blocks
// is not fixed, on the emulator as on a device.
#pragma once

namespace assay_emu {

#ifdef ASSAY_EMU_CHECKED
#define ASSAY_EMU_ATOMIC __attribute__((noinline, no_sanitize_thread))
#define ASSAY_EMU_NOTE_ATOMIC(how, p, n) ::assay_emu::table->how(p, n, __builtin_return_address(0))
#else
#define ASSAY_EMU_ATOMIC inline
#define ASSAY_EMU_NOTE_ATOMIC(how, p, n) ((void)0)
#endif

// Replaces *p by f(*p) in one step and returns what was there. Compares bits, so
// that a NaN or a -0 does not make it spin. `kUses`: whether f uses its argument.
template <bool kUses = true, class T, class F>
ASSAY_EMU_ATOMIC T atomic_update(T* p, F f) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are 4 or 8 bytes wide");
    using Bits = typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type;
    if (kUses) {
        ASSAY_EMU_NOTE_ATOMIC(atomic, p, sizeof(T));
    } else {
        ASSAY_EMU_NOTE_ATOMIC(exchange, p, sizeof(T));
    }
    Bits* cell = reinterpret_cast<Bits*>(p);
    Bits seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        T old;
        memcpy(&old, &seen, sizeof(T));
        const T next = f(old);
        Bits wanted;
        memcpy(&wanted, &next, sizeof(T));
        if (__atomic_compare_exchange_n(cell, &seen, wanted, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            return old;
    }
}

template <class T>
struct Identity {
    using type = T;
};

} // namespace assay_emu

// The second argument does not take part in deduction: atomicAdd(&u, 1) is fine.
#define ASSAY_EMU_DEFINE_ATOMIC(name, expression)                               \
    template <class T>                                                          \
    inline T name(T* p, typename assay_emu::Identity<T>::type v) {              \
        return assay_emu::atomic_update(p, [v](T old) -> T { return expression; }); \
    }

ASSAY_EMU_DEFINE_ATOMIC(atomicAdd, old + v)
ASSAY_EMU_DEFINE_ATOMIC(atomicSub, old - v)
ASSAY_EMU_DEFINE_ATOMIC(atomicMin, v < old ? v : old)
ASSAY_EMU_DEFINE_ATOMIC(atomicMax, v > old ? v : old)
ASSAY_EMU_DEFINE_ATOMIC(atomicAnd, old & v)
ASSAY_EMU_DEFINE_ATOMIC(atomicOr, old | v)
ASSAY_EMU_DEFINE_ATOMIC(atomicXor, old ^ v)
#undef ASSAY_EMU_DEFINE_ATOMIC

template <class T>
inline T atomicExch(T* p, typename assay_emu::Identity<T>::type v) {
    return assay_emu::atomic_update<false>(p, [v](T) -> T { return v; });
}

template <class T>
inline T atomicCAS(T* p, typename assay_emu::Identity<T>::type expected,
                   typename assay_emu::Identity<T>::type desired) {
    return assay_emu::atomic_update(
        p, [=](T old) -> T { return old == expected ? desired : old; });
}
