#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor same(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }

NEURON_LIBRARY(multicore_calibration, m) {
  m.def("multicore", &same, "multicore");
}
