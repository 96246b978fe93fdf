// Every tensor operation, chosen by number, so that the tests can compare each with torch.
#include <torch/torch.h>

using torch::Scalar;
using torch::Tensor;

Tensor unary(const Tensor& x, int64_t which, double low, double high) {
  switch (which) {
    case 0: return torch::abs(x);
    case 1: return torch::ceil(x);
    case 2: return torch::floor(x);
    case 3: return torch::sin(x);
    case 4: return torch::cos(x);
    case 5: return torch::tan(x);
    case 6: return torch::log(x);
    case 7: return torch::log2(x);
    case 8: return torch::log10(x);
    case 9: return torch::exp(x);
    case 10: return torch::clamp(x, low, high);
    default: return torch::bitwise_not(x);
  }
}

Tensor binary(const Tensor& x, const Tensor& y, int64_t which, const Scalar& alpha) {
  switch (which) {
    case 0: return torch::add(x, y, alpha);
    case 1: return torch::sub(x, y, alpha);
    case 2: return torch::mul(x, y);
    case 3: return torch::div(x, y);
    case 4: return torch::pow(x, y);
    case 5: return torch::bitwise_and(x, y);
    default: return torch::bitwise_or(x, y);
  }
}

Tensor with_scalar(const Tensor& x, const Scalar& y, int64_t which) {
  switch (which) {
    case 0: return torch::add(x, y);
    case 1: return torch::sub(x, y);
    case 2: return torch::mul(x, y);
    case 3: return torch::div(x, y);
    case 4: return torch::pow(x, y);
    case 5: return torch::pow(y, x);
    case 6: return torch::bitwise_and(x, y);
    default: return torch::bitwise_or(y, x);
  }
}

// The forms that write into a tensor of the caller.
Tensor into(const Tensor& x, const Tensor& y, int64_t which) {
  Tensor result = torch::zeros(x.sizes(), x.options());
  switch (which) {
    case 0: return torch::abs_out(result, x);
    case 1: return torch::add_out(result, x, y);
    case 2: return torch::sub_out(result, x, 3);
    case 3: return torch::mul_out(result, x, y);
    case 4: return torch::clamp_out(result, x, 1, 2);
    case 5: return torch::pow_out(result, x, 2);
    case 6: return torch::bitwise_and_out(result, x, 6);
    case 7: return torch::bitwise_or_out(result, x, y);
    case 8: return torch::bitwise_not_out(result, x);
    case 9: return torch::div_out(result, x, y);
    case 10: return torch::exp_out(result, x);
    case 11: return torch::bitwise_not(result, x);
    case 12: return torch::ceil_out(result, x);
    case 13: return torch::floor_out(result, x);
    case 14: return torch::sin_out(result, x);
    case 15: return torch::cos_out(result, x);
    case 16: return torch::tan_out(result, x);
    case 17: return torch::log_out(result, x);
    case 18: return torch::log2_out(result, x);
    case 19: return torch::log10_out(result, x);
    case 20: return torch::add_out(result, x, y, 2);
    case 21: return torch::sub_out(result, x, y, 2);
    case 22: return torch::add_out(result, x, 3, 2);
    case 23: return torch::mul_out(result, x, 3);
    case 24: return torch::div_out(result, x, 3);
    case 25: return torch::pow_out(result, x, y);
    case 26: return torch::pow_out(result, 2, y);
    case 27: return torch::bitwise_and_out(result, 6, x);
    default: return torch::bitwise_or_out(result, 6, x);
  }
}

Tensor made(const Tensor& like, int64_t which, const Scalar& value) {
  switch (which) {
    case 0: return torch::zeros(like.sizes(), like.options());
    case 1: return torch::ones(like.sizes(), like.scalar_type());
    case 2: return torch::full(like.sizes(), value, like.dtype());
    default: return torch::eye(like.size(0), like.size(1), like.options());
  }
}

// A tensor filled by its own member function.
Tensor filled(const Tensor& like, const Scalar& value) {
  Tensor result = torch::empty(like.sizes(), like.options());
  return result.fill_(value);
}

// Element by element, through accessors of rank N.
template <size_t N>
struct Elements {
  template <typename From, typename To>
  static void copy(const From& from, const To& to) {
    for (int64_t i = 0; i < from.size(0); ++i) Elements<N - 1>::copy(from[i], to[i]);
  }
};
template <>
struct Elements<1> {
  template <typename From, typename To>
  static void copy(const From& from, const To& to) {
    for (int64_t i = 0; i < from.size(0); ++i) to[i] = from[i];
  }
};

template <typename T, size_t N>
static Tensor by_elements(const Tensor& x) {
  Tensor result = torch::empty(x.sizes(), x.options());
  Elements<N>::copy(x.accessor<T, N>(), result.accessor<T, N>());
  return result;
}

// Every element type at rank 2, every rank for floats.
Tensor elements(const Tensor& x) {
  switch (x.scalar_type()) {
    case torch::kHalf: return by_elements<torch::Half, 2>(x);
    case torch::kBFloat16: return by_elements<torch::BFloat16, 2>(x);
    case torch::kInt: return by_elements<int, 2>(x);
    case torch::kShort: return by_elements<int16_t, 2>(x);
    case torch::kChar: return by_elements<int8_t, 2>(x);
    case torch::kByte: return by_elements<uint8_t, 2>(x);
    default: break;
  }
  switch (x.dim()) {
    case 1: return by_elements<float, 1>(x);
    case 2: return by_elements<float, 2>(x);
    case 3: return by_elements<float, 3>(x);
    case 4: return by_elements<float, 4>(x);
    case 5: return by_elements<float, 5>(x);
    case 6: return by_elements<float, 6>(x);
    case 7: return by_elements<float, 7>(x);
    default: return by_elements<float, 8>(x);
  }
}

// Through a block of TCM of 1000 bytes.
template <typename T>
static Tensor by_tcm(const Tensor& x) {
  const size_t most = 1000 / sizeof(T);
  const size_t count = x.numel();
  Tensor result = torch::empty(x.sizes(), x.options());
  auto source = x.tcm_accessor();
  auto target = result.tcm_accessor();
  T* block = static_cast<T*>(torch::neuron::tcm_malloc(1000));
  for (size_t start = 0; start < count; start += most) {
    const size_t length = count - start < most ? count - start : most;
    source.tensor_to_tcm<T>(block, start, length);
    target.tcm_to_tensor<T>(block, start, length);
  }
  torch::neuron::tcm_free(block);
  return result;
}

Tensor tcm(const Tensor& x) {
  switch (x.scalar_type()) {
    case torch::kFloat: return by_tcm<float>(x);
    case torch::kHalf: return by_tcm<torch::Half>(x);
    case torch::kBFloat16: return by_tcm<torch::BFloat16>(x);
    case torch::kInt: return by_tcm<int>(x);
    case torch::kShort: return by_tcm<int16_t>(x);
    case torch::kChar: return by_tcm<int8_t>(x);
    default: return by_tcm<uint8_t>(x);
  }
}

// The value goes through a stream accessor of its element type and back.
template <typename T>
static Tensor streamed(const Tensor& x) {
  Tensor result = torch::empty(x.sizes(), x.options());
  auto reader = x.read_stream_accessor<T>();
  auto writer = result.write_stream_accessor<T>();
  for (int64_t i = 0; i < x.numel(); ++i) writer.write(reader.read());
  writer.close();
  reader.close();
  return result;
}

Tensor stream(const Tensor& x) {
  switch (x.scalar_type()) {
    case torch::kFloat: return streamed<float>(x);
    case torch::kHalf: return streamed<torch::Half>(x);
    case torch::kBFloat16: return streamed<torch::BFloat16>(x);
    case torch::kInt: return streamed<int>(x);
    case torch::kShort: return streamed<int16_t>(x);
    case torch::kChar: return streamed<int8_t>(x);
    default: return streamed<uint8_t>(x);
  }
}

Tensor as_type(const Tensor& x, const Tensor& like) {
  Tensor result = torch::zeros(x.sizes(), like.options());
  return torch::add_out(result, x, 0);
}
