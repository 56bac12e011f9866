// What -fsanitize=thread and -fsanitize=bounds call. No sanitizer library is
// linked: these definitions take its place and hand every access to the runtime.
#pragma once

#define ASSAY_EMU_CALLBACK \
    extern "C" __attribute__((used, visibility("hidden"), no_sanitize_thread)) void

#define ASSAY_EMU_ACCESS(bytes)                                             \
    ASSAY_EMU_CALLBACK __tsan_read##bytes(void* p) {                        \
        ::assay_emu::table->read(p, bytes, __builtin_return_address(0));    \
    }                                                                       \
    ASSAY_EMU_CALLBACK __tsan_write##bytes(void* p) {                       \
        ::assay_emu::table->write(p, bytes, __builtin_return_address(0));   \
    }                                                                       \
    ASSAY_EMU_CALLBACK __tsan_unaligned_read##bytes(void* p) {              \
        ::assay_emu::table->read(p, bytes, __builtin_return_address(0));    \
    }                                                                       \
    ASSAY_EMU_CALLBACK __tsan_unaligned_write##bytes(void* p) {             \
        ::assay_emu::table->write(p, bytes, __builtin_return_address(0));   \
    }

ASSAY_EMU_ACCESS(1)
ASSAY_EMU_ACCESS(2)
ASSAY_EMU_ACCESS(4)
ASSAY_EMU_ACCESS(8)
ASSAY_EMU_ACCESS(16)
#undef ASSAY_EMU_ACCESS

ASSAY_EMU_CALLBACK __tsan_read_range(void* p, size_t bytes) {
    ::assay_emu::table->read(p, bytes, __builtin_return_address(0));
}
ASSAY_EMU_CALLBACK __tsan_write_range(void* p, size_t bytes) {
    ::assay_emu::table->write(p, bytes, __builtin_return_address(0));
}
ASSAY_EMU_CALLBACK __tsan_init() {}
ASSAY_EMU_CALLBACK __tsan_func_entry(void*) {}
ASSAY_EMU_CALLBACK __tsan_func_exit() {}

// Clang turns memcpy, memmove and memset into these.
extern "C" __attribute__((used, visibility("hidden"), no_sanitize_thread)) void*
__tsan_memcpy(void* to, const void* from, size_t bytes) {
    ::assay_emu::table->read(from, bytes, __builtin_return_address(0));
    ::assay_emu::table->write(to, bytes, __builtin_return_address(0));
    return __builtin_memmove(to, from, bytes);
}
extern "C" __attribute__((used, visibility("hidden"), no_sanitize_thread)) void*
__tsan_memmove(void* to, const void* from, size_t bytes) {
    return __tsan_memcpy(to, from, bytes);
}
extern "C" __attribute__((used, visibility("hidden"), no_sanitize_thread)) void*
__tsan_memset(void* to, int value, size_t bytes) {
    ::assay_emu::table->write(to, bytes, __builtin_return_address(0));
    return __builtin_memset(to, value, bytes);
}

// Layout of the bounds sanitizer's static data, the same for g++ and clang++.
namespace assay_emu {
struct UbsanType {
    uint16_t kind, info;
    char name[1];
};
struct UbsanOutOfBounds {
    const char* file;
    uint32_t line, column;
    const UbsanType* array;
    const UbsanType* index;
};
} // namespace assay_emu

ASSAY_EMU_CALLBACK __ubsan_handle_out_of_bounds(void* data, void*) {
    const auto& where = *static_cast<const ::assay_emu::UbsanOutOfBounds*>(data);
    ::assay_emu::table->array_overrun(where.array->name, where.line, __builtin_return_address(0));
}
