// Calls of kernels and shape functions with plain values, core by core.
#include "runtime.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "neurontools/factories.hpp"
#include "neurontools/registry.hpp"
#include "list.hpp"

namespace neurontools {

Context context;

namespace {

struct Operator {
  const char* library;
  const char* name;
  const char* kernel;
  Callable shape;
};

struct Kernel {
  const char* name;
  Callable function;
};

List<Operator> operators;
List<Kernel> kernels;

torch::Tensor output;
AnyFunction running = nullptr;

torch::Tensor wrap(const abi::Tensor& value, Origin origin, bool read_only) {
  const c10::IntArrayRef sizes(value.sizes, static_cast<std::size_t>(value.dim));
  TensorPointer impl(new TensorImpl(sizes, static_cast<c10::ScalarType>(value.dtype)));
  impl->origin = origin;
  impl->read_only = read_only;
  impl->storage = context.meta ? nullptr : read_only ? value.const_data : value.data;
  return torch::Tensor(impl);
}

bool is_constant(const Callable& callable, std::size_t index) {
  return index < callable.parameter_count && std::strcmp(callable.parameters[index].text, "const-tensor") == 0;
}

void unpack(const abi::Request& request, const Callable& callable, Arguments& arguments) {
  for (std::uint32_t i = 0; i < request.argument_count; ++i) {
    const abi::Argument& argument = request.arguments[i];
    if (argument.kind == abi::kTensorArgument) {
      arguments.tensors[i] = wrap(argument.tensor, Origin::kArgument, is_constant(callable, i));
      arguments.tensors[i].impl().argument = static_cast<int>(i);
    } else {
      const bool real = argument.kind == abi::kRealArgument;
      arguments.scalars[i] = real ? c10::Scalar(argument.real) : c10::Scalar(argument.integer);
      arguments.reals[i] = real ? argument.real : static_cast<double>(argument.integer);
      arguments.integers[i] = real ? static_cast<std::int64_t>(argument.real) : argument.integer;
    }
  }
}

void copy_bytes(void* place, const void* bytes) {
  if (place != bytes && output.nbytes() != 0) std::memcpy(place, bytes, output.nbytes());
}

// Sizes as `[2, 3]`.
struct SizesText {
  explicit SizesText(c10::IntArrayRef sizes) {
    std::size_t used = static_cast<std::size_t>(std::snprintf(text, sizeof text, "["));
    for (std::size_t i = 0; i < sizes.size() && used + 24 < sizeof text; ++i)
      used += static_cast<std::size_t>(std::snprintf(text + used, sizeof text - used, i == 0 ? "%lld" : ", %lld",
                                                     static_cast<long long>(sizes[i])));
    std::snprintf(text + used, sizeof text - used, "]");
  }
  char text[128];
};

void take_result(const torch::Tensor& result, void* place) {
  if (context.output_taken) return copy_bytes(place, output.impl().data());
  if (context.multicore)
    fail("output", "a multicore kernel must write through get_dst_tensor(); core %u returned without calling it",
         context.core);
  if (result.sizes() != output.sizes())
    fail("output", "the kernel returned a tensor of sizes %s, its shape function promised %s",
         SizesText(result.sizes()).text, SizesText(output.sizes()).text);
  if (result.scalar_type() != output.scalar_type())
    fail("output", "the kernel returned dtype %s, its shape function promised %s", c10::toString(result.scalar_type()),
         c10::toString(output.scalar_type()));
  copy_bytes(place, result.impl().data());
  count_returned(result.impl());
}

void run_core(const abi::Request& request, const Callable& callable) {
  context.output_taken = false;
  context.counters = {};
  reply->core = static_cast<std::int32_t>(context.core);
  output = wrap(request.output, Origin::kOutput, false);
  {
    Lending lending(output.impl());
    Arguments arguments;
    unpack(request, callable, arguments);
    const torch::Tensor result = callable.call(callable.function, arguments);
    lending.end(result.defined() ? &result.impl() : nullptr);
    take_result(result, request.output.data);
  }
  output = torch::Tensor();
  tcm_end_core();
  places_end_core();
  reply->counters[context.core] = context.counters;
}

// The order of the cores: 0 ascending, 1 descending, else a stride from some start.
std::uint32_t core_at(std::uint32_t position, std::uint32_t count, std::uint32_t order) {
  if (order == 0 || count == 0) return position;
  if (order == 1) return count - 1 - position;
  const std::uint32_t odd = 2 * ((order / count) % 4) + 1;  // odd, so coprime to a power of two
  return (position * odd + order) % count;
}

// Only core 0 may print: the output of other cores is truncated.
void run_muted(const abi::Request& request, const Callable& callable) {
  std::fflush(stdout);
  const long printed = lseek(STDOUT_FILENO, 0, SEEK_CUR);
  run_core(request, callable);
  std::fflush(stdout);
  if (lseek(STDOUT_FILENO, 0, SEEK_CUR) != printed && ftruncate(STDOUT_FILENO, printed) == 0)
    lseek(STDOUT_FILENO, printed, SEEK_SET);
}

void run_cores(const abi::Request& request, const Callable& callable) {
  for (std::uint32_t position = 0; position < context.core_count; ++position) {
    context.core = core_at(position, context.core_count, request.core_order);
    if (context.core != 0 && request.capture_stdout != 0)
      run_muted(request, callable);
    else
      run_core(request, callable);
  }
}

template <typename T>
T& chosen(List<T>& list, std::size_t index) {
  if (index >= list.size()) fail("index", "function %zu of a library of %zu", index, list.size());
  return list[index];
}

void run(const abi::Request& request) {
  context.core_count = request.core_count;
  context.multicore = request.core_count > 1;
  context.output_written_untracked = false;
  context.count_places = request.count_places != 0;
  places_begin();
  coverage_begin();
  damage_begin();
  tcm_begin();
  const Callable& callable = chosen(kernels, request.callee).function;
  running = callable.function;
  run_cores(request, callable);
  tcm_end();
  damage_check();
  reply->core = -1;
  const auto dtype = static_cast<c10::ScalarType>(request.output.dtype);
  coverage_check(request.output.nbytes, c10::elementSize(dtype));
}

void infer_shape(const abi::Request& request) {
  const Callable& callable = chosen(operators, request.callee).shape;
  context.meta = true;
  running = callable.function;
  Arguments arguments;
  unpack(request, callable, arguments);
  const torch::Tensor result = callable.call(callable.function, arguments);
  reply->shape.dim = static_cast<std::int32_t>(result.dim());
  reply->shape.dtype = static_cast<std::int32_t>(result.scalar_type());
  reply->shape.nbytes = result.nbytes();
  for (std::int64_t i = 0; i < result.dim(); ++i) reply->shape.sizes[i] = result.size(i);
}

void describe_word(std::string& text, const Word& word) {
  text += word.text;
  if (word.type == nullptr) return;
  int status = 0;
  char* demangled = ::abi::__cxa_demangle(word.type->name(), nullptr, nullptr, &status);
  text += demangled != nullptr ? demangled : word.type->name();
  std::free(demangled);
}

void describe_function(std::string& text, const Callable& callable) {
  describe_word(text, callable.result);
  text += '\t';
  for (std::size_t i = 0; i < callable.parameter_count; ++i) {
    if (i != 0) text += ';';
    describe_word(text, callable.parameters[i]);
  }
  text += '\n';
}

void add_field(std::string& text, const char* field) {
  text += field;
  text += '\t';
}

void report(const char* kind, const char* message) {
  reply->status = abi::kFailed;
  std::snprintf(reply->kind, sizeof reply->kind, "%s", kind);
  std::snprintf(reply->message, sizeof reply->message, "%s", message);
  if (failure_place != nullptr) {
    reply->frames[0] = reinterpret_cast<std::uintptr_t>(failure_place) - 1;
    reply->frame_count = 1;
  }
  // The start of the function, as there is no better place.
  if (running != nullptr && reply->frame_count < abi::kMaxFrames)
    reply->frames[reply->frame_count++] = reinterpret_cast<std::uintptr_t>(running);
}

}  // namespace

// The string of a name may live only during the registration.
static const char* kept(const char* name) {
  const char* copy = ::strdup(name);
  if (copy == nullptr) throw std::bad_alloc();
  return copy;
}

void add_operator(const char* library, const char* name, const char* kernel, const Callable& shape) {
  operators.add({kept(library), kept(name), kept(kernel), shape});
}

void add_kernel(const char* name, const Callable& function) { kernels.add({kept(name), function}); }

torch::Tensor take_output() {
  if (context.meta) fail("shape", "get_dst_tensor() is for kernels, not for shape functions");
  if (!context.output_taken) give_output_memory_of_its_own(output.impl());
  context.output_taken = true;
  return output;
}

}  // namespace neurontools

using namespace neurontools;

NEURONTOOLS_EXPORT std::uint32_t neurontools_abi_version() { return neurontools::abi::kVersion; }

/// One line per operator and kernel, fields separated by tabs.
NEURONTOOLS_EXPORT const char* neurontools_describe() {
  static std::string text;
  text.clear();
  for (const Operator& entry : operators) {
    for (const char* field : {"operator", entry.library, entry.name, entry.kernel}) add_field(text, field);
    describe_function(text, entry.shape);
  }
  for (const Kernel& entry : kernels) {
    for (const char* field : {"kernel", entry.name}) add_field(text, field);
    describe_function(text, entry.function);
  }
  return text.c_str();
}

/// The running core, for fault reports.
NEURONTOOLS_EXPORT std::int32_t neurontools_core() { return static_cast<std::int32_t>(context.core); }

NEURONTOOLS_EXPORT void neurontools_call(const neurontools::abi::Request* request, neurontools::abi::Reply* answer) {
  reply = answer;
  reply->status = neurontools::abi::kOk;
  reply->core = -1;
  reply->frame_count = 0;
  failure_place = nullptr;
  running = nullptr;
  try {
    if (request->command == neurontools::abi::kShapeCommand)
      infer_shape(*request);
    else if (request->command == neurontools::abi::kPlacesCommand)
      list_counts(request->callee, reply->warnings, sizeof reply->warnings);
    else
      run(*request);
  } catch (const c10::Error& error) {
    report(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    report("memory", "out of host memory");
  } catch (const std::exception& error) {
    report("exception", error.what());
  } catch (...) {
    report("exception", "an exception that is not a std::exception");
  }
  output = torch::Tensor();
}
