// The parts of the worker process: descriptors, tensor slots, compiled libraries, fault reports.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "neurontools/abi.hpp"
#include "sanitizing.hpp"

namespace worker {

// Descriptors that the host prepares before it starts the worker; 1 and 2 collect the output of kernels.
constexpr int kRequestFd = 3;
constexpr int kReplyFd = 4;
constexpr int kMailboxFd = 5;
constexpr int kMemoryFd = 6;
constexpr int kShapeFd = 7;
constexpr int kKernelFd = 8;

constexpr std::size_t kGuardBytes = std::size_t{1} << 20;

struct Slot {
  unsigned char* writable = nullptr;
  unsigned char* constant = nullptr;
  std::size_t nbytes = 0;
};

extern Slot slots[neurontools::abi::kSlots];

/// Map a range of device memory to a slot; false on failure.
bool map_slot(int index, const neurontools::abi::Place& place);
/// Unmap all ranges if there are too many; between calls only.
void forget_ranges();

/// The monotonic clock.
std::uint64_t now_ns();

#if defined(NEURONTOOLS_SANITIZED)
/// Copy the tensors of a call to the heap, where the sanitizer checks their bounds; it does not know the arena.
bool tensors_to_heap(neurontools::abi::Request& request);
/// Copy the output back and free the copies; reports a constant argument that the kernel wrote.
void tensors_from_heap(neurontools::abi::Request& request, neurontools::abi::Reply& reply);
#endif

struct Library {
  void (*call)(const neurontools::abi::Request*, neurontools::abi::Reply*) = nullptr;
  std::int32_t (*core)() = nullptr;
  const char* (*describe)() = nullptr;
  bool (*explain)(const void*, char*, std::size_t) = nullptr;
  std::uintptr_t base = 0;
  std::uintptr_t end = 0;
  const char* error = nullptr;
};

/// Load a library from a descriptor; `error` is the reason of a failure.
Library open_library(int fd);

/// Report faults in calls to the host before the process ends.
void install_handlers();
/// Attribute faults to `library` until the next call; nullptr: no library is running.
void set_running(const Library* library, const neurontools::abi::Request* request);
/// Write what is at an address of the running library's TCM; false for other addresses.
bool explain_tcm(const void* address, char* text, std::size_t size);
/// The hook of a library for abort(), exit() and failed assertions.
void fatal(const char* kind, const char* message);
/// Keep the frames in the library, as addresses in its file.
void localize_frames(const Library& library, neurontools::abi::Reply& reply);
/// Reply that the operator failed, and continue.
void refuse(neurontools::abi::Reply& reply, const char* kind, const char* message);
/// Return in a child, the worker. This process ends it and all of its processes when it or the host ends, or on SIGTERM.
void start_guarded(pid_t host);

}  // namespace worker
