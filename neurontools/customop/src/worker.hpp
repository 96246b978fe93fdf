// The parts of the worker process: descriptors, tensor slots, compiled libraries, fault reports.
#pragma once

#include <cstddef>
#include <cstdint>

#include "neurontools/abi.hpp"

namespace worker {

// Descriptors that the host prepares before the worker starts; 1 and 2 collect what kernels print.
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

/// Let a slot be a range of the machine's memory; fails by returning false.
bool map_slot(int index, const neurontools::abi::Place& place);
/// Unmap all ranges when they have become too many; between calls only.
void forget_ranges();

/// The monotonic clock.
std::uint64_t now_ns();

#if defined(__SANITIZE_ADDRESS__)
#define NEURONTOOLS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NEURONTOOLS_SANITIZED 1
#endif
#endif

#if defined(NEURONTOOLS_SANITIZED)
/// Put the tensors of a call on the heap, where the sanitizer watches their ends; the arena is nothing to it.
bool tensors_to_heap(neurontools::abi::Request& request);
/// Copy the output back and free the copies; tells of a constant argument that the kernel wrote to.
void tensors_from_heap(neurontools::abi::Request& request, neurontools::abi::Reply& reply);
#endif

struct Library {
  void (*call)(const neurontools::abi::Request*, neurontools::abi::Reply*) = nullptr;
  std::int32_t (*core)() = nullptr;
  const char* (*describe)() = nullptr;
  std::uintptr_t base = 0;
  std::uintptr_t end = 0;
  const char* error = nullptr;
};

/// Load a library from a descriptor; `error` tells why it could not be.
Library open_library(int fd);

/// From now on a fault in the running call is reported to the host before the process ends.
void install_handlers();
/// Faults until the next call of this belong to `library`; nullptr: nothing runs.
void set_running(const Library* library, const neurontools::abi::Request* request);
/// The hook of a library for abort(), exit() and failed assertions.
void fatal(const char* kind, const char* message);
/// Keep the frames that lie in the library, as addresses of its file.
void localize_frames(const Library& library, neurontools::abi::Reply& reply);
/// Answer that the operator failed, and go on.
void refuse(neurontools::abi::Reply& reply, const char* kind, const char* message);
/// End this process when its parent does.
void follow_parent(int parent);

}  // namespace worker
