// Memory of tensors, and the factories that fill it.
#include <cstdlib>
#include <cstring>

#include "neurontools/factories.hpp"
#include "runtime.hpp"
#include "sanitizing.hpp"

namespace neurontools {

namespace {

struct Element {
  alignas(8) unsigned char bytes[8];
  std::size_t nbytes;
};

Element element_of(const c10::Scalar& value, c10::ScalarType type) {
  Element element{{}, c10::elementSize(type)};
  dispatch(type, [&](auto tag) {
    const auto converted = value.to<decltype(tag)>();
    std::memcpy(element.bytes, &converted, sizeof converted);
  });
  return element;
}

// One loop for all dtypes: the filled part is copied repeatedly, in blocks that fit into a cache.
void fill_bytes(void* place, std::size_t nbytes, const Element& element) {
  constexpr std::size_t kBlockBytes = std::size_t{1} << 14;
  unsigned char* bytes = static_cast<unsigned char*>(place);
  if (nbytes == 0) return;
  const Element zero{{}, element.nbytes};
  if (std::memcmp(element.bytes, zero.bytes, element.nbytes) == 0) {
    std::memset(place, 0, nbytes);
    return;
  }
  std::memcpy(bytes, element.bytes, element.nbytes);
  for (std::size_t filled = element.nbytes; filled < nbytes;) {
    std::size_t count = filled < kBlockBytes ? filled : kBlockBytes;
    if (count > nbytes - filled) count = nbytes - filled;
    std::memcpy(bytes + filled, bytes, count);
    filled += count;
  }
}

const TensorImpl* lender = nullptr;  // the output, while its memory is available
TensorPointer borrower;  // the temporary that has it

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
  const void* borrowed = borrower->storage;  // the kernel keeps it in a static variable
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

// The sanitizer surrounds memory itself.
#if defined(NEURONTOOLS_SANITIZED)
constexpr std::size_t kGuardBytes = 0;
#else
constexpr std::size_t kGuardBytes = 256;
#endif

void TensorImpl::allocate() {
  if (context.meta) return;
  const std::size_t whole = nbytes + 2 * kGuardBytes;
  void* memory = nullptr;
  if (whole < nbytes || ::posix_memalign(&memory, 64, whole == 0 ? 1 : whole) != 0)
    fail("memory", "no memory for a tensor of %zu bytes", nbytes);
  unsigned char* data = static_cast<unsigned char*>(memory) + kGuardBytes;
  std::memset(data - kGuardBytes, guard_byte(), kGuardBytes);
  std::memset(data + nbytes, guard_byte(), kGuardBytes);
  storage = data;
  owns_storage = true;
}

void TensorImpl::release() {
  unsigned char* data = static_cast<unsigned char*>(storage);
  const bool past = filled_bytes(data + nbytes, kGuardBytes, guard_byte()) != kGuardBytes;
  if (past || filled_bytes(data - kGuardBytes, kGuardBytes, guard_byte()) != kGuardBytes)
    note_damage("bounds", nullptr, "write %s of a temporary tensor of %zu bytes", past ? "past the end" : "before the beginning",
                nbytes);
  std::free(data - kGuardBytes);
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
    neurontools::fill_bytes(target.data(), target.nbytes, neurontools::element_of(value, target.dtype));
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
  const neurontools::Element one = neurontools::element_of(1, options.dtype());
  unsigned char* data = static_cast<unsigned char*>(result.impl().data());
  for (std::int64_t i = 0; i < n && i < m; ++i)
    std::memcpy(data + static_cast<std::size_t>(i * m + i) * one.nbytes, one.bytes, one.nbytes);
  return result;
}

}  // namespace torch
