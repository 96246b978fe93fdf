// Tightly coupled memory: 16 KiB per core, filled and emptied by explicit copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "neurontools/tensor_impl.hpp"
#include "neurontools/tensor_pointer.hpp"

namespace torch {
namespace neuron {

/// Allocate a block of this core's 16 KiB pool, nullptr if it does not fit.
NEURONTOOLS_AT_CALLER void* tcm_malloc(std::size_t nbytes) { return neurontools::tcm_allocate(nbytes); }

/// Free a block; nullptr is allowed.
NEURONTOOLS_AT_CALLER void tcm_free(void* block) {
  if (block != nullptr) neurontools::tcm_release(block);
}

}  // namespace neuron

template <bool read_only>
class TensorTcmAccessor {
 public:
  explicit TensorTcmAccessor(neurontools::TensorPointer impl) : impl_(std::move(impl)) { impl_->data(); }

  /// Copy `num_elem` elements from offset `tensor_offset` of the flattened tensor into TCM.
  template <typename T>
  NEURONTOOLS_AT_CALLER void tensor_to_tcm(T* tcm_ptr, std::size_t tensor_offset, std::size_t num_elem) const {
    check<T>("tensor_to_tcm", tcm_ptr, tensor_offset, num_elem);
    if (num_elem == 0) return;
    std::memcpy(tcm_ptr, static_cast<const T*>(impl_->storage) + tensor_offset, num_elem * sizeof(T));
    neurontools::count_transfer(*impl_, num_elem * sizeof(T));
  }

  /// Copy `num_elem` elements from TCM to offset `tensor_offset` of the flattened tensor.
  template <typename T>
  NEURONTOOLS_AT_CALLER void tcm_to_tensor(T* tcm_ptr, std::size_t tensor_offset, std::size_t num_elem) const {
    static_assert(!read_only, "this accessor was taken from a const Tensor: it cannot write");
    check<T>("tcm_to_tensor", tcm_ptr, tensor_offset, num_elem);
    impl_->check_writable();
    if (num_elem == 0) return;
    std::memcpy(static_cast<T*>(impl_->storage) + tensor_offset, tcm_ptr, num_elem * sizeof(T));
    neurontools::count_transfer(*impl_, num_elem * sizeof(T));
    if (impl_->origin == neurontools::Origin::kOutput)
      neurontools::note_output_write(tensor_offset * sizeof(T), (tensor_offset + num_elem) * sizeof(T));
  }

 private:
  template <typename T>
  void check(const char* what, const void* pointer, std::size_t offset, std::size_t count) const {
    if (impl_->dtype != c10::CppTypeToScalarType<T>::value)
      neurontools::fail("dtype", "%s with %s elements on a tensor of dtype %s", what,
                        c10::toString(c10::CppTypeToScalarType<T>::value), c10::toString(impl_->dtype));
    const std::size_t numel = static_cast<std::size_t>(impl_->numel);
    if (offset > numel || count > numel - offset)
      neurontools::fail("bounds", "%s of elements [%zu, %zu) of a tensor of %zu", what, offset, offset + count, numel);
    if (pointer == nullptr)
      neurontools::fail("tcm", "%s with a null pointer: did tcm_malloc fail? the pool has %zu bytes", what,
                        neurontools::kTcmPoolBytes);
    const std::int64_t room = neurontools::tcm_room(pointer);
    if (room < 0)
      neurontools::warn("tcm: %s with a pointer that is not from tcm_malloc", what);
    else if (count * sizeof(T) > static_cast<std::size_t>(room))
      neurontools::fail("tcm", "%s of %zu bytes into a TCM block that has %lld bytes left", what, count * sizeof(T),
                        static_cast<long long>(room));
  }

  neurontools::TensorPointer impl_;
};

}  // namespace torch
