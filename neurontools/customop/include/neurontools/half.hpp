// The two 16-bit floating types; arithmetic is in float, each store rounds to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace neurontools {

inline std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bits_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint16_t float_to_half(float value) {
  const std::uint32_t sign = (float_bits(value) >> 16) & 0x8000u;
  std::uint32_t bits = float_bits(value) & 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {
    // Below 2^-14 the half's spacing is 2^-24, which is the float's spacing at 0.5: the addition rounds.
    const std::uint32_t rounded = float_bits(bits_float(bits) + 0.5f) - float_bits(0.5f);
    return static_cast<std::uint16_t>(sign | rounded);
  }
  bits -= 112u << 23;
  bits += 0xfffu + ((bits >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (bits >> 13));
}

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * bits_float(0x33800000u);
    return bits_float(sign | float_bits(magnitude));
  }
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float bfloat16_to_float(std::uint16_t bits) { return bits_float(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace neurontools

namespace c10 {

struct Half {
  std::uint16_t x;

  Half() = default;
  Half(float value) : x(neurontools::float_to_half(value)) {}
  operator float() const { return neurontools::half_to_float(x); }
};

struct BFloat16 {
  std::uint16_t x;

  BFloat16() = default;
  BFloat16(float value) : x(neurontools::float_to_bfloat16(value)) {}
  operator float() const { return neurontools::bfloat16_to_float(x); }
};

}  // namespace c10
