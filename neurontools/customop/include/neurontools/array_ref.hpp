// A non-owning view of an array, used for sizes of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <vector>

#include "neurontools/error.hpp"

namespace c10 {

template <typename T>
class ArrayRef {
 public:
  ArrayRef() = default;
  ArrayRef(const T* data, std::size_t length) : data_(data), length_(length) {}
  ArrayRef(const T* begin, const T* end) : data_(begin), length_(static_cast<std::size_t>(end - begin)) {}
  ArrayRef(const std::initializer_list<T>& list) : ArrayRef(list.begin(), list.size()) {}
  ArrayRef(const std::vector<T>& vector) : data_(vector.data()), length_(vector.size()) {}
  template <std::size_t N>
  ArrayRef(const T (&array)[N]) : data_(array), length_(N) {}
  ArrayRef(const T& one) : data_(&one), length_(1) {}

  const T* begin() const { return data_; }
  const T* end() const { return data_ + length_; }
  const T* data() const { return data_; }
  std::size_t size() const { return length_; }
  bool empty() const { return length_ == 0; }
  const T& front() const { return at(0); }
  const T& back() const { return at(length_ - 1); }
  const T& operator[](std::size_t index) const { return at(index); }
  const T& at(std::size_t index) const {
    if (index >= length_) neurontools::fail("index", "index %zu of a list of %zu", index, length_);
    return data_[index];
  }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef other) const {
    if (length_ != other.length_) return false;
    for (std::size_t i = 0; i < length_; ++i)
      if (data_[i] != other.data_[i]) return false;
    return true;
  }

 private:
  const T* data_ = nullptr;
  std::size_t length_ = 0;
};

template <typename T>
bool operator==(ArrayRef<T> left, ArrayRef<T> right) { return left.equals(right); }
template <typename T>
bool operator!=(ArrayRef<T> left, ArrayRef<T> right) { return !left.equals(right); }

/// Sizes as `[2, 3]`, for messages.
template <typename T>
void append_text(std::string& text, ArrayRef<T> list) {
  using neurontools::append_text;
  text += '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i != 0) text += ", ";
    append_text(text, list[i]);
  }
  text += ']';
}

/// The same for streams, if <ostream> is included.
template <typename T, typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& stream, ArrayRef<T> list) {
  stream << '[';
  for (std::size_t i = 0; i < list.size(); ++i) stream << (i == 0 ? "" : ", ") << list[i];
  return stream << ']';
}

using IntArrayRef = ArrayRef<std::int64_t>;

}  // namespace c10

namespace neurontools {
template <typename T>
struct IsPlain<c10::ArrayRef<T>> : IsPlain<T> {};
}  // namespace neurontools

namespace torch {
using c10::ArrayRef;
using c10::IntArrayRef;
}  // namespace torch
