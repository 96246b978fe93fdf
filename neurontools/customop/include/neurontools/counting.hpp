// What a kernel does to memory, counted for the modelled time: in bulk, and by place in its source where the host asks.
#pragma once

#include <cstdint>

namespace neurontools {

struct TensorImpl;

/// How a kernel reaches a tensor. kUnbuffered: a stream beyond those that fit into TCM, as slow as elements.
enum class Way : std::uint32_t { kElement = 0, kStream = 1, kTcm = 2, kFunction = 3, kMove = 4, kReturned = 5, kUnbuffered = 6 };

/// Note where a stream is opened, for the count when it ends; nobody buffers it where TCM was full.
void* open_stream(const TensorImpl& impl, bool buffered);
/// Return where the accesses of an element accessor are counted; `assumed` of them are counted already.
std::uint64_t* count_elements(const TensorImpl& impl, std::uint64_t assumed);
/// Count one copy between HBM and TCM.
void count_transfer(const TensorImpl& impl, std::uint64_t nbytes);
/// Count what went through a stream; `place` is what `open_stream` returned.
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
