// The shared state of tensor handles: shape, element type, bytes, active accessors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "neurontools/array_ref.hpp"
#include "neurontools/coherence.hpp"
#include "neurontools/context.hpp"
#include "neurontools/counting.hpp"
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
  int argument = -1;  // its position among the arguments, -1 for none
  bool read_only = false;
  int active_streams = 0;
  bool written_by_stream = false;
  torch::CoherencyEnforcer::Policy policy = torch::CoherencyEnforcer::Policy::COHERENT;
  void* storage = nullptr;
  bool owns_storage = false;
  long references = 0;  // counted by TensorPointer

  TensorImpl(c10::IntArrayRef shape, c10::ScalarType type);
  TensorImpl(const TensorImpl&) = delete;
  TensorImpl& operator=(const TensorImpl&) = delete;
  ~TensorImpl() {
    if (owns_storage) release();
  }

  /// The bytes; fails in a shape function.
  void* data() const {
    if (storage == nullptr && context.meta)
      fail("shape", "a shape function must not touch tensor data: only sizes and dtype exist there");
    return storage;
  }
  void allocate();
  void release();
  void check_writable() const {
    if (read_only) fail("const", "write to an argument that the kernel takes as const Tensor&");
  }
};

/// Fail or warn, by the tensor's policy, when streams and element accesses meet.
void check_coherence(const TensorImpl& impl, bool writes);

}  // namespace neurontools
