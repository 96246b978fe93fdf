// Kernels whose own arithmetic is to be counted.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

namespace {

constexpr size_t kPiece = 1024;
constexpr size_t kTaps = 64;

float* floats(size_t count) { return static_cast<float*>(torch::neuron::tcm_malloc(count * sizeof(float))); }

template <typename Function>
torch::Tensor each(const torch::Tensor& input, Function function) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* piece = floats(kPiece);
  const size_t count = input.numel();
  for (size_t start = 0; start < count; start += kPiece) {
    const size_t length = std::min(kPiece, count - start);
    source.tensor_to_tcm<float>(piece, start, length);
    for (size_t i = 0; i < length; ++i) piece[i] = function(piece[i]);
    target.tcm_to_tensor<float>(piece, start, length);
  }
  torch::neuron::tcm_free(piece);
  return output;
}

}  // namespace

torch::Tensor gelu(const torch::Tensor& input) {
  return each(input, [](float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));  // gelu
  });
}

torch::Tensor sigmoid(const torch::Tensor& input) {
  return each(input, [](float x) { return 1.0f / (1.0f + std::exp(-x)); });  // sigmoid
}

torch::Tensor halved(const torch::Tensor& input) {
  return each(input, [](float x) { return 0.5f * x; });
}

torch::Tensor fir(const torch::Tensor& input, const torch::Tensor& taps) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* filter = floats(kTaps);
  float* window = floats(kTaps - 1 + kPiece);
  float* result = floats(kPiece);
  taps.tcm_accessor().tensor_to_tcm<float>(filter, 0, kTaps);
  std::memset(window, 0, (kTaps - 1) * sizeof(float));
  const size_t count = input.numel();
  for (size_t start = 0; start < count; start += kPiece) {
    const size_t length = std::min(kPiece, count - start);
    source.tensor_to_tcm<float>(window + kTaps - 1, start, length);
    for (size_t i = 0; i < length; ++i) {
      float sum = 0.0f;
      for (size_t k = 0; k < kTaps; ++k) sum += filter[k] * window[i + kTaps - 1 - k];  // tap
      result[i] = sum;
    }
    target.tcm_to_tensor<float>(result, start, length);
    std::memmove(window, window + length, (kTaps - 1) * sizeof(float));
  }
  for (float* block : {result, window, filter}) torch::neuron::tcm_free(block);
  return output;
}

// Rows of the first matrix and the whole second one fit in TCM.
torch::Tensor product(const torch::Tensor& left, const torch::Tensor& right) {
  torch::Tensor output = get_dst_tensor();
  auto rows = left.tcm_accessor();
  auto target = output.tcm_accessor();
  const size_t height = left.size(0);
  const size_t depth = left.size(1);
  const size_t width = right.size(1);
  float* all = floats(depth * width);
  float* row = floats(depth);
  float* sums = floats(width);
  right.tcm_accessor().tensor_to_tcm<float>(all, 0, depth * width);
  for (size_t i = 0; i < height; ++i) {
    rows.tensor_to_tcm<float>(row, i * depth, depth);
    std::fill(sums, sums + width, 0.0f);
    for (size_t k = 0; k < depth; ++k)
      for (size_t j = 0; j < width; ++j) sums[j] += row[k] * all[k * width + j];  // product
    target.tcm_to_tensor<float>(sums, i * width, width);
  }
  for (float* block : {sums, row, all}) torch::neuron::tcm_free(block);
  return output;
}

// The 16 largest of each row of up to 1024, by the standard library's heap.
torch::Tensor top(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  const size_t width = input.size(1);
  float* row = floats(width);
  float* best = floats(16);
  for (int64_t i = 0; i < input.size(0); ++i) {
    source.tensor_to_tcm<float>(row, i * width, width);
    std::partial_sort_copy(row, row + width, best, best + 16, std::greater<float>());  // top
    target.tcm_to_tensor<float>(best, i * 16, 16);
  }
  for (float* block : {best, row}) torch::neuron::tcm_free(block);
  return output;
}

// Throws, and goes on.
torch::Tensor caught(const torch::Tensor& input) {
  return each(input, [](float x) {
    try {
      if (x > 2.0f) throw x;
    } catch (float thrown) {
      return 2.0f;
    }
    return x;
  });
}
