// Numbers and addresses in messages, as streams print them.
#include <cstdio>

#include "neurontools/message.hpp"

namespace neurontools {

namespace {

template <typename T>
void print(std::string& text, const char* format, T value) {
  char digits[64];
  std::snprintf(digits, sizeof digits, format, value);
  text += digits;
}

}  // namespace

void append_text(std::string& text, const char* part) {
  if (part != nullptr) text += part;
}
void append_text(std::string& text, long long part) { print(text, "%lld", part); }
void append_text(std::string& text, unsigned long long part) { print(text, "%llu", part); }
void append_text(std::string& text, long double part) { print(text, "%Lg", part); }
void append_text(std::string& text, const void* part) { print(text, "%#lx", reinterpret_cast<unsigned long>(part)); }

}  // namespace neurontools
