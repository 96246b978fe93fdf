#include <torch/torch.h>
#include <torchneuron/register.h>

namespace {

torch::Tensor same(torch::Tensor input) { return torch::zeros(input.sizes(), torch::kFloat); }
torch::Tensor first(torch::Tensor input, torch::Tensor) { return same(input); }
torch::Tensor product_shape(torch::Tensor left, torch::Tensor right) {
  return torch::zeros({left.size(0), right.size(1)}, torch::kFloat);
}
torch::Tensor top_shape(torch::Tensor input) { return torch::zeros({input.size(0), 16}, torch::kFloat); }

}  // namespace

NEURON_LIBRARY(arithmetic, m) {
  m.def("gelu", &same, "gelu");
  m.def("sigmoid", &same, "sigmoid");
  m.def("halved", &same, "halved");
  m.def("fir", &first, "fir");
  m.def("product", &product_shape, "product");
  m.def("top", &top_shape, "top");
  m.def("caught", &same, "caught");
}
