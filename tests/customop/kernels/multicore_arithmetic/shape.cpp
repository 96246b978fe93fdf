#include <torch/torch.h>
#include <torchneuron/register.h>

namespace {

torch::Tensor same(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }

}  // namespace

NEURON_LIBRARY(multicore_arithmetic, m) {
  m.def("even", &same, "even");
  m.def("uneven", &same, "uneven");
}
