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
    default: return torch::bitwise_not(result, x);
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
