// The process that runs custom operators: a crash is only an error message for the host.
#include "mailbox.hpp"
#include "worker.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using neurontools::abi::Reply;
using neurontools::abi::Request;

namespace {

// A tensor is at the end of its range, so the first byte past it is in the guard page.
bool place_tensor(neurontools::abi::Tensor& tensor, int slot, const neurontools::abi::Place& place) {
  if (tensor.nbytes > place.nbytes || !worker::map_slot(slot, place)) return false;
  const worker::Slot& mapped = worker::slots[slot];
  tensor.const_data = mapped.constant + place.nbytes - tensor.nbytes;
  tensor.data = mapped.writable == nullptr ? tensor.const_data : mapped.writable + place.nbytes - tensor.nbytes;
  return true;
}

bool place_tensors(Request& request) {
  worker::forget_ranges();
  for (std::uint32_t i = 0; i < request.argument_count; ++i) {
    const int slot = static_cast<int>(i);
    worker::slots[slot] = {};
    if (request.arguments[i].kind != neurontools::abi::kTensorArgument) continue;
    if (!place_tensor(request.arguments[i].tensor, slot, request.places[i])) return false;
  }
  return place_tensor(request.output, neurontools::abi::kOutputSlot, request.places[neurontools::abi::kOutputSlot]);
}

const worker::Library& library_of(const Request& request) {
  static const worker::Library shape = worker::open_library(worker::kShapeFd);
  if (request.command == neurontools::abi::kShapeCommand) return shape;
  static const worker::Library kernel = worker::open_library(worker::kKernelFd);
  return kernel;
}

void answer(Request& request, Reply& reply) {
  const worker::Library& library = library_of(request);
  if (library.error != nullptr) return worker::refuse(reply, "load", library.error);
  const bool runs = request.command == neurontools::abi::kRunCommand;
  if (runs && !place_tensors(request)) return worker::refuse(reply, "memory", "cannot map the tensors' memory");
#if defined(NEURONTOOLS_SANITIZED)
  if (runs && !worker::tensors_to_heap(request)) return worker::refuse(reply, "memory", "no memory for the tensors");
#endif
  worker::set_running(&library, &request);
  const std::uint64_t start = worker::now_ns();
  library.call(&request, &reply);
  reply.elapsed_ns = worker::now_ns() - start;
  worker::set_running(nullptr, nullptr);
#if defined(NEURONTOOLS_SANITIZED)
  if (runs) worker::tensors_from_heap(request, reply);
#endif
  worker::localize_frames(library, reply);
}

// The output of the kernel is in a file, which the host reads and truncates.
bool has_printed() {
  std::fflush(stdout);
  return lseek(STDOUT_FILENO, 0, SEEK_CUR) != 0 || lseek(STDERR_FILENO, 0, SEEK_CUR) != 0;
}

int serve(int host) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  worker::start_guarded(host);
  // A program that a kernel executes does not hold the pipe, so the host notices it.
  for (int fd = worker::kRequestFd; fd <= worker::kKernelFd; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (!worker::open_mailbox()) return 1;
  // Limits the output of a kernel; further writes fail.
  const rlimit printed{64u << 20, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &printed);
  setvbuf(stdout, nullptr, _IOLBF, 4096);
  worker::install_handlers();
  static Request request;
  static Reply reply;
  while (worker::receive(request)) {
    std::memset(&reply, 0, sizeof reply);
    reply.magic = neurontools::abi::kMagic;
    answer(request, reply);
    const bool quiet = !has_printed();
    worker::send(reply, quiet && reply.status == neurontools::abi::kOk && reply.warnings[0] == '\0');
  }
  _exit(0);
}

int describe(int fd) {
  const worker::Library library = worker::open_library(fd);
  if (library.error != nullptr) {
    std::fprintf(stderr, "%s\n", library.error);
    return 1;
  }
  std::fputs(library.describe(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "serve") == 0) return serve(std::atoi(argv[2]));
  if (argc == 3 && std::strcmp(argv[1], "describe") == 0) return describe(std::atoi(argv[2]));
  std::fprintf(stderr, "usage: %s serve HOST | describe FD\n", argv[0]);
  return 2;
}
