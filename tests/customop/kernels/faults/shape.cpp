#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor fault(torch::Tensor input, torch::Tensor, int64_t) { return torch::zeros(input.sizes(), torch::kFloat); }
torch::Tensor copy(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }
torch::Tensor nap(torch::Tensor input, double) { return torch::zeros(input.sizes(), torch::kFloat); }

torch::Tensor bad_shape(torch::Tensor input, int64_t which) {
  switch (which) {
    case 0: return torch::full({1}, input.accessor<float, 1>()[0], torch::kFloat);  // data
    case 1: *reinterpret_cast<volatile int*>(which) = 1; break;
    case 2: throw 1;
    case 3: return torch::zeros({2}, torch::kDouble);
    case 4: return torch::zeros({-2}, torch::kFloat);
  }
  return torch::zeros({input.size(0), 2}, torch::kHalf);
}

NEURON_LIBRARY(faults, m) {
  m.def("fault", &fault, "fault");
  m.def("copy", &copy, "copy");
  m.def("nap", &nap, "nap");
  m.def("bad_shape", &bad_shape, "bad_shape_kernel");
}
