#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor same(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }

NEURON_LIBRARY(calibration, m) {
  m.def("element", &same, "element");
  m.def("tcm", &same, "tcm");
}
