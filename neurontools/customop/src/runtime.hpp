// What the parts of the kernel runtime say to each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "neurontools/abi.hpp"

#define NEURONTOOLS_EXPORT extern "C" __attribute__((visibility("default")))

namespace neurontools {

/// The reply that the running call fills; messages, warnings and frames go there.
extern abi::Reply* reply __attribute__((visibility("hidden")));

/// Where the user's code did what a check finds wrong later; nullptr: where the check itself was called.
extern const void* failure_place __attribute__((visibility("hidden")));

/// Add a warning of the running core, unless there is the same of another one; `places` are addresses in the library's file, as `list_places` writes them.
void warn_at(const char* places, const char* message);
/// Write the running code addresses that lie in this library, innermost first, as hexadecimal numbers with commas.
void list_places(char* text, std::size_t size);
/// Write one address so.
void list_place(const void* place, char* text, std::size_t size);

/// Remember the calling code addresses in the reply, without the innermost `skip` frames.
void capture_frames(int skip);

/// Forget the writes of the last call.
void coverage_begin();
/// Fail when two cores wrote the same byte or when a byte of the output was never written.
void coverage_check(std::uint64_t output_bytes, std::uint64_t element_bytes);

/// Forget what the last call counted by place.
void places_begin();
/// Add what element accessors counted by place to the counters of the running core.
void places_end_core();
/// Write the counts by place from number `first` on, a line each, as many as there is room for.
void list_counts(std::size_t first, char* text, std::size_t size);

struct TensorImpl;

/// While it lives, the first temporary of the output's size and dtype lies where the output goes: mostly it is what the
/// kernel returns, and need not be copied then.
class Lending {
 public:
  explicit Lending(const TensorImpl& output);
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;
  ~Lending();
  /// The kernel returned `result`: a temporary that it keeps gets memory of its own, unless it is the result.
  void end(const TensorImpl* result);
};

/// The kernel asks for the output: when a temporary lies there, it gets other memory, which is copied at the end.
void give_output_memory_of_its_own(TensorImpl& output);

/// Empty the running core's pool.
void tcm_begin();
/// Check the canaries of what is left and warn about leaks.
void tcm_end();

}  // namespace neurontools
