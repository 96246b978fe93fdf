// A handle of a dense, contiguous tensor in HBM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "neurontools/accessor.hpp"
#include "neurontools/options.hpp"
#include "neurontools/scalar.hpp"
#include "neurontools/stream.hpp"
#include "neurontools/tcm.hpp"
#include "neurontools/tensor_impl.hpp"
#include "neurontools/tensor_pointer.hpp"

namespace torch {

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(neurontools::TensorPointer impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  ~Tensor() = default;

  bool defined() const { return static_cast<bool>(impl_); }
  std::int64_t dim() const { return impl().dim; }
  std::int64_t ndimension() const { return impl().dim; }
  std::int64_t numel() const { return impl().numel; }
  std::size_t nbytes() const { return impl().nbytes; }
  std::size_t element_size() const { return c10::elementSize(impl().dtype); }
  std::size_t itemsize() const { return element_size(); }
  c10::ScalarType scalar_type() const { return impl().dtype; }
  c10::ScalarType dtype() const { return impl().dtype; }
  c10::TensorOptions options() const { return c10::TensorOptions(impl().dtype); }
  c10::IntArrayRef sizes() const { return {impl().sizes, static_cast<std::size_t>(impl().dim)}; }
  c10::IntArrayRef strides() const { return {impl().strides, static_cast<std::size_t>(impl().dim)}; }
  std::int64_t size(std::int64_t dimension) const { return impl().sizes[wrap(dimension)]; }
  std::int64_t stride(std::int64_t dimension) const { return impl().strides[wrap(dimension)]; }
  bool is_contiguous() const { return true; }
  Tensor contiguous() const { return *this; }
  bool is_floating_point() const { return c10::isFloatingType(impl().dtype); }

  template <typename T, std::size_t N>
  TensorAccessor<T, N, true> accessor() const& {
    check_accessor<T>("accessor", N);
    return {static_cast<const T*>(impl().data()), impl().sizes, impl().strides, impl_.get(),
            neurontools::count_elements(impl(), assumed())};
  }
  template <typename T, std::size_t N>
  TensorAccessor<T, N, false> accessor() & {
    check_accessor<T>("accessor", N);
    note_untracked_write();
    return {static_cast<T*>(impl().data()), impl().sizes, impl().strides, impl_.get(),
            neurontools::count_elements(impl(), assumed())};
  }

  template <typename T>
  TensorReadStreamAccessor<T> read_stream_accessor() const& {
    check_dtype<T>("read_stream_accessor");
    return TensorReadStreamAccessor<T>(shared());
  }
  template <typename T>
  TensorWriteStreamAccessor<T> write_stream_accessor() & {
    check_dtype<T>("write_stream_accessor");
    return TensorWriteStreamAccessor<T>(shared());
  }

  TensorTcmAccessor<true> tcm_accessor() const& { return TensorTcmAccessor<true>(shared()); }
  TensorTcmAccessor<false> tcm_accessor() & { return TensorTcmAccessor<false>(shared()); }

  CoherencyEnforcer::Policy get_accessor_coherence_policy() const { return impl().policy; }
  void set_accessor_coherence_policy(CoherencyEnforcer::Policy policy) const { impl().policy = policy; }

  template <typename T>
  T* data_ptr() const {
    check_dtype<T>("data_ptr");
    note_untracked_write();
    neurontools::count_elements(impl(), static_cast<std::uint64_t>(impl().numel));
    return static_cast<T*>(impl().data());
  }
  void* data_ptr() const {
    note_untracked_write();
    neurontools::count_elements(impl(), static_cast<std::uint64_t>(impl().numel));
    return impl().data();
  }

  Tensor& fill_(const c10::Scalar& value) const;

  neurontools::TensorImpl& impl() const { return *shared(); }

 private:
  const neurontools::TensorPointer& shared() const {
    if (!impl_) neurontools::fail("undefined", "use of a tensor that was never given a value");
    return impl_;
  }
  std::size_t wrap(std::int64_t dimension) const {
    const std::int64_t wrapped = dimension < 0 ? dimension + impl().dim : dimension;
    if (wrapped < 0 || wrapped >= impl().dim)
      neurontools::fail("bounds", "dimension %lld of a tensor of %lld dimensions", static_cast<long long>(dimension),
                        static_cast<long long>(impl().dim));
    return static_cast<std::size_t>(wrapped);
  }
  template <typename T>
  void check_dtype(const char* what) const {
    if (impl().dtype != c10::CppTypeToScalarType<T>::value)
      neurontools::fail("dtype", "%s with %s elements on a tensor of dtype %s", what,
                        c10::toString(c10::CppTypeToScalarType<T>::value), c10::toString(impl().dtype));
  }
  template <typename T>
  void check_accessor(const char* what, std::size_t rank) const {
    check_dtype<T>(what);
    if (static_cast<std::int64_t>(rank) != impl().dim)
      neurontools::fail("rank", "%s of rank %zu on a tensor of %lld dimensions", what, rank,
                        static_cast<long long>(impl().dim));
    if (neurontools::context.multicore)
      neurontools::fail("multicore", "element accessors work in single-core mode only; use tcm_accessor()");
  }
  // Builds without checks do not count single accesses: one per element is assumed.
  std::uint64_t assumed() const { return neurontools::kChecked ? 0 : static_cast<std::uint64_t>(impl().numel); }
  void note_untracked_write() const {
    if (impl().origin == neurontools::Origin::kOutput) neurontools::context.output_written_untracked = true;
  }

  neurontools::TensorPointer impl_;
};

}  // namespace torch
