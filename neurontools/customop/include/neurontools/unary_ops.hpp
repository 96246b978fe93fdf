// Operations of one tensor. Real functions of integer tensors return Float.
#pragma once

#include <cmath>
#include <cstdint>

#include "neurontools/elementwise.hpp"

namespace neurontools {

inline std::int64_t absolute(std::int64_t x) { return x < 0 ? -x : x; }
inline float absolute(float x) { return std::fabs(x); }
inline std::int64_t round_up(std::int64_t x) { return x; }
inline float round_up(float x) { return std::ceil(x); }
inline std::int64_t round_down(std::int64_t x) { return x; }
inline float round_down(float x) { return std::floor(x); }

template <typename F>
torch::Tensor map_real(const torch::Tensor& self, F f) {
  return map(self, promote_to_floating(self.scalar_type()), [f](auto x) { return f(static_cast<float>(x)); });
}

}  // namespace neurontools

namespace torch {

inline Tensor abs(const Tensor& self) {
  return neurontools::map(self, self.scalar_type(), [](auto x) { return neurontools::absolute(x); });
}
inline Tensor ceil(const Tensor& self) {
  return neurontools::map(self, self.scalar_type(), [](auto x) { return neurontools::round_up(x); });
}
inline Tensor floor(const Tensor& self) {
  return neurontools::map(self, self.scalar_type(), [](auto x) { return neurontools::round_down(x); });
}
inline Tensor sin(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::sin(x); }); }
inline Tensor cos(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::cos(x); }); }
inline Tensor tan(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::tan(x); }); }
inline Tensor log(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::log(x); }); }
inline Tensor log2(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::log2(x); }); }
inline Tensor log10(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::log10(x); }); }
inline Tensor exp(const Tensor& self) { return neurontools::map_real(self, [](float x) { return std::exp(x); }); }

inline Tensor& abs_out(Tensor& result, const Tensor& self) { return neurontools::store("abs", result, abs(self)); }
inline Tensor& ceil_out(Tensor& result, const Tensor& self) { return neurontools::store("ceil", result, ceil(self)); }
inline Tensor& floor_out(Tensor& result, const Tensor& self) { return neurontools::store("floor", result, floor(self)); }
inline Tensor& sin_out(Tensor& result, const Tensor& self) { return neurontools::store("sin", result, sin(self)); }
inline Tensor& cos_out(Tensor& result, const Tensor& self) { return neurontools::store("cos", result, cos(self)); }
inline Tensor& tan_out(Tensor& result, const Tensor& self) { return neurontools::store("tan", result, tan(self)); }
inline Tensor& log_out(Tensor& result, const Tensor& self) { return neurontools::store("log", result, log(self)); }
inline Tensor& log2_out(Tensor& result, const Tensor& self) { return neurontools::store("log2", result, log2(self)); }
inline Tensor& log10_out(Tensor& result, const Tensor& self) { return neurontools::store("log10", result, log10(self)); }
inline Tensor& exp_out(Tensor& result, const Tensor& self) { return neurontools::store("exp", result, exp(self)); }

}  // namespace torch
