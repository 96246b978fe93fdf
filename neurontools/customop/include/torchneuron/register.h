// Registration of operators by a shape source: NEURON_LIBRARY(name, m) { m.def("op", &shape_function, "kernel"); }
#pragma once

#include "neurontools/registry.hpp"
#include "torch/torch.h"

#define NEURON_LIBRARY(library, variable)                                                             \
  static void neurontools_define_##library(::neurontools::Library&);                                  \
  static const ::neurontools::LibraryDefinition neurontools_definition_##library(#library,            \
                                                                                 &neurontools_define_##library); \
  void neurontools_define_##library(::neurontools::Library& variable)
