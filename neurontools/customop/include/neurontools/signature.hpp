// Signatures: what a kernel or shape function takes, as words for the host, and how to call it with plain values.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "neurontools/abi.hpp"
#include "neurontools/scalar.hpp"
#include "neurontools/tensor.hpp"

namespace neurontools {

/// The values of one call, tensors made; lvalues, because a parameter may be a reference.
struct Arguments {
  torch::Tensor tensors[abi::kMaxArguments];
  c10::Scalar scalars[abi::kMaxArguments];
  double reals[abi::kMaxArguments] = {};
  std::int64_t integers[abi::kMaxArguments] = {};
};

inline std::string type_name(const std::type_info& type) {
  int status = 0;
  char* demangled = ::abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 && demangled != nullptr ? demangled : type.name();
  std::free(demangled);
  return name;
}

/// How a parameter of type T is called and where its value is; the primary template is for what cannot be passed.
template <typename T>
struct Parameter {
  static std::string word() { return "unsupported:" + type_name(typeid(T)); }
  [[noreturn]] static T& value(Arguments&, std::size_t) { fail("signature", "a parameter of this type cannot be passed"); }
};
template <>
struct Parameter<torch::Tensor> {
  static std::string word() { return "tensor"; }
  static torch::Tensor& value(Arguments& arguments, std::size_t i) { return arguments.tensors[i]; }
};
template <>
struct Parameter<c10::Scalar> {
  static std::string word() { return "scalar"; }
  static c10::Scalar& value(Arguments& arguments, std::size_t i) { return arguments.scalars[i]; }
};
template <>
struct Parameter<double> {
  static std::string word() { return "double"; }
  static double& value(Arguments& arguments, std::size_t i) { return arguments.reals[i]; }
};
template <>
struct Parameter<std::int64_t> {
  static std::string word() { return "int64"; }
  static std::int64_t& value(Arguments& arguments, std::size_t i) { return arguments.integers[i]; }
};

template <typename T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

/// Only a const reference to a tensor promises not to write it.
template <typename T>
std::string parameter_word() {
  const bool constant = std::is_reference<T>::value && std::is_const<std::remove_reference_t<T>>::value;
  const std::string word = Parameter<Bare<T>>::word();
  return constant && word == "tensor" ? "const-tensor" : word;
}

inline void join_words(std::string&) {}
template <typename First, typename... Rest>
void join_words(std::string& text, const First& first, const Rest&... rest) {
  if (!text.empty()) text += ';';
  text += first;
  join_words(text, rest...);
}

using AnyFunction = void (*)();

/// A function whose type is erased, with the words of its signature.
struct Callable {
  AnyFunction function;
  torch::Tensor (*call)(AnyFunction, Arguments&);
  std::string parameters;
  std::string result;
};

template <typename R, typename... P>
struct Caller {
  static torch::Tensor call(AnyFunction function, Arguments& arguments) {
    return expand(reinterpret_cast<R (*)(P...)>(function), arguments, std::index_sequence_for<P...>(),
                  std::is_convertible<R, torch::Tensor>());
  }

 private:
  template <std::size_t... I>
  static torch::Tensor expand(R (*function)(P...), Arguments& arguments, std::index_sequence<I...>, std::true_type) {
    static_cast<void>(arguments);
    return function(static_cast<P>(Parameter<Bare<P>>::value(arguments, I))...);
  }
  template <std::size_t... I>
  [[noreturn]] static torch::Tensor expand(R (*)(P...), Arguments&, std::index_sequence<I...>, std::false_type) {
    fail("signature", "the function does not return a tensor");
  }
};

template <typename R, typename... P>
Callable make_callable(R (*function)(P...)) {
  std::string parameters;
  join_words(parameters, parameter_word<P>()...);
  const std::string result = std::is_same<Bare<R>, torch::Tensor>::value ? "tensor" : "unsupported:" + type_name(typeid(R));
  return {reinterpret_cast<AnyFunction>(function), &Caller<R, P...>::call, parameters, result};
}

}  // namespace neurontools
