// A worker with sanitizers: tensors on the heap, and reports to the host.
#include "worker.hpp"

#if defined(NEURONTOOLS_SANITIZED)
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace worker {

namespace {

using neurontools::abi::Request;
using neurontools::abi::Tensor;

struct Original {
  unsigned char* data;
  unsigned char* constant;
};

Original originals[neurontools::abi::kSlots];

Tensor& tensor_at(Request& request, int slot) {
  return slot == neurontools::abi::kOutputSlot ? request.output : request.arguments[slot].tensor;
}

bool has_tensor(const Request& request, int slot) {
  if (slot == neurontools::abi::kOutputSlot) return true;
  return static_cast<std::uint32_t>(slot) < request.argument_count &&
         request.arguments[slot].kind == neurontools::abi::kTensorArgument;
}

void* copy_of(const void* bytes, std::size_t nbytes) {
  void* copy = std::malloc(nbytes == 0 ? 1 : nbytes);
  if (copy != nullptr) std::memcpy(copy, bytes, nbytes);
  return copy;
}

}  // namespace

bool tensors_to_heap(Request& request) {
  for (int slot = 0; slot < neurontools::abi::kSlots; ++slot) {
    if (!has_tensor(request, slot)) continue;
    Tensor& tensor = tensor_at(request, slot);
    originals[slot] = {static_cast<unsigned char*>(tensor.data), static_cast<unsigned char*>(tensor.const_data)};
    tensor.data = copy_of(tensor.data, tensor.nbytes);
    tensor.const_data = copy_of(tensor.const_data, tensor.nbytes);
    if (tensor.data == nullptr || tensor.const_data == nullptr) return false;
  }
  return true;
}

void tensors_from_heap(Request& request, neurontools::abi::Reply& reply) {
  for (int slot = 0; slot < neurontools::abi::kSlots; ++slot) {
    if (!has_tensor(request, slot)) continue;
    Tensor& tensor = tensor_at(request, slot);
    const bool output = slot == neurontools::abi::kOutputSlot;
    if (output) std::memcpy(originals[slot].data, tensor.data, tensor.nbytes);
    const bool same = std::memcmp(originals[slot].constant, tensor.const_data, tensor.nbytes) == 0;
    std::free(tensor.data);
    std::free(tensor.const_data);
    if (output || same || reply.status != neurontools::abi::kOk) continue;
    char message[96];
    std::snprintf(message, sizeof message, "write to argument %d, which the kernel takes as const Tensor&", slot);
    refuse(reply, "const", message);
  }
}

namespace {

void report() {
  char message[256];
  const char* what = __asan_get_report_description();
  const bool writes = __asan_get_report_access_type() != 0;
  const unsigned long long size = __asan_get_report_access_size();
  char place[96];
  if (explain_tcm(__asan_get_report_address(), place, sizeof place)) {
    std::snprintf(message, sizeof message, "%s of %llu bytes %s", writes ? "write" : "read", size, place);
    fatal("tcm", message);
  }
  if (size != 0)
    std::snprintf(message, sizeof message, "%s: %s of %llu bytes", what, writes ? "write" : "read", size);
  else
    std::snprintf(message, sizeof message, "%s", what);
  fatal("sanitizer", message);
}

}  // namespace

}  // namespace worker

extern "C" {

// Called by the sanitizer before it prints a report.
__attribute__((visibility("default"))) void __asan_on_error() { worker::report(); }

// Faults are reported by the worker. Leaks do not matter in a process that ends at once.
__attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:"
         "allow_user_segv_handler=1:detect_odr_violation=0:allocator_may_return_null=1";
}

}  // extern "C"
#endif
