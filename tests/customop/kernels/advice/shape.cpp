#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor one(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }
torch::Tensor two(torch::Tensor input, torch::Tensor) { return torch::zeros(input.sizes(), torch::kFloat); }

NEURON_LIBRARY(advice, m) {
  m.def("elements", &one, "elements");
  m.def("small_tiles", &one, "small_tiles");
  m.def("large_tiles", &one, "large_tiles");
  m.def("bias_again", &two, "bias_again");
  m.def("bias_elements", &two, "bias_elements");
  m.def("functions", &one, "functions");
  m.def("returned", &one, "returned");
  m.def("streams", &one, "streams");
  m.def("stream", &one, "stream");
  m.def("busy", &one, "busy");
}
