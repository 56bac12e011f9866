#include "fiber.h"

#ifdef ASSAY_EMU_OWN_SWITCH

// The six callee-saved registers of the System V ABI go on the stack. The switch
// ends in a jump instead of a `ret`: the return would always be mispredicted,
// since it leaves through another stack than it was called on.
asm(R"(
    .text
    .globl assay_emu_switch
    .hidden assay_emu_switch
    .type assay_emu_switch, @function
assay_emu_switch:
    movq %rdx, %rax
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size assay_emu_switch, .-assay_emu_switch
)");

extern "C" uint64_t assay_emu_switch(void** from, void** to, uint64_t result);

namespace assay_emu {

void prepare(Context& context, uint8_t* base, size_t bytes, void (*entry)()) {
    auto* top = reinterpret_cast<uint64_t*>(base + bytes);
    // The ABI wants rsp = 8 (mod 16) on entry, as if a call had pushed an address.
    *--top = 0;
    *--top = reinterpret_cast<uint64_t>(entry);
    for (int i = 0; i < 6; ++i) *--top = 0;
    context = top;
}

uint64_t switch_context(Context& from, Context& to, uint64_t result) {
    return assay_emu_switch(&from, &to, result);
}

} // namespace assay_emu

#else

namespace assay_emu {

void prepare(Context& context, uint8_t* base, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = base;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

// What is passed on. Reached through a call that is not inlined, for a fiber's OS thread is its worker's.
static thread_local uint64_t passed;

uint64_t switch_context(Context& from, Context& to, uint64_t result) {
    passed = result;
    swapcontext(&from, &to);
    return passed;
}

} // namespace assay_emu

#endif
