// Operators whose inputs are of different kinds, and faults that show only beside another call.
#include <algorithm>
#include <cmath>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

namespace {

template <typename T>
T* block(size_t count) {
  return static_cast<T*>(torch::neuron::tcm_malloc(std::max<size_t>(count, 1) * sizeof(T)));
}

template <typename Function>
torch::Tensor each(const torch::Tensor& input, Function function) {
  torch::Tensor output = torch::empty(input.sizes(), torch::kFloat);
  const float* x = input.data_ptr<float>();
  float* y = output.data_ptr<float>();
  for (size_t i = 0; i < static_cast<size_t>(input.numel()); ++i) y[i] = function(x[i]);
  return output;
}

}  // namespace

// Rows of a table by index.
torch::Tensor gather(const torch::Tensor& table, const torch::Tensor& index) {
  torch::Tensor output = get_dst_tensor();
  auto rows = table.tcm_accessor();
  auto places = index.tcm_accessor();
  auto target = output.tcm_accessor();
  const size_t width = table.size(1);
  TORCH_CHECK(width <= 1024, "rows of at most 1024, got ", width);
  float* row = block<float>(width);
  int32_t* place = block<int32_t>(1);
  for (size_t i = 0; i < static_cast<size_t>(index.numel()); ++i) {
    places.tensor_to_tcm<int32_t>(place, i, 1);
    TORCH_CHECK(*place >= 0 && *place < static_cast<int64_t>(table.size(0)), "no row ", *place);
    rows.tensor_to_tcm<float>(row, *place * width, width);
    target.tcm_to_tensor<float>(row, i * width, width);
  }
  torch::neuron::tcm_free(place);
  torch::neuron::tcm_free(row);
  return output;
}

torch::Tensor sigmoid(const torch::Tensor& x) {
  return each(x, [](float v) { return 1 / (1 + std::exp(-v)); });
}

// Of the output, not of the input.
torch::Tensor sigmoid_backward(const torch::Tensor& g, const torch::Tensor& y) {
  return torch::mul(g, each(y, [](float v) { return v * (1 - v); }));
}

// Adds to what fresh memory of the pool holds.
torch::Tensor stale(const torch::Tensor& x) {
  torch::Tensor output = get_dst_tensor();
  auto source = x.tcm_accessor();
  auto target = output.tcm_accessor();
  float* value = block<float>(1);
  float* sum = block<float>(1);
  for (size_t i = 0; i < static_cast<size_t>(x.numel()); ++i) {
    source.tensor_to_tcm<float>(value, i, 1);
    *sum += *value;
    target.tcm_to_tensor<float>(sum, i, 1);
  }
  torch::neuron::tcm_free(sum);
  torch::neuron::tcm_free(value);
  return output;
}

// The same again and again, but for the largest tensor that there ever was.
torch::Tensor remembers(const torch::Tensor& x) {
  static int64_t largest = 0;
  largest = std::max<int64_t>(largest, x.numel());
  return each(x, [](float v) { return v + static_cast<float>(largest); });
}

torch::Tensor repeated(const torch::Tensor& x, double times) {
  TORCH_CHECK(x.dim() == 1, "a vector");
  torch::Tensor output = torch::empty({static_cast<int64_t>(times), x.size(0)}, torch::kFloat);
  auto source = x.accessor<float, 1>();
  auto target = output.accessor<float, 2>();
  for (int64_t i = 0; i < static_cast<int64_t>(output.size(0)); ++i)
    for (int64_t j = 0; j <= static_cast<int64_t>(x.size(0)); ++j) target[i][j] = source[j];  // repeated
  return output;
}

torch::Tensor leaky(const torch::Tensor& x) {
  float* piece = block<float>(std::min<size_t>(x.numel(), 1024));
  TORCH_CHECK(piece != nullptr, "no room");
  return each(x, [](float v) { return v; });
}

// Asks for elements that no tensor of the device has.
torch::Tensor longs(const torch::Tensor& x) {
  TORCH_CHECK(x.dim() == 1, "a vector");
  torch::Tensor output = torch::empty(x.sizes(), torch::kFloat);
  auto source = x.accessor<int64_t, 1>();
  auto target = output.accessor<float, 1>();
  for (int64_t i = 0; i < static_cast<int64_t>(x.size(0)); ++i) target[i] = static_cast<float>(source[i]);
  return output;
}
