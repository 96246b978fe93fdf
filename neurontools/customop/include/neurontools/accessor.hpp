// The element accessor: random access to HBM, one element at a time; checked unless the library is built for release.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "neurontools/tensor_impl.hpp"

#ifndef NEURONTOOLS_CHECKED
#define NEURONTOOLS_CHECKED 1
#endif

namespace neurontools {

constexpr bool kChecked = NEURONTOOLS_CHECKED != 0;

[[noreturn]] inline void fail_index(std::int64_t index, std::int64_t size, std::int64_t dimension) {
  fail("bounds", "index %lld is out of bounds for dimension %lld of size %lld", static_cast<long long>(index),
       static_cast<long long>(dimension), static_cast<long long>(size));
}

}  // namespace neurontools

namespace torch {

template <typename T, std::size_t N, bool read_only>
class TensorAccessorBase {
 public:
  using Element = std::conditional_t<read_only, const T, T>;

  TensorAccessorBase(Element* data, const neurontools::TensorImpl* impl) : data_(data), impl_(impl) {}

  std::int64_t size(std::int64_t i) const { return sizes()[static_cast<std::size_t>(i)]; }
  std::int64_t stride(std::int64_t i) const { return strides()[static_cast<std::size_t>(i)]; }
  c10::IntArrayRef sizes() const { return {impl_->sizes + first_dimension(), N}; }
  c10::IntArrayRef strides() const { return {impl_->strides + first_dimension(), N}; }
  Element* data() const { return data_; }

 protected:
  std::int64_t first_dimension() const { return impl_->dim - static_cast<std::int64_t>(N); }
  Element* locate(std::int64_t index) const {
    const std::int64_t dimension = first_dimension();
    if (neurontools::kChecked && (index < 0 || index >= impl_->sizes[dimension]))
      neurontools::fail_index(index, impl_->sizes[dimension], dimension);
    return data_ + index * impl_->strides[dimension];
  }

  Element* data_;
  const neurontools::TensorImpl* impl_;
};

template <typename T, std::size_t N, bool read_only = false>
class TensorAccessor : public TensorAccessorBase<T, N, read_only> {
 public:
  using TensorAccessorBase<T, N, read_only>::TensorAccessorBase;

  TensorAccessor<T, N - 1, read_only> operator[](std::int64_t index) const {
    return {this->locate(index), this->impl_};
  }
};

template <typename T, bool read_only>
class TensorAccessor<T, 1, read_only> : public TensorAccessorBase<T, 1, read_only> {
 public:
  using TensorAccessorBase<T, 1, read_only>::TensorAccessorBase;

  typename TensorAccessorBase<T, 1, read_only>::Element& operator[](std::int64_t index) const {
    if (neurontools::kChecked) {
      ++neurontools::context.counters.element_accesses;
      if (this->impl_->stream_readers + this->impl_->stream_writers != 0)
        neurontools::check_coherence(*this->impl_, !read_only);
    }
    return *this->locate(index);
  }
};

}  // namespace torch
