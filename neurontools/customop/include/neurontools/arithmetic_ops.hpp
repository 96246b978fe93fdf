// add, sub, mul, div, pow, clamp: dtypes promote as in torch; integer results wrap; div is true division.
#pragma once

#include <cmath>
#include <cstdint>

#include "neurontools/elementwise.hpp"

namespace neurontools {

inline void check_alpha(const char* name, c10::ScalarType type, const c10::Scalar& alpha) {
  if (!c10::isFloatingType(type) && alpha.isFloatingPoint())
    fail("dtype", "%s of integer tensors takes an integer alpha", name);
}

// Computed as unsigned: overflow wraps, as in hardware.
inline std::int64_t multiply(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
inline float multiply(float a, float b) { return a * b; }

// Checked first: pow() of a signalling NaN is NaN in some C libraries.
inline float power(float base, float exponent) {
  return exponent == 0.0f || base == 1.0f ? 1.0f : std::pow(base, exponent);
}
inline std::int64_t power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  std::int64_t result = 1;
  for (; exponent > 0; exponent /= 2, base = multiply(base, base))
    if (exponent % 2 == 1) result = multiply(result, base);
  return result;
}

template <typename C>
C limit(C value, C low, C high) {
  // A NaN bound makes every element NaN, as in torch.
  if (low != low) return low;
  if (high != high) return high;
  if (value < low) value = low;
  return high < value ? high : value;
}

/// self + sign * alpha * other
inline torch::Tensor add_scaled(const char* name, int sign, const torch::Tensor& self, const torch::Tensor& other,
                                const c10::Scalar& alpha) {
  const c10::ScalarType type = promote(self.scalar_type(), other.scalar_type());
  check_alpha(name, type, alpha);
  return zip(name, self, other, type, [&, sign](auto a, auto b) {
    using C = decltype(a);
    return static_cast<C>(a + static_cast<C>(sign) * multiply(alpha.to<C>(), b));
  });
}

inline torch::Tensor add_scaled(const char* name, int sign, const torch::Tensor& self, const c10::Scalar& other,
                                const c10::Scalar& alpha) {
  const c10::ScalarType type = promote(self.scalar_type(), other);
  check_alpha(name, type, alpha);
  const c10::Scalar value = rounded(other, type);
  return map(self, type, [&, sign](auto a) {
    using C = decltype(a);
    return static_cast<C>(a + static_cast<C>(sign) * multiply(alpha.to<C>(), value.to<C>()));
  });
}

}  // namespace neurontools

namespace torch {

inline Tensor add(const Tensor& self, const Tensor& other, const Scalar& alpha = 1) {
  return neurontools::add_scaled("add", 1, self, other, alpha);
}
inline Tensor add(const Tensor& self, const Scalar& other, const Scalar& alpha = 1) {
  return neurontools::add_scaled("add", 1, self, other, alpha);
}
inline Tensor sub(const Tensor& self, const Tensor& other, const Scalar& alpha = 1) {
  return neurontools::add_scaled("sub", -1, self, other, alpha);
}
inline Tensor sub(const Tensor& self, const Scalar& other, const Scalar& alpha = 1) {
  return neurontools::add_scaled("sub", -1, self, other, alpha);
}

inline Tensor mul(const Tensor& self, const Tensor& other) {
  const ScalarType type = neurontools::promote(self.scalar_type(), other.scalar_type());
  return neurontools::zip("mul", self, other, type, [](auto a, auto b) { return neurontools::multiply(a, b); });
}
inline Tensor mul(const Tensor& self, const Scalar& other) {
  return neurontools::map(self, neurontools::promote(self.scalar_type(), other),
                          [&](auto a) { return neurontools::multiply(a, other.to<decltype(a)>()); });
}

inline Tensor div(const Tensor& self, const Tensor& other) {
  const ScalarType type = neurontools::promote(self.scalar_type(), other.scalar_type());
  return neurontools::zip("div", self, other, neurontools::promote_to_floating(type),
                          [](auto a, auto b) { return static_cast<float>(a) / static_cast<float>(b); });
}
inline Tensor div(const Tensor& self, const Scalar& other) {
  return neurontools::map(self, neurontools::promote_to_floating(self.scalar_type()),
                          [&](auto a) { return static_cast<float>(a) / other.toFloat(); });
}

inline Tensor pow(const Tensor& self, const Tensor& exponent) {
  const ScalarType type = neurontools::promote(self.scalar_type(), exponent.scalar_type());
  return neurontools::zip("pow", self, exponent, type, [](auto a, auto b) { return neurontools::power(a, b); });
}
inline Tensor pow(const Tensor& self, const Scalar& exponent) {
  const ScalarType type = neurontools::promote(self.scalar_type(), exponent);
  if (!c10::isFloatingType(type) && exponent.toLong() < 0)
    neurontools::fail("domain", "integers to negative integer powers are not allowed");
  // torch keeps the exponent of Float tensors unchanged and casts others to the tensor's dtype.
  if (type != kFloat) neurontools::check_fits("pow", exponent, type);
  return neurontools::map(self, type, [&](auto a) { return neurontools::power(a, exponent.to<decltype(a)>()); });
}
inline Tensor pow(const Scalar& self, const Tensor& exponent) {
  const ScalarType type = neurontools::promote(exponent.scalar_type(), self);
  const Scalar base = neurontools::rounded(self, type);
  return neurontools::map(exponent, type, [&](auto b) { return neurontools::power(base.to<decltype(b)>(), b); });
}

inline Tensor clamp(const Tensor& self, const Scalar& minval, const Scalar& maxval) {
  const ScalarType type = neurontools::promote(neurontools::promote(self.scalar_type(), minval), maxval);
  neurontools::check_fits("clamp", minval, type);
  neurontools::check_fits("clamp", maxval, type);
  return neurontools::map(self, type, [&](auto a) {
    using C = decltype(a);
    return neurontools::limit<C>(a, minval.to<C>(), maxval.to<C>());
  });
}

inline Tensor& add_out(Tensor& result, const Tensor& self, const Tensor& other, const Scalar& alpha = 1) {
  return neurontools::store("add", result, add(self, other, alpha));
}
inline Tensor& add_out(Tensor& result, const Tensor& self, const Scalar& other, const Scalar& alpha = 1) {
  return neurontools::store("add", result, add(self, other, alpha));
}
inline Tensor& sub_out(Tensor& result, const Tensor& self, const Tensor& other, const Scalar& alpha = 1) {
  return neurontools::store("sub", result, sub(self, other, alpha));
}
inline Tensor& sub_out(Tensor& result, const Tensor& self, const Scalar& other, const Scalar& alpha = 1) {
  return neurontools::store("sub", result, sub(self, other, alpha));
}
inline Tensor& mul_out(Tensor& result, const Tensor& self, const Tensor& other) {
  return neurontools::store("mul", result, mul(self, other));
}
inline Tensor& mul_out(Tensor& result, const Tensor& self, const Scalar& other) {
  return neurontools::store("mul", result, mul(self, other));
}
inline Tensor& div_out(Tensor& result, const Tensor& self, const Tensor& other) {
  return neurontools::store("div", result, div(self, other));
}
inline Tensor& div_out(Tensor& result, const Tensor& self, const Scalar& other) {
  return neurontools::store("div", result, div(self, other));
}
inline Tensor& pow_out(Tensor& result, const Tensor& self, const Tensor& exponent) {
  return neurontools::store("pow", result, pow(self, exponent));
}
inline Tensor& pow_out(Tensor& result, const Tensor& self, const Scalar& exponent) {
  return neurontools::store("pow", result, pow(self, exponent));
}
inline Tensor& pow_out(Tensor& result, const Scalar& self, const Tensor& exponent) {
  return neurontools::store("pow", result, pow(self, exponent));
}
inline Tensor& clamp_out(Tensor& result, const Tensor& self, const Scalar& minval, const Scalar& maxval) {
  return neurontools::store("clamp", result, clamp(self, minval, maxval));
}

}  // namespace torch
