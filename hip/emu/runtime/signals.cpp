// A fault in a kernel, and the watchdog's request to stop one, arrive as signals.
// Both end in the scheduler: the handler switches stacks and never returns. The
// handlers run with their signal unblocked (SA_NODEFER), so nothing needs undoing.
#include <signal.h>
#include <ucontext.h>

#include <mutex>

#include "session.h"

namespace assay_emu {

namespace {

struct sigaction previous_segv, previous_bus;

Access access_kind(const ucontext_t& context) {
#if defined(__x86_64__)
    constexpr greg_t kWriteBit = 2; // of the page-fault error code
    return context.uc_mcontext.gregs[REG_ERR] & kWriteBit ? Access::Write : Access::Read;
#else
    (void)context;
    return Access::Unknown;
#endif
}

const void* program_counter(const ucontext_t& context) {
#if defined(__x86_64__)
    return reinterpret_cast<const void*>(context.uc_mcontext.gregs[REG_RIP] + 1);
#elif defined(__aarch64__)
    return reinterpret_cast<const void*>(context.uc_mcontext.pc + 1);
#else
    (void)context;
    return nullptr;
#endif
}

void on_fault(int signal, siginfo_t* info, void* raw) {
    Worker* worker = this_worker;
    if (worker != nullptr && worker->in_kernel) {
        const auto& context = *static_cast<const ucontext_t*>(raw);
        report_bad_access(*worker, static_cast<const uint8_t*>(info->si_addr),
                          access_kind(context), program_counter(context));
    }
    // Not ours: hand it to whoever handled it before, by faulting once more.
    sigaction(signal, signal == SIGSEGV ? &previous_segv : &previous_bus, nullptr);
}

void on_cancel(int) {
    Worker* worker = this_worker;
    if (worker == nullptr || !worker->in_kernel || !worker->session->cancelled.load()) return;
    worker->abandon_block();
}

} // namespace

int cancel_signal() { return SIGRTMIN + 6; }

void install_signal_handlers() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action {};
        sigemptyset(&action.sa_mask);
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        action.sa_sigaction = on_fault;
        sigaction(SIGSEGV, &action, &previous_segv);
        sigaction(SIGBUS, &action, &previous_bus);
        struct sigaction cancel {};
        sigemptyset(&cancel.sa_mask);
        cancel.sa_flags = SA_ONSTACK | SA_NODEFER | SA_RESTART;
        cancel.sa_handler = on_cancel;
        sigaction(cancel_signal(), &cancel, nullptr);
    });
}

} // namespace assay_emu
