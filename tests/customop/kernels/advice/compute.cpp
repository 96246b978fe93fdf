// Kernels that are slow in one way each.
#include <algorithm>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

namespace {

float* floats(size_t count) { return static_cast<float*>(torch::neuron::tcm_malloc(count * sizeof(float))); }

// Doubles a tensor in pieces of `piece` floats.
torch::Tensor in_pieces(const torch::Tensor& input, size_t piece) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* buffer = floats(piece);
  const size_t count = input.numel();
  for (size_t start = 0; start < count; start += piece) {
    const size_t length = std::min(piece, count - start);
    source.tensor_to_tcm<float>(buffer, start, length);  // piece
    for (size_t i = 0; i < length; ++i) buffer[i] *= 2.0f;
    target.tcm_to_tensor<float>(buffer, start, length);
  }
  torch::neuron::tcm_free(buffer);
  return output;
}

}  // namespace

torch::Tensor elements(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  const auto x = input.accessor<float, 1>();  // elements
  auto y = output.accessor<float, 1>();
  for (int64_t i = 0; i < input.numel(); ++i) y[i] = 2.0f * x[i];
  return output;
}

torch::Tensor small_tiles(const torch::Tensor& input) { return in_pieces(input, 16); }

torch::Tensor large_tiles(const torch::Tensor& input) { return in_pieces(input, 1024); }

// Adds a bias to each row, and fetches it for each anew.
torch::Tensor bias_again(const torch::Tensor& input, const torch::Tensor& bias) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto biases = bias.tcm_accessor();
  auto target = output.tcm_accessor();
  const size_t width = bias.numel();
  float* row = floats(width);
  float* add = floats(width);
  for (size_t start = 0; start < static_cast<size_t>(input.numel()); start += width) {
    source.tensor_to_tcm<float>(row, start, width);
    biases.tensor_to_tcm<float>(add, 0, width);  // bias
    for (size_t i = 0; i < width; ++i) row[i] += add[i];
    target.tcm_to_tensor<float>(row, start, width);
  }
  torch::neuron::tcm_free(add);
  torch::neuron::tcm_free(row);
  return output;
}

// The same by elements.
torch::Tensor bias_elements(const torch::Tensor& input, const torch::Tensor& bias) {
  torch::Tensor output = get_dst_tensor();
  const auto x = input.accessor<float, 2>();
  const auto b = bias.accessor<float, 1>();  // bias elements
  auto y = output.accessor<float, 2>();
  for (int64_t i = 0; i < input.size(0); ++i)
    for (int64_t j = 0; j < input.size(1); ++j) y[i][j] = x[i][j] + b[j];
  return output;
}

torch::Tensor functions(torch::Tensor input) {
  torch::Tensor doubled = torch::add(input, input);
  torch::Tensor four = torch::mul(doubled, doubled);
  return torch::sub(four, input);
}

torch::Tensor returned(const torch::Tensor& input) {
  torch::Tensor output = torch::zeros(input.sizes(), torch::kFloat);  // fill
  auto target = output.tcm_accessor();
  float* one = floats(1);
  one[0] = 1.0f;
  target.tcm_to_tensor<float>(one, 0, 1);
  torch::neuron::tcm_free(one);
  return output;
}

torch::Tensor streams(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  auto a = input.read_stream_accessor<float>();
  auto b = input.read_stream_accessor<float>();
  auto c = input.read_stream_accessor<float>();
  auto d = input.read_stream_accessor<float>();
  auto e = output.write_stream_accessor<float>();  // the fifth
  for (int64_t i = 0; i < input.numel(); ++i) e.write(a.read() + b.read() + c.read() + d.read());
  return output;
}

torch::Tensor stream(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  auto a = input.read_stream_accessor<float>();
  auto b = output.write_stream_accessor<float>();
  for (int64_t i = 0; i < input.numel(); ++i) b.write(2.0f * a.read());
  return output;
}

// Arithmetic that the model does not count; for up to 1024 floats.
torch::Tensor busy(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* piece = floats(1024);
  source.tensor_to_tcm<float>(piece, 0, input.numel());
  volatile float value = piece[0];
  for (int i = 0; i < 2000000; ++i) value = value * 0.5f + 1.0f;
  piece[0] = value;
  target.tcm_to_tensor<float>(piece, 0, input.numel());
  torch::neuron::tcm_free(piece);
  return output;
}
