// Cores that compute: all the same, and one of them four times as much.
#include <algorithm>
#include <cmath>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

namespace {

torch::Tensor exp_times(const torch::Tensor& input, int times) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  const size_t share = input.numel() / get_cpu_count();
  const size_t first = share * get_cpu_id();
  float* piece = static_cast<float*>(torch::neuron::tcm_malloc(1024 * sizeof(float)));
  for (size_t start = 0; start < share; start += 1024) {
    const size_t length = std::min<size_t>(1024, share - start);
    source.tensor_to_tcm<float>(piece, first + start, length);
    for (int time = 0; time < times; ++time)
      for (size_t i = 0; i < length; ++i) piece[i] = expf(-piece[i]);  // exp
    target.tcm_to_tensor<float>(piece, first + start, length);
  }
  torch::neuron::tcm_free(piece);
  return output;
}

}  // namespace

torch::Tensor even(const torch::Tensor& input) { return exp_times(input, 1); }

torch::Tensor uneven(const torch::Tensor& input) { return exp_times(input, get_cpu_id() == 5 ? 4 : 1); }
