// The device's own rules give the output's dtype: an operation on tensors without storage does the same.
#include "compute.cpp"
#include "torchneuron/register.h"

NEURON_LIBRARY(operations, m) {
  m.def("unary", &unary, "unary");
  m.def("binary", &binary, "binary");
  m.def("with_scalar", &with_scalar, "with_scalar");
  m.def("into", &into, "into");
  m.def("made", &made, "made");
  m.def("as_type", &as_type, "as_type");
  m.def("filled", &filled, "filled");
}

static Tensor same(Tensor x) { return torch::empty(x.sizes(), x.options()); }

NEURON_LIBRARY(operations_stream, m) {
  m.def("stream", &same, "stream");
  m.def("elements", &same, "elements");
  m.def("tcm", &same, "tcm");
}
