// Counts of memory accesses for the modelled time: in total, and by place in the source on request.
#pragma once

#include <cstdint>

namespace neurontools {

struct TensorImpl;

/// How a kernel accesses a tensor. kUnbuffered: a stream without a buffer in TCM, as slow as element accesses.
enum class Way : std::uint32_t { kElement = 0, kStream = 1, kTcm = 2, kFunction = 3, kMove = 4, kReturned = 5, kUnbuffered = 6 };

/// Record where a stream is opened, for its count at the end; it is unbuffered if TCM is full.
void* open_stream(const TensorImpl& impl, bool buffered);
/// Return the counter of an element accessor, to which `assumed` accesses are added.
std::uint64_t* count_elements(const TensorImpl& impl, std::uint64_t assumed);
/// Count one copy between HBM and TCM.
void count_transfer(const TensorImpl& impl, std::uint64_t nbytes);
/// Count the elements of a stream; `place` is the result of `open_stream`.
void count_stream(const TensorImpl& impl, std::uint64_t elements, bool buffered, void* place);
/// Count a whole tensor that a tensor function reads or writes, in pieces of a stream buffer.
void count_function(const TensorImpl& impl);
/// Count the arithmetic of a tensor function by its result.
void count_compute(const TensorImpl& result);
/// Count a copy within HBM, or a fill.
void count_move(const TensorImpl& impl);
/// Count the copy of the returned tensor to the output.
void count_returned(const TensorImpl& impl);

}  // namespace neurontools
