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

[[noreturn]] NEURONTOOLS_OWN_LINE inline void fail_index(std::int64_t index, std::int64_t size, std::int64_t dimension) {
  fail("bounds", "index %lld is out of bounds for dimension %lld of size %lld", static_cast<long long>(index),
       static_cast<long long>(dimension), static_cast<long long>(size));
}

}  // namespace neurontools

namespace torch {

template <typename T, std::size_t N, bool read_only>
class TensorAccessorBase {
 public:
  using Element = std::conditional_t<read_only, const T, T>;

  TensorAccessorBase(Element* data, const std::int64_t* sizes, const std::int64_t* strides,
                     const neurontools::TensorImpl* impl, std::uint64_t* count)
      : data_(data), sizes_(sizes), strides_(strides), impl_(impl), count_(count) {}

  std::int64_t size(std::int64_t i) const { return sizes()[static_cast<std::size_t>(i)]; }
  std::int64_t stride(std::int64_t i) const { return strides()[static_cast<std::size_t>(i)]; }
  c10::IntArrayRef sizes() const { return {sizes_, N}; }
  c10::IntArrayRef strides() const { return {strides_, N}; }
  Element* data() const { return data_; }

 protected:
  void check_index(std::int64_t index) const {
    // Converted to unsigned, a negative index is too large.
    if (neurontools::kChecked && static_cast<std::uint64_t>(index) >= static_cast<std::uint64_t>(sizes_[0]))
      neurontools::fail_index(index, sizes_[0], sizes_ - impl_->sizes);
  }

  Element* data_;
  const std::int64_t* sizes_;
  const std::int64_t* strides_;
  const neurontools::TensorImpl* impl_;
  std::uint64_t* count_;
};

template <typename T, std::size_t N, bool read_only = false>
class TensorAccessor : public TensorAccessorBase<T, N, read_only> {
 public:
  using TensorAccessorBase<T, N, read_only>::TensorAccessorBase;

  TensorAccessor<T, N - 1, read_only> operator[](std::int64_t index) const {
    this->check_index(index);
    return {this->data_ + index * this->strides_[0], this->sizes_ + 1, this->strides_ + 1, this->impl_,
            this->count_};
  }
};

template <typename T, bool read_only>
class TensorAccessor<T, 1, read_only> : public TensorAccessorBase<T, 1, read_only> {
 public:
  using TensorAccessorBase<T, 1, read_only>::TensorAccessorBase;

  // Tensors are dense: the last stride is 1.
  typename TensorAccessorBase<T, 1, read_only>::Element& operator[](std::int64_t index) const {
    this->check_index(index);
    if (neurontools::kChecked) {
      ++*this->count_;
      if (this->impl_->active_streams != 0) neurontools::check_coherence(*this->impl_, !read_only);
    }
    return this->data_[index];
  }
};

}  // namespace torch
