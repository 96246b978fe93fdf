#include <torch/torch.h>

#include "torchneuron/register.h"

torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }

torch::Tensor same_of_two(torch::Tensor, torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }

torch::Tensor flat(torch::Tensor x) { return torch::zeros({x.numel()}, torch::kFloat); }

torch::Tensor product_shape(torch::Tensor a, torch::Tensor b, double) {
  return torch::zeros({a.size(0), b.size(1)}, torch::kFloat);
}

NEURON_LIBRARY(wrong, m) {
  m.def("cube", &same, "cube");
  m.def("cube_backward", &same_of_two, "cube_backward");
  m.def("square", &same, "square");
  m.def("square_backward", &same_of_two, "square_backward");
  m.def("unwritten", &same, "unwritten");
  m.def("stateful", &same, "stateful");
  m.def("lying", &flat, "lying");
  m.def("odd", &same, "odd");
  m.def("eights", &same, "eights");
  m.def("product", &product_shape, "product");
}
