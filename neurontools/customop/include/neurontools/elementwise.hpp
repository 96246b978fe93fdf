// Element-wise loops and the dtype rules of torch, without broadcasting.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "neurontools/factories.hpp"
#include "neurontools/scalar.hpp"
#include "neurontools/tensor.hpp"

namespace neurontools {

/// The type of computations: float for 16-bit floating types, 64-bit integers (then wrapped) for integers.
template <typename T>
using Compute = std::conditional_t<std::is_integral<T>::value, std::int64_t, float>;

/// Convert a computed value to an element; 16-bit floating types are converted from float.
template <typename T, typename C>
T element(C value) {
  using Step = std::conditional_t<std::is_integral<T>::value, C, float>;
  return static_cast<T>(static_cast<Step>(value));
}

inline c10::ScalarType promote(c10::ScalarType a, c10::ScalarType b) {
  if (a == b) return a;
  const bool floating_a = c10::isFloatingType(a);
  const bool floating_b = c10::isFloatingType(b);
  if (floating_a != floating_b) return floating_a ? a : b;
  if (floating_a) return c10::kFloat;
  const bool mixes_signs = a == c10::kByte || b == c10::kByte;
  if (mixes_signs && c10::elementSize(a) == c10::elementSize(b)) return c10::kShort;
  return c10::elementSize(a) > c10::elementSize(b) ? a : b;
}

inline c10::ScalarType promote(c10::ScalarType tensor, const c10::Scalar& scalar) {
  return scalar.isFloatingPoint() && !c10::isFloatingType(tensor) ? c10::kFloat : tensor;
}

inline c10::ScalarType promote_to_floating(c10::ScalarType type) {
  return c10::isFloatingType(type) ? type : c10::kFloat;
}

inline void check_same_sizes(const char* name, const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) fail("shape", "%s of tensors of different sizes: the device does not broadcast", name);
}

template <typename From, typename To>
void convert_elements(const TensorImpl& from, const TensorImpl& to) {
  const From* source = static_cast<const From*>(from.data());
  To* target = static_cast<To*>(to.data());
  for (std::int64_t i = 0; i < from.numel; ++i) target[i] = element<To>(static_cast<Compute<From>>(source[i]));
}

inline void copy_elements(const torch::Tensor& from, const torch::Tensor& to) {
  dispatch(from.scalar_type(), [&](auto from_tag) {
    dispatch(to.scalar_type(), [&](auto to_tag) {
      convert_elements<decltype(from_tag), decltype(to_tag)>(from.impl(), to.impl());
    });
  });
}

inline torch::Tensor to_dtype(const torch::Tensor& tensor, c10::ScalarType type) {
  if (tensor.scalar_type() == type) return tensor;
  torch::Tensor result = torch::empty(tensor.sizes(), type);
  if (!context.meta) copy_elements(tensor, result);
  return result;
}

/// Write the result of an operation to the tensor of the caller.
inline torch::Tensor& store(const char* name, torch::Tensor& result, const torch::Tensor& value) {
  check_same_sizes(name, result, value);
  if (c10::isFloatingType(value.scalar_type()) && !c10::isFloatingType(result.scalar_type()))
    fail("dtype", "the result of %s has dtype %s and cannot be stored as %s", name, c10::toString(value.scalar_type()),
         c10::toString(result.scalar_type()));
  if (context.meta) return result;
  result.impl().check_writable();
  copy_elements(value, result);
  note_whole_write(result.impl());
  return result;
}

/// result[i] = f(a[i]) in dtype `type`.
template <typename F>
torch::Tensor map(const torch::Tensor& a, c10::ScalarType type, F f) {
  torch::Tensor result = torch::empty(a.sizes(), type);
  if (context.meta) return result;
  const torch::Tensor x = to_dtype(a, type);
  dispatch(type, [&](auto tag) {
    using T = decltype(tag);
    const T* in = static_cast<const T*>(x.impl().data());
    T* out = static_cast<T*>(result.impl().data());
    for (std::int64_t i = 0; i < x.numel(); ++i) out[i] = element<T>(f(static_cast<Compute<T>>(in[i])));
  });
  count_function(a.impl());
  count_function(result.impl());
  count_compute(result.impl());
  return result;
}

/// result[i] = f(a[i], b[i]) in dtype `type`.
template <typename F>
torch::Tensor zip(const char* name, const torch::Tensor& a, const torch::Tensor& b, c10::ScalarType type, F f) {
  check_same_sizes(name, a, b);
  torch::Tensor result = torch::empty(a.sizes(), type);
  if (context.meta) return result;
  const torch::Tensor x = to_dtype(a, type);
  const torch::Tensor y = to_dtype(b, type);
  dispatch(type, [&](auto tag) {
    using T = decltype(tag);
    const T* left = static_cast<const T*>(x.impl().data());
    const T* right = static_cast<const T*>(y.impl().data());
    T* out = static_cast<T*>(result.impl().data());
    for (std::int64_t i = 0; i < x.numel(); ++i)
      out[i] = element<T>(f(static_cast<Compute<T>>(left[i]), static_cast<Compute<T>>(right[i])));
  });
  count_function(a.impl());
  count_function(b.impl());
  count_function(result.impl());
  count_compute(result.impl());
  return result;
}

/// A scalar as an operand of dtype `type`: rounded to it, integers wrap.
inline c10::Scalar rounded(const c10::Scalar& scalar, c10::ScalarType type) {
  c10::Scalar value;
  dispatch(type, [&](auto tag) { value = c10::Scalar(scalar.to<decltype(tag)>()); });
  return value;
}

/// Fail for a scalar that dtype `type` cannot represent; infinities and NaN are in every floating type.
inline void check_fits(const char* name, const c10::Scalar& scalar, c10::ScalarType type) {
  const bool fits = c10::isFloatingType(type)
                        ? !std::isfinite(scalar.toDouble()) || std::isfinite(rounded(scalar, type).toDouble())
                        : rounded(scalar, type).toLong() == scalar.toLong();
  if (!fits) fail("domain", "%s: the number %g does not fit into dtype %s", name, scalar.toDouble(), c10::toString(type));
}

}  // namespace neurontools
