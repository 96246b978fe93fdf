#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor one(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }

NEURON_LIBRARY(multicore_advice, m) {
  m.def("uneven", &one, "uneven");
  m.def("one_works", &one, "one_works");
}
