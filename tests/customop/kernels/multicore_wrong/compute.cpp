// Wrong ways to share work between cores.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

static void copy(const torch::Tensor& input, torch::Tensor& output, size_t begin, size_t end, float more) {
  auto source = input.tcm_accessor();
  auto target = output.tcm_accessor();
  float* piece = static_cast<float*>(torch::neuron::tcm_malloc(4096));
  for (size_t at = begin; at < end; at += 1024) {
    const size_t length = end - at < 1024 ? end - at : 1024;
    source.tensor_to_tcm<float>(piece, at, length);  // copy
    for (size_t i = 0; i < length; ++i) piece[i] += more;
    target.tcm_to_tensor<float>(piece, at, length);
  }
  torch::neuron::tcm_free(piece);
}

// The remainder makes the last share larger before its place is computed from it.
torch::Tensor remainder_last(const torch::Tensor& input) {
  torch::Tensor output = get_dst_tensor();
  size_t share = input.numel() / get_cpu_count();
  if (get_cpu_id() == get_cpu_count() - 1) share = input.numel() - share * (get_cpu_count() - 1);
  copy(input, output, share * get_cpu_id(), share * get_cpu_id() + share, 0);
  return output;
}

// Each core sees what the one before it left behind: there is no order of cores on the device.
torch::Tensor ordered(const torch::Tensor& input) {
  static float left = 0;
  if (get_cpu_id() == 0) left = 0;
  torch::Tensor output = get_dst_tensor();
  const size_t count = input.numel();
  const size_t share = (count + get_cpu_count() - 1) / get_cpu_count();
  const size_t begin = share * get_cpu_id() < count ? share * get_cpu_id() : count;
  copy(input, output, begin, begin + share < count ? begin + share : count, left);
  left = get_cpu_id() + 1;
  return output;
}
