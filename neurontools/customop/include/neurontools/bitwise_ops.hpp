// bitwise_and, bitwise_or, bitwise_not: integer tensors only; a scalar is cast to the tensor's dtype first.
#pragma once

#include <cstdint>
#include <type_traits>

#include "neurontools/elementwise.hpp"

namespace neurontools {

inline void check_integral(const char* name, const torch::Tensor& tensor) {
  if (!c10::isIntegralType(tensor.scalar_type(), false))
    fail("dtype", "%s needs an integer tensor, not %s", name, c10::toString(tensor.scalar_type()));
}

struct And {
  std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a & b; }
};
struct Or {
  std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a | b; }
};

template <typename F>
torch::Tensor bitwise(const char* name, const torch::Tensor& self, const torch::Tensor& other, F f) {
  check_integral(name, self);
  check_integral(name, other);
  return zip(name, self, other, promote(self.scalar_type(), other.scalar_type()), [f](auto a, auto b) {
    return f(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b));
  });
}

template <typename F>
torch::Tensor bitwise(const char* name, const torch::Tensor& self, const c10::Scalar& other, F f) {
  check_integral(name, self);
  const std::int64_t bits = other.toLong();
  return map(self, self.scalar_type(), [f, bits](auto a) { return f(static_cast<std::int64_t>(a), bits); });
}

}  // namespace neurontools

namespace torch {

inline Tensor bitwise_and(const Tensor& self, const Tensor& other) {
  return neurontools::bitwise("bitwise_and", self, other, neurontools::And());
}
inline Tensor bitwise_and(const Tensor& self, const Scalar& other) {
  return neurontools::bitwise("bitwise_and", self, other, neurontools::And());
}
inline Tensor bitwise_and(const Scalar& self, const Tensor& other) { return bitwise_and(other, self); }

inline Tensor bitwise_or(const Tensor& self, const Tensor& other) {
  return neurontools::bitwise("bitwise_or", self, other, neurontools::Or());
}
inline Tensor bitwise_or(const Tensor& self, const Scalar& other) {
  return neurontools::bitwise("bitwise_or", self, other, neurontools::Or());
}
inline Tensor bitwise_or(const Scalar& self, const Tensor& other) { return bitwise_or(other, self); }

inline Tensor bitwise_not(const Tensor& self) {
  neurontools::check_integral("bitwise_not", self);
  return neurontools::map(self, self.scalar_type(), [](auto a) { return ~static_cast<std::int64_t>(a); });
}

template <typename A, typename B>
Tensor& bitwise_and_out(Tensor& result, const A& self, const B& other) {
  return neurontools::store("bitwise_and", result, bitwise_and(self, other));
}
template <typename A, typename B>
Tensor& bitwise_or_out(Tensor& result, const A& self, const B& other) {
  return neurontools::store("bitwise_or", result, bitwise_or(self, other));
}
inline Tensor& bitwise_not_out(Tensor& result, const Tensor& self) {
  return neurontools::store("bitwise_not", result, bitwise_not(self));
}
// The API reference lists this form with a result argument too.
inline Tensor& bitwise_not(Tensor& result, const Tensor& self) { return bitwise_not_out(result, self); }

}  // namespace torch
