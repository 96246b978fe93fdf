// Ways to go wrong on eight cores at once.
#include <neuron/neuron-utils.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

torch::Tensor fault(const torch::Tensor& input, int64_t which) {  // kernel
  if (which == 0) return torch::zeros(input.sizes(), torch::kFloat);
  torch::Tensor output = get_dst_tensor();
  auto target = output.tcm_accessor();
  const int64_t count = input.numel();
  const int64_t share = count / get_cpu_count();
  const int64_t begin = share * get_cpu_id();
  const bool last = get_cpu_id() == get_cpu_count() - 1;
  int64_t length = share;
  float* piece = static_cast<float*>(torch::neuron::tcm_malloc(4096));
  if (which == 1) input.accessor<float, 1>();  // accessor
  if (which == 2) input.read_stream_accessor<float>();
  if (which == 3 && !last) length += 1;  // overlaps the next core
  if (which == 4 && last) length -= 1;   // the last element stays unwritten
  if (which == 5 && get_cpu_id() == 5) piece = nullptr;
  if (which == 6) std::printf("core %u\n", get_cpu_id());
  if (which == 7) torch::neuron::tcm_malloc(64);
  for (int64_t i = 0; i < length && piece != nullptr; ++i) piece[i] = static_cast<float>(get_cpu_id());
  if (which == 9 && get_cpu_id() == 5) static_cast<volatile float*>(nullptr)[which - 9] = 1;  // crash
  target.tcm_to_tensor<float>(piece, begin, length);  // copy-out
  torch::neuron::tcm_free(piece);
  return output;
}
