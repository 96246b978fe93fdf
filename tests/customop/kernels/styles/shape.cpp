#include <stdint.h>
#include <stdlib.h>
#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor one(torch::Tensor t_in) {
  size_t num_elem = t_in.numel();
  torch::Tensor t_out = torch::zeros({num_elem}, torch::kFloat);
  return t_out;
}
torch::Tensor two(torch::Tensor t1, torch::Tensor) { return torch::zeros(t1.sizes(), torch::kFloat); }
torch::Tensor scaled(const torch::Tensor& t_in, double, int64_t, torch::Scalar) {
  return torch::zeros({t_in.size(0)}, torch::kFloat);
}

NEURON_LIBRARY(styles, m) {
  m.def("elements", &one, "elements");
  m.def("sum", &two, "sum");
  m.def("streams", &two, "streams");
  m.def("tcm", &one, "tcm");
  m.def("destination", &one, "destination");
  m.def("scaled", &scaled, "scaled");
}
