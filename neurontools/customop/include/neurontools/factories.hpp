// Factories of tensors in HBM. The default dtype is kFloat.
#pragma once

#include <cstdint>

#include "neurontools/tensor.hpp"

namespace neurontools {

/// Record that an operation wrote a whole tensor.
inline void note_whole_write(const TensorImpl& impl) {
  count_move(impl);
  if (impl.origin == Origin::kOutput) note_output_write(0, impl.nbytes);
}

}  // namespace neurontools

namespace torch {

/// Uninitialized.
Tensor empty(c10::IntArrayRef size, c10::TensorOptions options = {});
Tensor full(c10::IntArrayRef size, const c10::Scalar& value, c10::TensorOptions options = {});
Tensor zeros(c10::IntArrayRef size, c10::TensorOptions options = {});
Tensor ones(c10::IntArrayRef size, c10::TensorOptions options = {});
/// Ones on the diagonal of an n x m matrix.
Tensor eye(std::int64_t n, std::int64_t m, c10::TensorOptions options = {});

}  // namespace torch
