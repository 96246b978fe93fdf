// Making tensors in HBM.
#pragma once

#include <cstdint>
#include <memory>

#include "neurontools/tensor.hpp"

namespace neurontools {

template <typename T>
void fill_elements(const TensorImpl& impl, T value) {
  T* data = static_cast<T*>(impl.data());
  for (std::int64_t i = 0; i < impl.numel; ++i) data[i] = value;
}

/// Record that an operation wrote a whole tensor.
inline void note_whole_write(const TensorImpl& impl) {
  note_stream(impl.nbytes);
  if (impl.origin == Origin::kOutput) note_output_write(0, impl.nbytes);
}

}  // namespace neurontools

namespace torch {

/// Uninitialised.
inline Tensor empty(c10::IntArrayRef size, c10::TensorOptions options = {}) {
  auto impl = std::make_shared<neurontools::TensorImpl>(size, options.dtype());
  if (!neurontools::context.meta) neurontools::dispatch(options.dtype(), [](auto) {});
  impl->allocate();
  return Tensor(impl);
}

inline Tensor& Tensor::fill_(const c10::Scalar& value) const {
  neurontools::TensorImpl& target = impl();
  if (!neurontools::context.meta) {
    target.check_writable();
    neurontools::dispatch(target.dtype, [&](auto tag) {
      using T = decltype(tag);
      neurontools::fill_elements<T>(target, value.to<T>());
    });
    neurontools::note_whole_write(target);
  }
  return const_cast<Tensor&>(*this);
}

inline Tensor full(c10::IntArrayRef size, const c10::Scalar& value, c10::TensorOptions options = {}) {
  Tensor result = empty(size, options);
  result.fill_(value);
  return result;
}

inline Tensor zeros(c10::IntArrayRef size, c10::TensorOptions options = {}) { return full(size, 0, options); }

inline Tensor ones(c10::IntArrayRef size, c10::TensorOptions options = {}) { return full(size, 1, options); }

/// Ones on the diagonal of an n x m matrix.
inline Tensor eye(std::int64_t n, std::int64_t m, c10::TensorOptions options = {}) {
  Tensor result = zeros({n, m}, options);
  if (neurontools::context.meta) return result;
  neurontools::dispatch(options.dtype(), [&](auto tag) {
    using T = decltype(tag);
    T* data = static_cast<T*>(result.impl().data());
    for (std::int64_t i = 0; i < n && i < m; ++i) data[i * m + i] = T(1);
  });
  return result;
}

}  // namespace torch
