#include <torch/torch.h>
#include "torchneuron/register.h"

static torch::Tensor same(const torch::Tensor& input, int64_t) { return torch::empty(input.sizes(), torch::kFloat); }

NEURON_LIBRARY(outside, m) { m.def("fault", &same, "fault"); }
