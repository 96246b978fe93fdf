// Memory of tensors, and the factories that fill it.
#include <cstdlib>
#include <cstring>

#include "neurontools/factories.hpp"
#include "runtime.hpp"

namespace neurontools {

namespace {

template <typename T>
void fill_elements(const TensorImpl& impl, T value) {
  T* data = static_cast<T*>(impl.data());
  const T zero{};
  if (impl.numel == 0) return;
  if (std::memcmp(&value, &zero, sizeof value) == 0)
    std::memset(static_cast<void*>(data), 0, impl.nbytes);
  else
    for (std::int64_t i = 0; i < impl.numel; ++i) data[i] = value;
}

const TensorImpl* lender = nullptr;  // the output, while nobody has its memory
TensorPointer borrower;  // who has it

bool borrow(const TensorPointer& impl) {
  if (lender == nullptr || impl->nbytes == 0 || impl->nbytes != lender->nbytes || impl->dtype != lender->dtype) return false;
  impl->storage = lender->storage;
  borrower = impl;
  lender = nullptr;
  return true;
}

}  // namespace

Lending::Lending(const TensorImpl& output) { lender = context.multicore ? nullptr : &output; }

void Lending::end(const TensorImpl* result) {
  lender = nullptr;
  if (!borrower.is_shared() || borrower.get() == result) return;
  const void* borrowed = borrower->storage;  // the kernel keeps it, in a static variable
  borrower->allocate();
  std::memcpy(borrower->storage, borrowed, borrower->nbytes);
  borrower.reset();
}

Lending::~Lending() {
  end(nullptr);
  borrower.reset();
}

void give_output_memory_of_its_own(TensorImpl& output) {
  lender = nullptr;
  if (borrower.is_shared()) output.allocate();
}

TensorImpl::TensorImpl(c10::IntArrayRef shape, c10::ScalarType type) : dtype(type) {
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

void TensorImpl::allocate() {
  if (context.meta) return;
  const std::size_t rounded = (nbytes + 63) / 64 * 64;
  storage = ::aligned_alloc(64, rounded == 0 ? 64 : rounded);
  if (storage == nullptr) fail("memory", "no memory for a tensor of %zu bytes", nbytes);
  owns_storage = true;
}

}  // namespace neurontools

namespace torch {

Tensor empty(c10::IntArrayRef size, c10::TensorOptions options) {
  neurontools::TensorPointer impl(new neurontools::TensorImpl(size, options.dtype()));
  if (!neurontools::context.meta) neurontools::dispatch(options.dtype(), [](auto) {});
  if (!neurontools::borrow(impl)) impl->allocate();
  return Tensor(impl);
}

Tensor& Tensor::fill_(const c10::Scalar& value) const {
  neurontools::TensorImpl& target = impl();
  if (!neurontools::context.meta) {
    target.check_writable();
    neurontools::dispatch(target.dtype, [&](auto tag) {
      using T = decltype(tag);
      neurontools::fill_elements<T>(target, value.to<T>());
    });
    neurontools::note_whole_write(target);
  }
  return const_cast<Tensor&>(*this);
}

Tensor full(c10::IntArrayRef size, const c10::Scalar& value, c10::TensorOptions options) {
  Tensor result = empty(size, options);
  result.fill_(value);
  return result;
}

Tensor zeros(c10::IntArrayRef size, c10::TensorOptions options) { return full(size, 0, options); }

Tensor ones(c10::IntArrayRef size, c10::TensorOptions options) { return full(size, 1, options); }

Tensor eye(std::int64_t n, std::int64_t m, c10::TensorOptions options) {
  Tensor result = zeros({n, m}, options);
  if (neurontools::context.meta) return result;
  neurontools::dispatch(options.dtype(), [&](auto tag) {
    using T = decltype(tag);
    T* data = static_cast<T*>(result.impl().data());
    for (std::int64_t i = 0; i < n && i < m; ++i) data[i * m + i] = T(1);
  });
  return result;
}

}  // namespace torch
