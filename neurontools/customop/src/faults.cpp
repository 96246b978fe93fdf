// Faults: signals and fatal calls are reported to the host, then the process ends.
#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "mailbox.hpp"
#include "worker.hpp"

namespace worker {

using neurontools::abi::Reply;

namespace {

const Library* volatile running = nullptr;
const neurontools::abi::Request* volatile running_request = nullptr;
Reply last_words;
alignas(16) unsigned char signal_stack[256 * 1024];

struct Registers {
  std::uintptr_t program_counter;
  std::uintptr_t stack_pointer;
  bool writes;
};

Registers registers_of(const void* context) {
  const ucontext_t* state = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  // Bit 1 of the page fault's error code is set for a write.
  return {static_cast<std::uintptr_t>(state->uc_mcontext.gregs[REG_RIP]),
          static_cast<std::uintptr_t>(state->uc_mcontext.gregs[REG_RSP]), (state->uc_mcontext.gregs[REG_ERR] & 2) != 0};
#elif defined(__aarch64__)
  return {static_cast<std::uintptr_t>(state->uc_mcontext.pc), static_cast<std::uintptr_t>(state->uc_mcontext.sp), true};
#else
#error "the worker knows x86-64 and aarch64"
#endif
}

void describe_fault(const char* kind, const char* message) {
  std::snprintf(last_words.kind, sizeof last_words.kind, "%s", kind);
  std::snprintf(last_words.message, sizeof last_words.message, "%s", message);
}

void name_tensor(int index, char* name, std::size_t size) {
  if (index == neurontools::abi::kOutputSlot)
    std::snprintf(name, size, "the output");
  else
    std::snprintf(name, size, "argument %d", index);
}

// Explain an address near a tensor; false if it is not near one.
bool explain_tensor(std::uintptr_t address, int index, const unsigned char* begin, const neurontools::abi::Tensor& tensor,
                    bool constant) {
  const std::size_t slot_bytes = slots[index].nbytes;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(begin);
  if (begin == nullptr || address < first - kGuardBytes || address >= first + slot_bytes + kGuardBytes) return false;
  char name[32];
  char message[256];
  name_tensor(index, name, sizeof name);
  const unsigned long long size = tensor.nbytes;
  if (address >= first + slot_bytes) {
    std::snprintf(message, sizeof message, "access %llu bytes past the end of %s (%llu bytes)",
                  static_cast<unsigned long long>(address - first - slot_bytes), name, size);
    describe_fault("bounds", message);
  } else if (address < first) {
    std::snprintf(message, sizeof message, "access before the beginning of %s (%llu bytes)", name, size);
    describe_fault("bounds", message);
  } else if (constant) {
    std::snprintf(message, sizeof message, "write to %s, which the kernel takes as const Tensor&", name);
    describe_fault("const", message);
  } else {
    return false;
  }
  return true;
}

bool explain_address(std::uintptr_t address) {
  const neurontools::abi::Request* request = running_request;
  if (request == nullptr) return false;
  for (int i = 0; i < neurontools::abi::kSlots; ++i) {
    const bool output = i == neurontools::abi::kOutputSlot;
    if (!output && static_cast<std::uint32_t>(i) >= request->argument_count) continue;
    const neurontools::abi::Tensor& tensor = output ? request->output : request->arguments[i].tensor;
    if (explain_tensor(address, i, slots[i].constant, tensor, true)) return true;
    if (explain_tensor(address, i, slots[i].writable, tensor, false)) return true;
  }
  return false;
}

void explain_segmentation(std::uintptr_t address, const Registers& registers) {
  const std::uintptr_t depth = registers.stack_pointer > address ? registers.stack_pointer - address
                                                                 : address - registers.stack_pointer;
  char message[200];
  char place[96];
  if (explain_address(address)) return;
  if (explain_tcm(reinterpret_cast<const void*>(address), place, sizeof place)) {
    std::snprintf(message, sizeof message, "%s %s", registers.writes ? "write" : "read", place);
    return describe_fault("tcm", message);
  }
  if (address < 65536) {
    std::snprintf(message, sizeof message, "%s through a null pointer (did tcm_malloc fail? the pool has 16384 bytes)",
                  registers.writes ? "write" : "read");
    describe_fault("null", message);
  } else if (depth < 1 << 20) {
    describe_fault("stack", "stack overflow");
  } else {
    describe_fault("address", "access to memory that is not there");
  }
}

void explain(int number, const siginfo_t* info, const Registers& registers) {
  switch (number) {
    case SIGSEGV: return explain_segmentation(reinterpret_cast<std::uintptr_t>(info->si_addr), registers);
    case SIGFPE: return describe_fault("arithmetic", "integer division by zero");
    case SIGILL: return describe_fault("illegal", "illegal instruction");
    case SIGBUS: return describe_fault("address", "bus error");
    case SIGTRAP: return describe_fault("illegal", "trap instruction");
    case SIGUSR1: return describe_fault("timeout", "still running when the time was up");
    default: return describe_fault("abort", "abort() called by the C library: the heap may be damaged");
  }
}

void add_frame(std::uintptr_t address) {
  if (last_words.frame_count < neurontools::abi::kMaxFrames) last_words.frames[last_words.frame_count++] = address;
}

// The innermost frame is the instruction, the outer ones are return addresses.
void collect_frames(std::uintptr_t program_counter) {
  void* addresses[neurontools::abi::kMaxFrames + 8];
  const int count = backtrace(addresses, neurontools::abi::kMaxFrames + 8);
  int next = 0;
  for (int i = 0; i < count; ++i)
    if (reinterpret_cast<std::uintptr_t>(addresses[i]) == program_counter) next = i + 1;
  if (program_counter != 0) add_frame(program_counter);
  for (; next < count; ++next) add_frame(reinterpret_cast<std::uintptr_t>(addresses[next]) - 1);
}

[[noreturn]] void end(int number) {
  const Library* library = running;
  last_words.magic = neurontools::abi::kMagic;
  last_words.status = neurontools::abi::kFatal;
  last_words.signal = number;
  const bool kernel = running_request != nullptr && running_request->command == neurontools::abi::kRunCommand;
  last_words.core = library != nullptr && kernel ? library->core() : -1;
  if (library != nullptr) localize_frames(*library, last_words);
  send(last_words, false);
  _exit(number == 0 ? 1 : 128 + number);
}

void handle(int number, siginfo_t* info, void* context) {
  if (number == SIGUSR1 && running == nullptr) return;
  const Registers registers = registers_of(context);
  explain(number, info, registers);
  collect_frames(registers.program_counter);
  end(number);
}

}  // namespace

void install_handlers() {
  void* warm_up[1];
  backtrace(warm_up, 1);  // loads the unwinder now, which a signal handler must not do
  stack_t alternate{};
  alternate.ss_sp = signal_stack;
  alternate.ss_size = sizeof signal_stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&action.sa_mask);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGUSR1})
    sigaction(number, &action, nullptr);
  // Signals of the terminal are for the host; write() reports a host that has ended.
  for (const int number : {SIGINT, SIGQUIT, SIGTSTP, SIGHUP, SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
}

void set_running(const Library* library, const neurontools::abi::Request* request) {
  running_request = request;
  running = library;
}

bool explain_tcm(const void* address, char* text, std::size_t size) {
  const Library* library = running;
  return library != nullptr && library->explain(address, text, size);
}

void refuse(Reply& reply, const char* kind, const char* message) {
  reply.status = neurontools::abi::kFailed;
  reply.core = -1;
  std::snprintf(reply.kind, sizeof reply.kind, "%s", kind);
  std::snprintf(reply.message, sizeof reply.message, "%s", message);
}

void fatal(const char* kind, const char* message) {
  describe_fault(kind, message);
  void* addresses[neurontools::abi::kMaxFrames];
  const int count = backtrace(addresses, neurontools::abi::kMaxFrames);
  for (int i = 1; i < count; ++i) add_frame(reinterpret_cast<std::uintptr_t>(addresses[i]) - 1);
  end(0);
}

}  // namespace worker
