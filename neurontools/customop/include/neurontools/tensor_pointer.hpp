// Who shares a tensor: a pointer that counts its copies in the tensor. Smaller and quicker to compile than shared_ptr.
#pragma once

#include <utility>

#include "neurontools/tensor_impl.hpp"

namespace neurontools {

/// Copies may be made and dropped in several threads at once; one of them is for one thread, as with shared_ptr.
class TensorPointer {
 public:
  constexpr TensorPointer() noexcept = default;
  /// Take a tensor that `new` made.
  explicit TensorPointer(TensorImpl* impl) noexcept : impl_(impl) { retain(); }
  TensorPointer(const TensorPointer& other) noexcept : impl_(other.impl_) { retain(); }
  TensorPointer(TensorPointer&& other) noexcept : impl_(other.impl_) { other.impl_ = nullptr; }
  TensorPointer& operator=(TensorPointer other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  ~TensorPointer() {
    if (impl_ != nullptr && __atomic_sub_fetch(&impl_->references, 1, __ATOMIC_ACQ_REL) == 0) delete impl_;
  }

  void reset() noexcept { *this = TensorPointer(); }
  TensorImpl* get() const noexcept { return impl_; }
  TensorImpl& operator*() const noexcept { return *impl_; }
  TensorImpl* operator->() const noexcept { return impl_; }
  explicit operator bool() const noexcept { return impl_ != nullptr; }
  /// Whether somebody else has a copy.
  bool is_shared() const noexcept { return impl_ != nullptr && __atomic_load_n(&impl_->references, __ATOMIC_ACQUIRE) > 1; }

 private:
  void retain() const noexcept {
    if (impl_ != nullptr) __atomic_add_fetch(&impl_->references, 1, __ATOMIC_RELAXED);
  }

  TensorImpl* impl_ = nullptr;
};

}  // namespace neurontools
