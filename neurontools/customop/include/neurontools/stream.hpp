// Stream accessors: a tensor from front to back through a 4 KiB buffer in TCM.
#pragma once

#include <cstdint>
#include <utility>

#include "neurontools/tensor_impl.hpp"
#include "neurontools/tensor_pointer.hpp"

namespace neurontools {

/// State of a reading or writing stream: position, buffer, lifetime.
class Stream {
 public:
  Stream(TensorPointer impl, bool writes) : impl_(std::move(impl)), writes_(writes) {
    if (context.multicore) fail("multicore", "stream accessors work in single-core mode only; use tcm_accessor()");
    impl_->data();
    if (writes) impl_->check_writable();
    if (impl_->active_streams != 0 && (writes || impl_->written_by_stream))
      fail("stream", "a tensor may have many read streams or one write stream, not both");
    ++impl_->active_streams;
    impl_->written_by_stream = writes;
    buffer_ = tcm_allocate(kStreamBufferBytes);
    place_ = open_stream(*impl_, buffer_ != nullptr);
  }
  Stream(Stream&& other) noexcept
      : impl_(std::move(other.impl_)),
        buffer_(other.buffer_),
        place_(other.place_),
        position_(other.position_),
        writes_(other.writes_) {
    other.buffer_ = nullptr;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Stream& operator=(Stream&&) = delete;
  ~Stream() { end(); }

  std::int64_t advance(const char* what) {
    if (!impl_) fail("stream", "%s after close()", what);
    if (position_ >= impl_->numel)
      fail("stream", "%s beyond the last of %lld elements", what, static_cast<long long>(impl_->numel));
    return position_++;
  }
  void* data() const { return impl_->storage; }
  int close() {
    if (!impl_) fail("stream", "close() of a stream that is closed");
    end();
    return 0;
  }

 private:
  void end() {
    if (!impl_) return;
    const std::uint64_t moved = static_cast<std::uint64_t>(position_) * c10::elementSize(impl_->dtype);
    if (buffer_ != nullptr) tcm_release(buffer_);
    count_stream(*impl_, static_cast<std::uint64_t>(position_), buffer_ != nullptr, place_);
    if (writes_ && impl_->origin == Origin::kOutput) note_output_write(0, moved);
    --impl_->active_streams;
    impl_->written_by_stream = false;
    impl_.reset();
  }

  TensorPointer impl_;
  void* buffer_ = nullptr;
  void* place_ = nullptr;
  std::int64_t position_ = 0;
  bool writes_;
};

}  // namespace neurontools

namespace torch {

template <typename T>
class TensorReadStreamAccessor {
 public:
  explicit TensorReadStreamAccessor(neurontools::TensorPointer impl) : stream_(std::move(impl), false) {}
  T read() {
    const std::int64_t position = stream_.advance("read()");
    return static_cast<const T*>(stream_.data())[position];
  }
  int close() { return stream_.close(); }

 private:
  neurontools::Stream stream_;
};

template <typename T>
class TensorWriteStreamAccessor {
 public:
  explicit TensorWriteStreamAccessor(neurontools::TensorPointer impl) : stream_(std::move(impl), true) {}
  void write(T value) {
    const std::int64_t position = stream_.advance("write()");
    static_cast<T*>(stream_.data())[position] = value;
  }
  int close() { return stream_.close(); }

 private:
  neurontools::Stream stream_;
};

}  // namespace torch
