// relu as the documented multicore sample is described: pieces of 1024, an eighth for each core.
#include <algorithm>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

torch::Tensor multicore(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* piece = static_cast<float*>(torch::neuron::tcm_malloc(1024 * sizeof(float)));
  const size_t share = input.numel() / get_cpu_count();
  const size_t end = share * (get_cpu_id() + 1);
  for (size_t start = share * get_cpu_id(); start < end; start += 1024) {
    const size_t length = std::min<size_t>(1024, end - start);
    source.tensor_to_tcm<float>(piece, start, length);
    for (size_t i = 0; i < length; ++i) piece[i] = std::max(piece[i], 0.0f);
    target.tcm_to_tensor<float>(piece, start, length);
  }
  torch::neuron::tcm_free(piece);
  return output;
}
