// Runs the kernels of a library in this process, for processors whose Python is not here: prints "NAME STATUS RESULT".
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "neurontools/abi.hpp"

namespace abi = neurontools::abi;

static void set_tensor(abi::Tensor& tensor, float* data, std::int64_t count) {
  tensor.dim = 1;
  tensor.sizes[0] = count;
  tensor.dtype = 6;
  tensor.nbytes = static_cast<std::uint64_t>(count) * sizeof(float);
  tensor.data = tensor.const_data = data;
}

int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto call = reinterpret_cast<void (*)(const abi::Request*, abi::Reply*)>(dlsym(library, "neurontools_call"));
  for (int i = 2; argv[i] != nullptr; ++i) {
    static abi::Request request;
    static abi::Reply reply;
    float input[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    float output = -1;
    std::memset(&request, 0, sizeof request);
    std::memset(&reply, 0, sizeof reply);
    request.magic = abi::kMagic;
    request.command = abi::kRunCommand;
    request.callee = static_cast<std::uint32_t>(i - 2);
    request.argument_count = 1;
    request.core_count = 1;
    set_tensor(request.arguments[0].tensor, input, 8);
    set_tensor(request.output, &output, 1);
    call(&request, &reply);
    std::printf("%s %d %g %s\n", argv[i], reply.status, static_cast<double>(output), reply.message);
  }
  std::fflush(stdout);
  return 0;
}
