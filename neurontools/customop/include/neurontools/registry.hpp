// What a library offers: operators (shape sources) and kernels (compute sources).
#pragma once

#include <string>
#include <vector>

#include "neurontools/signature.hpp"

namespace neurontools {

struct Operator {
  std::string library;
  std::string name;
  std::string kernel;
  Callable shape;
};

struct Kernel {
  std::string name;
  Callable function;
};

std::vector<Operator>& operators();
std::vector<Kernel>& kernels();

/// The `m` of NEURON_LIBRARY(name, m).
class Library {
 public:
  explicit Library(const char* name) : name_(name) {}

  /// Register an operator: its name, its shape function, and the name of its kernel function.
  template <typename R, typename... P>
  Library& def(const char* name, R (*shape)(P...), const char* kernel) {
    operators().push_back({name_, name, kernel, make_callable(shape)});
    return *this;
  }

 private:
  std::string name_;
};

struct LibraryDefinition {
  LibraryDefinition(const char* name, void (*define)(Library&)) {
    Library library(name);
    define(library);
  }
};

struct KernelDefinition {
  template <typename R, typename... P>
  KernelDefinition(const char* name, R (*function)(P...)) {
    kernels().push_back({name, make_callable(function)});
  }
};

}  // namespace neurontools
