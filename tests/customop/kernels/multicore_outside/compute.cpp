// A core that uses a block of another core.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

torch::Tensor fault(const torch::Tensor& input, int64_t which) {
  static float* kept = nullptr;
  TORCH_CHECK(input.dim() == 1 && input.numel() % get_cpu_count() == 0, "a share for each core");
  const size_t share = input.numel() / get_cpu_count();
  const size_t begin = share * get_cpu_id();
  torch::Tensor output = get_dst_tensor();
  float* block = static_cast<float*>(torch::neuron::tcm_malloc(share * sizeof(float)));
  input.tcm_accessor().tensor_to_tcm<float>(block, begin, share);
  if (get_cpu_id() == 0) kept = block;
  if (get_cpu_id() == 3 && which == 1) block[0] = kept[0];  // read
  if (get_cpu_id() == 3 && which == 2) kept[0] = 2;  // write
  output.tcm_accessor().tcm_to_tensor<float>(block, begin, share);
  torch::neuron::tcm_free(block);
  return output;
}
