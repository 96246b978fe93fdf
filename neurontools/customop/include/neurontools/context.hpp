// State of the running core, and functions of the kernel runtime for the headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "neurontools/abi.hpp"

// A function that is always inlined: the return address of runtime functions it calls is then in the user's code, which
// is the location that the checks report.
#define NEURONTOOLS_AT_CALLER inline __attribute__((always_inline))

namespace torch {
class Tensor;
}

namespace neurontools {

constexpr std::size_t kTcmPoolBytes = 16384;
constexpr std::size_t kStreamBufferBytes = 4096;

struct Context {
  bool meta = false;  // a shape function is running: tensors have no storage
  bool multicore = false;
  std::uint32_t core = 0;
  std::uint32_t core_count = 1;
  bool output_taken = false;
  bool output_written_untracked = false;  // by element accessor or pointer: coverage is unknown
  bool count_places = false;
  abi::Counters counters{};
};

extern Context context __attribute__((visibility("hidden")));

/// The output tensor of the running call.
torch::Tensor take_output();
/// Record that the running core wrote bytes [begin, end) of the output.
void note_output_write(std::uint64_t begin, std::uint64_t end);

/// Allocate a block from this core's pool; nullptr if it does not fit.
void* tcm_allocate(std::size_t nbytes);
/// Free a block.
void tcm_release(void* block);
/// Number of bytes from `pointer` to the end of its block, -1 if it is not in a block.
std::int64_t tcm_room(const void* pointer);

}  // namespace neurontools
