// The text of a failed TORCH_CHECK: its parts as a stream prints them, without <sstream>, which takes longer to compile
// than all other headers together. If the user includes <sstream>, types with operator<< are supported too.
#pragma once

#include <iosfwd>
#include <string>
#include <type_traits>

namespace neurontools {

void append_text(std::string& text, const char* part);
void append_text(std::string& text, long long part);
void append_text(std::string& text, unsigned long long part);
void append_text(std::string& text, long double part);
void append_text(std::string& text, const void* part);
inline void append_text(std::string& text, const std::string& part) { text += part; }
inline void append_text(std::string& text, char part) { text += part; }
inline void append_text(std::string& text, signed char part) { text += static_cast<char>(part); }
inline void append_text(std::string& text, unsigned char part) { text += static_cast<char>(part); }
inline void append_text(std::string& text, bool part) { text += part ? '1' : '0'; }
inline void append_text(std::string& text, int part) { append_text(text, static_cast<long long>(part)); }
inline void append_text(std::string& text, long part) { append_text(text, static_cast<long long>(part)); }
inline void append_text(std::string& text, unsigned part) { append_text(text, static_cast<unsigned long long>(part)); }
inline void append_text(std::string& text, unsigned long part) {
  append_text(text, static_cast<unsigned long long>(part));
}
inline void append_text(std::string& text, float part) { append_text(text, static_cast<long double>(part)); }
inline void append_text(std::string& text, double part) { append_text(text, static_cast<long double>(part)); }
inline void append_text(std::string& text, const signed char* part) {
  append_text(text, reinterpret_cast<const char*>(part));
}
inline void append_text(std::string& text, const unsigned char* part) {
  append_text(text, reinterpret_cast<const char*>(part));
}

/// Whether a part is always printed without a stream.
template <typename T>
struct IsPlain : std::integral_constant<bool, std::is_arithmetic<T>::value || std::is_pointer<T>::value> {};
template <>
struct IsPlain<std::string> : std::true_type {};

/// Whether a part can be printed without a stream; an enumerator is printed as a number.
template <typename T>
struct IsPrintable : std::integral_constant<bool, IsPlain<T>::value || std::is_convertible<T, long double>::value> {};

template <template <typename> class Trait, typename... T>
struct All : std::true_type {};
template <template <typename> class Trait, typename First, typename... Rest>
struct All<Trait, First, Rest...>
    : std::integral_constant<bool, Trait<std::decay_t<First>>::value && All<Trait, Rest...>::value> {};

template <typename T, typename = void>
struct IsDefined : std::false_type {};
template <typename T>
struct IsDefined<T, std::enable_if_t<(sizeof(T) > 0)>> : std::true_type {};

template <bool streams, typename Stream>
struct Joiner {
  template <typename... Parts>
  static std::string join(const Parts&... parts) {
    static_assert(All<IsPrintable, Parts...>::value,
                  "TORCH_CHECK: a part of the message is no number, text, dtype or list of sizes; #include <sstream> "
                  "if it has an operator<<");
    std::string text;
    const int each[] = {0, (append_text(text, parts), 0)...};
    static_cast<void>(each);
    return text;
  }
};

template <typename Stream>
struct Joiner<true, Stream> {
  template <typename... Parts>
  static std::string join(const Parts&... parts) {
    Stream stream;
    const int each[] = {0, (static_cast<void>(stream << parts), 0)...};
    static_cast<void>(each);
    return stream.str();
  }
};

inline std::string concatenate() { return std::string(); }
inline std::string concatenate(const char* text) { return text; }

template <typename... Parts>
std::string concatenate(const Parts&... parts) {
  // A stream prints all parts or none, so manipulators affect the parts after them.
  constexpr bool kStreams = !All<IsPlain, Parts...>::value && IsDefined<std::ostringstream>::value;
  return Joiner<kStreams, std::ostringstream>::join(parts...);
}

}  // namespace neurontools
