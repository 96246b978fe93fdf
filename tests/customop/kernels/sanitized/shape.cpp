#include <torch/torch.h>

#include "torchneuron/register.h"

torch::Tensor same(torch::Tensor input, int64_t) { return torch::zeros(input.sizes(), torch::kFloat); }

NEURON_LIBRARY(sanitized, m) { m.def("copy", &same, "copy"); }
