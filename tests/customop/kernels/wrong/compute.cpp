// Operators that are wrong in one way each, and some that are right; the marks "// <name>" are read by the tests.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

template <typename Function>
static torch::Tensor each(const torch::Tensor& input, int64_t count, Function function) {
  torch::Tensor output = torch::empty(input.sizes(), torch::kFloat);
  const float* x = input.data_ptr<float>();
  float* y = output.data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) y[i] = function(x[i]);
  return output;
}

torch::Tensor cube(const torch::Tensor& x) {
  return each(x, x.numel(), [](float v) { return v * v * v; });
}

torch::Tensor cube_backward(const torch::Tensor& g, const torch::Tensor& x) {
  return torch::mul(g, each(x, x.numel(), [](float v) { return 3 * v * v; }));
}

torch::Tensor square_backward(const torch::Tensor& g, const torch::Tensor& x) { return torch::mul(g, x); }  // half

torch::Tensor square(const torch::Tensor& x) {
  return each(x, x.numel(), [](float v) { return v * v; });
}

torch::Tensor unwritten(const torch::Tensor& x) {
  return each(x, x.numel() / 8 * 8, [](float v) { return v; });
}

torch::Tensor stateful(const torch::Tensor& x) {
  static float calls = 0;
  calls += 1;
  return each(x, x.numel(), [](float v) { return v + calls; });
}

torch::Tensor lying(const torch::Tensor& x) { return each(x, x.numel(), [](float v) { return v; }); }

torch::Tensor odd(const torch::Tensor& input) {
  torch::Tensor output = torch::zeros(input.sizes(), torch::kFloat);
  auto x = input.accessor<float, 2>();
  auto y = output.accessor<float, 2>();
  for (int64_t i = 0; i < input.size(0); i += 2)
    for (int64_t j = 0; j < input.size(1); ++j) {
      y[i][j] = x[i][j];
      y[i + 1][j] = x[i + 1][j];  // odd
    }
  return output;
}

torch::Tensor eights(const torch::Tensor& x) {
  TORCH_CHECK(x.numel() % 8 == 0, "only multiples of 8");
  return each(x, x.numel(), [](float v) { return v; });
}

torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b, double factor) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "sizes do not fit");
  torch::Tensor output = torch::zeros({a.size(0), b.size(1)}, torch::kFloat);
  auto x = a.accessor<float, 2>();
  auto y = b.accessor<float, 2>();
  auto z = output.accessor<float, 2>();
  for (int64_t i = 0; i < a.size(0); ++i)
    for (int64_t j = 0; j < b.size(1); ++j) {
      for (int64_t k = 0; k < a.size(1); ++k) z[i][j] += x[i][k] * y[k][j];
      z[i][j] *= factor;
    }
  return output;
}
