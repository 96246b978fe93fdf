// A reference-counted pointer to a tensor. Smaller and faster to compile than shared_ptr.
#pragma once

#include <utility>

#include "neurontools/tensor_impl.hpp"

namespace neurontools {

/// As with shared_ptr, copies may be used in several threads, each copy in one thread.
class TensorPointer {
 public:
  constexpr TensorPointer() noexcept = default;
  /// Take ownership of a tensor created by `new`.
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
  /// Whether there are other copies.
  bool is_shared() const noexcept { return impl_ != nullptr && __atomic_load_n(&impl_->references, __ATOMIC_ACQUIRE) > 1; }

 private:
  void retain() const noexcept {
    if (impl_ != nullptr) __atomic_add_fetch(&impl_->references, 1, __ATOMIC_RELAXED);
  }

  TensorImpl* impl_ = nullptr;
};

}  // namespace neurontools
