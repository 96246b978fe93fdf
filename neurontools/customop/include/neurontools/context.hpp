// The state of the core that is running, and what the kernel runtime offers to the headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "neurontools/abi.hpp"

// A function that is always part of its caller: what it calls in the runtime has its return address in the user's code,
// and that is the place which the checks name.
#define NEURONTOOLS_AT_CALLER inline __attribute__((always_inline))

namespace torch {
class Tensor;
}

namespace neurontools {

constexpr std::size_t kTcmPoolBytes = 16384;
constexpr std::size_t kStreamBufferBytes = 4096;

struct Context {
  bool meta = false;  // a shape function runs: tensors have no storage
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

/// Take a block from this core's pool; nullptr when it does not fit.
void* tcm_allocate(std::size_t nbytes);
/// Give a block back; checks its canaries.
void tcm_release(void* block);
/// Bytes from `pointer` to the end of its block, -1 when it is in none.
std::int64_t tcm_room(const void* pointer);

}  // namespace neurontools
