// Exits from a kernel other than return: the linker redirects them here (--wrap), so each can be reported. A linker
// without --wrap uses the functions of this file, because they are in the library itself.
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <typeinfo>

#include "runtime.hpp"

using FatalHook = void (*)(const char* kind, const char* message);

namespace {
FatalHook fatal_hook = nullptr;

void report_fatal(const char* kind, const char* message) {
  if (fatal_hook != nullptr) fatal_hook(kind, message);
  std::fprintf(stderr, "custom operator: %s\n", message);
}
}  // namespace

namespace neurontools {

void capture_frames(int skip) {
  if (reply == nullptr) return;
  void* addresses[abi::kMaxFrames + 8];
  const int count = backtrace(addresses, abi::kMaxFrames + 8);
  reply->frame_count = 0;
  // A return address is one instruction after its call.
  for (int i = skip; i < count && reply->frame_count < abi::kMaxFrames; ++i)
    reply->frames[reply->frame_count++] = reinterpret_cast<std::uintptr_t>(addresses[i]) - 1;
}

namespace {

// Defined by the linker: the address range of this library.
extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

std::size_t append_place(std::uintptr_t address, char* text, std::size_t size, std::size_t used) {
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(&__ehdr_start);
  if (address < begin || address >= reinterpret_cast<std::uintptr_t>(&_end) || used + 16 > size) return used;
  const unsigned long long offset = address - begin;
  return used + static_cast<std::size_t>(std::snprintf(text + used, size - used, used == 0 ? "%llx" : ",%llx", offset));
}

}  // namespace

void list_places(char* text, std::size_t size) {
  void* addresses[abi::kMaxFrames];
  const int count = backtrace(addresses, abi::kMaxFrames);
  std::size_t used = 0;
  text[0] = '\0';
  for (int i = 1; i < count; ++i) used = append_place(reinterpret_cast<std::uintptr_t>(addresses[i]) - 1, text, size, used);
}

void list_place(const void* place, char* text, std::size_t size) {
  text[0] = '\0';
  append_place(reinterpret_cast<std::uintptr_t>(place) - 1, text, size, 0);
}

}  // namespace neurontools

/// Called instead of ending the process, and does not return. Without a hook the real function runs.
NEURONTOOLS_EXPORT void neurontools_set_fatal_hook(FatalHook hook) { fatal_hook = hook; }

extern "C" {

#if defined(NEURONTOOLS_NO_WRAP)
// The declarations in the C library's headers have no [[noreturn]].
#define NEURONTOOLS_NORETURN __attribute__((noreturn))
#define NEURONTOOLS_TRAP(name) name

[[noreturn]] static void end_process(int code) {
  syscall(SYS_exit_group, code);
  __builtin_trap();
}
[[noreturn]] static void end_by_abort() { end_process(134); }
#else
#define NEURONTOOLS_NORETURN [[noreturn]]
#define NEURONTOOLS_TRAP(name) __wrap_##name

[[noreturn]] void __real___cxa_throw(void* object, std::type_info* type, void (*destructor)(void*));
[[noreturn]] void __real_abort();
[[noreturn]] void __real__exit(int code);

[[noreturn]] static void end_process(int code) { __real__exit(code); }
[[noreturn]] static void end_by_abort() { __real_abort(); }

[[noreturn]] void __wrap___cxa_throw(void* object, std::type_info* type, void (*destructor)(void*)) {
  neurontools::capture_frames(1);
  __real___cxa_throw(object, type, destructor);
}
#endif

NEURONTOOLS_NORETURN void NEURONTOOLS_TRAP(abort)() noexcept {
  report_fatal("abort", "abort() called");
  end_by_abort();
}

NEURONTOOLS_NORETURN void NEURONTOOLS_TRAP(_exit)(int code) {
  char message[64];
  std::snprintf(message, sizeof message, "_exit(%d) called", code);
  report_fatal("exit", message);
  end_process(code);
}

NEURONTOOLS_NORETURN void NEURONTOOLS_TRAP(exit)(int code) noexcept {
  char message[64];
  std::snprintf(message, sizeof message, "exit(%d) called", code);
  report_fatal("exit", message);
  end_process(code);
}

NEURONTOOLS_NORETURN void NEURONTOOLS_TRAP(__assert_fail)(const char* expression, const char* file, unsigned line,
                                                  const char*) noexcept {
  char message[400];
  const char* slash = std::strrchr(file, '/');
  std::snprintf(message, sizeof message, "assertion `%s' failed (%s:%u)", expression, slash == nullptr ? file : slash + 1,
                line);
  report_fatal("assert", message);
  end_by_abort();
}
}
