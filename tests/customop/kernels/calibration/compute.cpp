// relu as the documented samples are described: results are returned, elements touched three times, pieces of 1024.
#include <algorithm>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

torch::Tensor element(const torch::Tensor& input) {
  torch::Tensor output = torch::zeros(input.sizes(), torch::kFloat);
  const auto x = input.accessor<float, 2>();
  auto y = output.accessor<float, 2>();
  for (int64_t row = 0; row < input.size(0); ++row)
    for (int64_t column = 0; column < input.size(1); ++column)
      y[row][column] = x[row][column] * static_cast<float>(x[row][column] > 0.0f);
  return output;
}

torch::Tensor tcm(const torch::Tensor& input) {
  torch::Tensor output = torch::zeros(input.sizes(), torch::kFloat);
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* piece = static_cast<float*>(torch::neuron::tcm_malloc(1024 * sizeof(float)));
  const size_t count = input.numel();
  for (size_t start = 0; start < count; start += 1024) {
    const size_t length = std::min<size_t>(1024, count - start);
    source.tensor_to_tcm<float>(piece, start, length);
    for (size_t i = 0; i < length; ++i) piece[i] = std::max(piece[i], 0.0f);
    target.tcm_to_tensor<float>(piece, start, length);
  }
  torch::neuron::tcm_free(piece);
  return output;
}
