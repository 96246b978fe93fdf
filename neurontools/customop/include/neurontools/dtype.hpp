// Element types: the seven of the device, and three more of host tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <type_traits>

#include "neurontools/error.hpp"
#include "neurontools/half.hpp"

namespace c10 {

// The numbers are those of torch, which the host uses too.
enum class ScalarType : std::int8_t {
  Byte = 0,
  Char = 1,
  Short = 2,
  Int = 3,
  Long = 4,
  Half = 5,
  Float = 6,
  Double = 7,
  Bool = 11,
  BFloat16 = 15,
  Undefined = 127,
};

constexpr ScalarType kByte = ScalarType::Byte;
constexpr ScalarType kChar = ScalarType::Char;
constexpr ScalarType kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int;
constexpr ScalarType kLong = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half;
constexpr ScalarType kFloat = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double;
constexpr ScalarType kBool = ScalarType::Bool;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;
constexpr ScalarType kUInt8 = kByte;
constexpr ScalarType kInt8 = kChar;
constexpr ScalarType kInt16 = kShort;
constexpr ScalarType kInt32 = kInt;
constexpr ScalarType kInt64 = kLong;
constexpr ScalarType kFloat16 = kHalf;
constexpr ScalarType kFloat32 = kFloat;
constexpr ScalarType kFloat64 = kDouble;

inline const char* toString(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "Byte";
    case ScalarType::Char: return "Char";
    case ScalarType::Short: return "Short";
    case ScalarType::Int: return "Int";
    case ScalarType::Long: return "Long";
    case ScalarType::Half: return "Half";
    case ScalarType::Float: return "Float";
    case ScalarType::Double: return "Double";
    case ScalarType::Bool: return "Bool";
    case ScalarType::BFloat16: return "BFloat16";
    case ScalarType::Undefined: break;
  }
  return "Undefined";
}

inline void append_text(std::string& text, ScalarType type) { text += toString(type); }

template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& stream, ScalarType type) {
  return stream << toString(type);
}

inline std::size_t elementSize(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool: return 1;
    case ScalarType::Short:
    case ScalarType::Half:
    case ScalarType::BFloat16: return 2;
    case ScalarType::Int:
    case ScalarType::Float: return 4;
    case ScalarType::Long:
    case ScalarType::Double: return 8;
    case ScalarType::Undefined: break;
  }
  return 0;
}

inline bool isFloatingType(ScalarType type) {
  return type == kFloat || type == kHalf || type == kBFloat16 || type == kDouble;
}

inline bool isIntegralType(ScalarType type, bool include_bool) {
  return (include_bool && type == kBool) || (!isFloatingType(type) && type != kBool && type != ScalarType::Undefined);
}

/// ScalarType of a C++ element type.
template <typename T>
struct CppTypeToScalarType {
  static_assert(!std::is_same<T, T>::value, "no tensor has this element type");
};
template <> struct CppTypeToScalarType<std::uint8_t> : std::integral_constant<ScalarType, kByte> {};
template <> struct CppTypeToScalarType<std::int8_t> : std::integral_constant<ScalarType, kChar> {};
template <> struct CppTypeToScalarType<std::int16_t> : std::integral_constant<ScalarType, kShort> {};
template <> struct CppTypeToScalarType<std::int32_t> : std::integral_constant<ScalarType, kInt> {};
template <> struct CppTypeToScalarType<long> : std::integral_constant<ScalarType, kLong> {};
template <> struct CppTypeToScalarType<long long> : std::integral_constant<ScalarType, kLong> {};
template <> struct CppTypeToScalarType<Half> : std::integral_constant<ScalarType, kHalf> {};
template <> struct CppTypeToScalarType<float> : std::integral_constant<ScalarType, kFloat> {};
template <> struct CppTypeToScalarType<double> : std::integral_constant<ScalarType, kDouble> {};
template <> struct CppTypeToScalarType<bool> : std::integral_constant<ScalarType, kBool> {};
template <> struct CppTypeToScalarType<BFloat16> : std::integral_constant<ScalarType, kBFloat16> {};

}  // namespace c10

namespace neurontools {

template <>
struct IsPlain<c10::ScalarType> : std::true_type {};
template <>
struct IsPlain<c10::Half> : std::true_type {};
template <>
struct IsPlain<c10::BFloat16> : std::true_type {};

/// Call `body` with a value of the element type `type`, one of the seven of the device.
template <typename Body>
void dispatch(c10::ScalarType type, Body&& body) {
  switch (type) {
    case c10::ScalarType::Byte: return body(std::uint8_t{});
    case c10::ScalarType::Char: return body(std::int8_t{});
    case c10::ScalarType::Short: return body(std::int16_t{});
    case c10::ScalarType::Int: return body(std::int32_t{});
    case c10::ScalarType::Half: return body(c10::Half{});
    case c10::ScalarType::Float: return body(float{});
    case c10::ScalarType::BFloat16: return body(c10::BFloat16{});
    default: fail("dtype", "dtype %s does not exist on the device", c10::toString(type));
  }
}

}  // namespace neurontools

namespace torch {
using c10::BFloat16;
using c10::Half;
using c10::ScalarType;
using c10::kBFloat16;
using c10::kBool;
using c10::kByte;
using c10::kChar;
using c10::kDouble;
using c10::kFloat;
using c10::kFloat16;
using c10::kFloat32;
using c10::kFloat64;
using c10::kHalf;
using c10::kInt;
using c10::kInt16;
using c10::kInt32;
using c10::kInt64;
using c10::kInt8;
using c10::kLong;
using c10::kShort;
using c10::kUInt8;
using Dtype = c10::ScalarType;
}  // namespace torch
