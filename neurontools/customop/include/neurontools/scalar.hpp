// A number whose type is known at run time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "neurontools/dtype.hpp"

namespace c10 {

class Scalar {
 public:
  Scalar() : Scalar(std::int64_t{0}) {}
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0>
  Scalar(T value)
      : floating_(std::is_floating_point<T>::value),
        boolean_(std::is_same<T, bool>::value),
        real_(static_cast<double>(value)),
        integer_(std::is_floating_point<T>::value ? 0 : static_cast<std::int64_t>(value)) {}
  Scalar(Half value) : Scalar(static_cast<float>(value)) {}
  Scalar(BFloat16 value) : Scalar(static_cast<float>(value)) {}

  bool isFloatingPoint() const { return floating_; }
  bool isIntegral(bool include_bool) const { return !floating_ && (include_bool || !boolean_); }
  bool isBoolean() const { return boolean_; }
  ScalarType type() const { return floating_ ? kDouble : boolean_ ? kBool : kLong; }

  template <typename T>
  T to() const {
    return convert<T>(std::is_integral<T>{});
  }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  std::int64_t toLong() const { return to<std::int64_t>(); }
  int toInt() const { return to<int>(); }
  short toShort() const { return to<short>(); }
  std::int8_t toChar() const { return to<std::int8_t>(); }
  std::uint8_t toByte() const { return to<std::uint8_t>(); }
  bool toBool() const { return floating_ ? real_ != 0 : integer_ != 0; }
  Half toHalf() const { return to<Half>(); }
  BFloat16 toBFloat16() const { return to<BFloat16>(); }

 private:
  template <typename T>
  T convert(std::true_type) const {
    return floating_ ? static_cast<T>(real_) : static_cast<T>(integer_);
  }
  template <typename T>
  T convert(std::false_type) const {
    // Half and BFloat16 are converted from float; a double is converted to float first, as in torch.
    using Step = std::conditional_t<std::is_floating_point<T>::value, T, float>;
    return T(static_cast<Step>(floating_ ? real_ : static_cast<double>(integer_)));
  }

  bool floating_;
  bool boolean_;
  double real_;
  std::int64_t integer_;
};

}  // namespace c10

namespace torch {
using c10::Scalar;
}
