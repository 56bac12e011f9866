// Switching between stacks.
#pragma once

#include <cstddef>
#include <cstdint>

// ASSAY_EMU_UCONTEXT selects the portable version on x86-64 too, to test it.
#if defined(__x86_64__) && !defined(ASSAY_EMU_UCONTEXT)
#define ASSAY_EMU_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace assay_emu {

#ifdef ASSAY_EMU_OWN_SWITCH
using Context = void*; // the stack pointer; all else is on the stack
#else
using Context = ucontext_t;
#endif

// Makes `context` start `entry` on the stack [base, base + bytes). `entry` must
// never return.
void prepare(Context& context, uint8_t* base, size_t bytes, void (*entry)());

// Saves the running context in `from` and continues `to`, whose own call of this returns `result`.
uint64_t switch_context(Context& from, Context& to, uint64_t result);

} // namespace assay_emu
