// Kernels for eight cores that share the work badly.
#include <algorithm>

#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

namespace {

torch::Tensor doubled(const torch::Tensor& input, size_t begin, size_t end) {
  torch::Tensor output = get_dst_tensor();
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* piece = static_cast<float*>(torch::neuron::tcm_malloc(4096));
  for (size_t start = begin; start < end; start += 1024) {
    const size_t length = std::min<size_t>(1024, end - start);
    source.tensor_to_tcm<float>(piece, start, length);
    for (size_t i = 0; i < length; ++i) piece[i] *= 2.0f;
    target.tcm_to_tensor<float>(piece, start, length);
  }
  torch::neuron::tcm_free(piece);
  return output;
}

}  // namespace

// Of ten parts core 3 takes four, cores 6 and 7 one half each.
torch::Tensor uneven(const torch::Tensor& input) {
  TORCH_CHECK(get_cpu_count() == 8, "for eight cores");
  const size_t part = input.numel() / 20;
  const size_t begins[] = {0, 2, 4, 6, 14, 16, 18, 19, 20};
  const size_t core = get_cpu_id();
  return doubled(input, part * begins[core], core == 7 ? input.numel() : part * begins[core + 1]);
}

torch::Tensor one_works(const torch::Tensor& input) {
  return doubled(input, 0, get_cpu_id() == 0 ? input.numel() : 0);
}
