#include <torch/torch.h>

#include "torchneuron/register.h"

torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }

torch::Tensor same_of_two(torch::Tensor, torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }

torch::Tensor gathered(torch::Tensor table, torch::Tensor index) {
  TORCH_CHECK(table.dim() == 2 && index.dim() == 1, "a matrix and a vector");
  return torch::zeros({index.size(0), table.size(1)}, torch::kFloat);
}

torch::Tensor repeated_shape(torch::Tensor x, double times) {
  return torch::zeros({static_cast<int64_t>(times), x.numel()}, torch::kFloat);
}

NEURON_LIBRARY(mixed, m) {
  m.def("gather", &gathered, "gather");
  m.def("sigmoid", &same, "sigmoid");
  m.def("sigmoid_backward", &same_of_two, "sigmoid_backward");
  m.def("stale", &same, "stale");
  m.def("remembers", &same, "remembers");
  m.def("repeated", &repeated_shape, "repeated");
  m.def("leaky", &same, "leaky");
  m.def("longs", &same, "longs");
}
