#include <torch/torch.h>
#include "torchneuron/register.h"

torch::Tensor one(torch::Tensor) { return torch::zeros({1}, torch::kFloat); }
torch::Tensor one_of_many(torch::Tensor, torch::Tensor, torch::Tensor, torch::Scalar, double, int64_t) {
  return torch::zeros({1}, torch::kFloat);
}

NEURON_LIBRARY(interface_items, m) {  // [NEURON_LIBRARY]
  m.def("dtypes", &one, "dtypes");    // [def]
  m.def("factories", &one, "factories");
  m.def("operations", &one, "operations");
  m.def("bits", &one, "bits");
  m.def("members", &one, "members");
  m.def("streams", &one, "streams");
  m.def("tcm", &one, "tcm");
  m.def("parameters", &one_of_many, "parameters");
}
