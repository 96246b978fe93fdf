// What tensor handles share: shape, element type, bytes, and who is looking at them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "neurontools/array_ref.hpp"
#include "neurontools/coherence.hpp"
#include "neurontools/context.hpp"
#include "neurontools/dtype.hpp"

namespace neurontools {

enum class Origin { kTemporary, kArgument, kOutput };

struct TensorImpl {
  std::int64_t sizes[abi::kMaxDim] = {};
  std::int64_t strides[abi::kMaxDim] = {};
  std::int64_t dim = 0;
  std::int64_t numel = 1;
  std::size_t nbytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Origin origin = Origin::kTemporary;
  bool read_only = false;
  int stream_readers = 0;
  int stream_writers = 0;
  torch::CoherencyEnforcer::Policy policy = torch::CoherencyEnforcer::Policy::COHERENT;
  void* storage = nullptr;
  bool owns_storage = false;

  TensorImpl(c10::IntArrayRef shape, c10::ScalarType type);
  TensorImpl(const TensorImpl&) = delete;
  TensorImpl& operator=(const TensorImpl&) = delete;
  ~TensorImpl() {
    if (owns_storage) std::free(storage);
  }

  /// The bytes; fails in a shape function.
  void* data() const {
    if (storage == nullptr && context.meta)
      fail("shape", "a shape function must not touch tensor data: only sizes and dtype exist there");
    return storage;
  }
  void allocate();
  void check_writable() const {
    if (read_only) fail("const", "write to an argument that the kernel takes as const Tensor&");
  }
};

inline TensorImpl::TensorImpl(c10::IntArrayRef shape, c10::ScalarType type) : dtype(type) {
  if (shape.size() > abi::kMaxDim)
    fail("shape", "a tensor of %zu dimensions; the limit is %d", shape.size(), abi::kMaxDim);
  dim = static_cast<std::int64_t>(shape.size());
  for (std::int64_t i = 0; i < dim; ++i) {
    sizes[i] = shape[static_cast<std::size_t>(i)];
    if (sizes[i] < 0) fail("shape", "size %lld of dimension %lld is negative", static_cast<long long>(sizes[i]), static_cast<long long>(i));
    if (__builtin_mul_overflow(numel, sizes[i], &numel)) fail("shape", "the number of elements overflows");
  }
  std::int64_t step = 1;
  for (std::int64_t i = dim - 1; i >= 0; --i) {
    strides[i] = step;
    step *= sizes[i] > 0 ? sizes[i] : 1;
  }
  if (__builtin_mul_overflow(static_cast<std::size_t>(numel), c10::elementSize(type), &nbytes))
    fail("shape", "the number of bytes overflows");
}

inline void TensorImpl::allocate() {
  if (context.meta) return;
  const std::size_t rounded = (nbytes + 63) / 64 * 64;
  storage = ::aligned_alloc(64, rounded == 0 ? 64 : rounded);
  if (storage == nullptr) fail("memory", "no memory for a tensor of %zu bytes", nbytes);
  owns_storage = true;
}

/// Fail or warn, by the tensor's policy, when streams and element accesses meet.
inline void check_coherence(const TensorImpl& impl, bool writes) {
  using Policy = torch::CoherencyEnforcer::Policy;
  if (impl.stream_writers == 0 && (!writes || impl.stream_readers == 0)) return;
  if (impl.policy == Policy::COHERENT)
    fail("coherence", "element access while a stream accessor of the same tensor is active; close() it first, or set "
                      "another coherence policy");
  if (impl.policy == Policy::INCOHERENT_VERBOSE)
    warn("element access while a stream accessor of the same tensor is active: the values may be stale");
}

}  // namespace neurontools
