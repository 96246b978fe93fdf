// Options of a factory: on the device only the dtype matters, the others are accepted and ignored.
#pragma once

#include "neurontools/dtype.hpp"

namespace c10 {

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}

  TensorOptions dtype(ScalarType type) const { return TensorOptions(type); }
  template <typename Device>
  TensorOptions device(const Device&) const { return *this; }
  template <typename Layout>
  TensorOptions layout(const Layout&) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  ScalarType dtype() const { return dtype_; }

 private:
  ScalarType dtype_ = kFloat;
};

inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }

}  // namespace c10

namespace torch {
using c10::TensorOptions;
using c10::dtype;
}  // namespace torch
