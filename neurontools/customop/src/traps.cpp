// Ways out of a kernel that are not a return: the linker redirects them here (--wrap), so that each can be reported.
#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
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
  // A return address is one instruction behind its call.
  for (int i = skip; i < count && reply->frame_count < abi::kMaxFrames; ++i)
    reply->frames[reply->frame_count++] = reinterpret_cast<std::uintptr_t>(addresses[i]) - 1;
}

}  // namespace neurontools

/// Called instead of ending the process; it does not return. Without one the real function runs.
NEURONTOOLS_EXPORT void neurontools_set_fatal_hook(FatalHook hook) { fatal_hook = hook; }

extern "C" {

[[noreturn]] void __real___cxa_throw(void* object, std::type_info* type, void (*destructor)(void*));
[[noreturn]] void __real_abort();

[[noreturn]] void __wrap___cxa_throw(void* object, std::type_info* type, void (*destructor)(void*)) {
  neurontools::capture_frames(1);
  __real___cxa_throw(object, type, destructor);
}

[[noreturn]] void __wrap_abort() {
  report_fatal("abort", "abort() called");
  __real_abort();
}

[[noreturn]] void __wrap_exit(int code) {
  char message[64];
  std::snprintf(message, sizeof message, "exit(%d) called", code);
  report_fatal("exit", message);
  _exit(code);
}

[[noreturn]] void __wrap___assert_fail(const char* expression, const char* file, unsigned line, const char* function) {
  char message[400];
  std::snprintf(message, sizeof message, "assertion `%s' failed in %s (%s:%u)", expression, function, file, line);
  report_fatal("assert", message);
  __real_abort();
}
}
