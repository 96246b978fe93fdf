// Interfaces between the parts of the kernel runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "neurontools/abi.hpp"

#define NEURONTOOLS_EXPORT extern "C" __attribute__((visibility("default")))

namespace neurontools {

/// The reply of the running call: messages, warnings and frames.
extern abi::Reply* reply __attribute__((visibility("hidden")));

/// The place in the user's code that a later check blames; nullptr: the caller of the check.
extern const void* failure_place __attribute__((visibility("hidden")));

/// Add a warning of the running core, unless another core has the same; `places` are addresses from `list_places`.
void warn_at(const char* places, const char* message);
/// Write the code addresses of the stack in this library, innermost first, as hexadecimal numbers with commas.
void list_places(char* text, std::size_t size);
/// Write one address in this form.
void list_place(const void* place, char* text, std::size_t size);

/// Store the stack in the reply, without the innermost `skip` frames.
void capture_frames(int skip);

/// The byte that fills new memory, and the byte that surrounds memory of kernels. The host sets them (MALLOC_PERTURB_): two
/// calls with other bytes differ in their results if a kernel reads what it has not written.
unsigned char fresh_byte();
unsigned char guard_byte();
/// Return how many bytes from the first one on have this value.
std::size_t filled_bytes(const unsigned char* begin, std::size_t nbytes, unsigned char byte);

/// Record a write to guard bytes, found after it happened: perhaps in a destructor, which must not throw.
void note_damage(const char* kind, const void* place, const char* format, ...) __attribute__((format(printf, 3, 4)));
bool is_damaged();
/// Forget recorded writes to guard bytes.
void damage_begin();
/// Fail if there was one.
void damage_check();

/// Discard the recorded writes of the last call.
void coverage_begin();
/// Fail if two cores wrote the same byte or a byte of the output was never written.
void coverage_check(std::uint64_t output_bytes, std::uint64_t element_bytes);

/// Discard the counts by place of the last call.
void places_begin();
/// Add the counts of element accessors to the counters of the running core.
void places_end_core();
/// Write the counts by place from number `first`, one per line, as many as fit.
void list_counts(std::size_t first, char* text, std::size_t size);

struct TensorImpl;

/// Lends the output's memory to the first temporary of its size and dtype, which kernels usually return: it need not be
/// copied then.
class Lending {
 public:
  explicit Lending(const TensorImpl& output);
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;
  ~Lending();
  /// Called when the kernel returned `result`: a temporary that it keeps gets its own memory, unless it is the result.
  void end(const TensorImpl* result);
};

/// Called when the kernel requests the output: if a temporary has its memory, the output moves and is copied at the end.
void give_output_memory_of_its_own(TensorImpl& output);

/// Empty the pools before a call.
void tcm_begin();
/// Empty the running core's pool and warn about leaks.
void tcm_end_core();
/// Look for writes outside of the blocks of all cores.
void tcm_end();

}  // namespace neurontools
