// A growing array of plain values, with a tenth of the compile time of std::vector.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>

namespace neurontools {

/// Its memory is never freed: lists live as long as the process, and are used during static initialization.
template <typename T>
class List {
  static_assert(std::is_trivially_copyable<T>::value, "a list moves its elements as bytes");

 public:
  void add(const T& value) {
    const T kept = value;  // `value` may be in this list
    if (size_ == capacity_) grow();
    data_[size_++] = kept;
  }
  /// Remove an element; later ones move up.
  void remove(std::size_t index) {
    for (--size_; index < size_; ++index) data_[index] = data_[index + 1];
  }
  void clear() { size_ = 0; }

  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  T& operator[](std::size_t index) { return data_[index]; }
  T& back() { return data_[size_ - 1]; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  void grow() {
    const std::size_t wanted = capacity_ == 0 ? 16 : 2 * capacity_;
    void* memory = std::realloc(static_cast<void*>(data_), wanted * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
    capacity_ = wanted;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace neurontools
