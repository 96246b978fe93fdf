// The registry of a library: operators (shape sources) and kernels (compute sources).
#pragma once

#include "neurontools/signature.hpp"

namespace neurontools {

void add_operator(const char* library, const char* name, const char* kernel, const Callable& shape);
void add_kernel(const char* name, const Callable& function);

/// The `m` of NEURON_LIBRARY(name, m).
class Library {
 public:
  explicit Library(const char* name) : name_(name) {}

  /// Register an operator: its name, its shape function, and the name of its kernel function.
  template <typename R, typename... P>
  Library& def(const char* name, R (*shape)(P...), const char* kernel) {
    add_operator(name_, name, kernel, make_callable(shape));
    return *this;
  }

 private:
  const char* name_;
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
    add_kernel(name, make_callable(function));
  }
};

}  // namespace neurontools
