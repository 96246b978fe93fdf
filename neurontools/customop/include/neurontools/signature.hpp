// Signatures of kernels and shape functions: names of parameter types for the host, and calls with plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "neurontools/abi.hpp"
#include "neurontools/scalar.hpp"
#include "neurontools/tensor.hpp"

namespace neurontools {

/// The values of one call; lvalues, because a parameter may be a reference.
struct Arguments {
  torch::Tensor tensors[abi::kMaxArguments];
  c10::Scalar scalars[abi::kMaxArguments];
  double reals[abi::kMaxArguments] = {};
  std::int64_t integers[abi::kMaxArguments] = {};
};

/// The host's name of a type; `type` is the name of an unsupported type, else nullptr.
struct Word {
  const char* text;
  const std::type_info* type;
};

/// Name and value of a parameter of type T; the primary template is for unsupported types.
template <typename T>
struct Parameter {
  static constexpr Word word() { return {"unsupported:", &typeid(T)}; }
  [[noreturn]] static T& value(Arguments&, std::size_t) { fail("signature", "a parameter of this type cannot be passed"); }
};
template <>
struct Parameter<torch::Tensor> {
  static constexpr Word word() { return {"tensor", nullptr}; }
  static torch::Tensor& value(Arguments& arguments, std::size_t i) { return arguments.tensors[i]; }
};
template <>
struct Parameter<c10::Scalar> {
  static constexpr Word word() { return {"scalar", nullptr}; }
  static c10::Scalar& value(Arguments& arguments, std::size_t i) { return arguments.scalars[i]; }
};
template <>
struct Parameter<double> {
  static constexpr Word word() { return {"double", nullptr}; }
  static double& value(Arguments& arguments, std::size_t i) { return arguments.reals[i]; }
};
template <>
struct Parameter<std::int64_t> {
  static constexpr Word word() { return {"int64", nullptr}; }
  static std::int64_t& value(Arguments& arguments, std::size_t i) { return arguments.integers[i]; }
};

template <typename T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

/// Only a const reference to a tensor guarantees that the kernel does not write it.
template <typename T>
constexpr Word parameter_word() {
  return std::is_reference<T>::value && std::is_const<std::remove_reference_t<T>>::value &&
                 std::is_same<Bare<T>, torch::Tensor>::value
             ? Word{"const-tensor", nullptr}
             : Parameter<Bare<T>>::word();
}

using AnyFunction = void (*)();

/// A type-erased function with the names of its signature.
struct Callable {
  AnyFunction function;
  torch::Tensor (*call)(AnyFunction, Arguments&);
  const Word* parameters;
  std::size_t parameter_count;
  Word result;
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
  static const Word parameters[] = {parameter_word<P>()..., Word{"", nullptr}};
  const bool is_tensor = std::is_same<Bare<R>, torch::Tensor>::value;
  return {reinterpret_cast<AnyFunction>(function), &Caller<R, P...>::call, parameters, sizeof...(P),
          is_tensor ? Word{"tensor", nullptr} : Word{"unsupported:", &typeid(R)}};
}

}  // namespace neurontools
