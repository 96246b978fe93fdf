// The process that runs custom operators, so that a crash of one is an error message for the host and no more.
#include "worker.hpp"

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

bool receive(Request& request) {
  unsigned char* place = reinterpret_cast<unsigned char*>(&request);
  std::size_t missing = sizeof request;
  while (missing > 0) {
    const ssize_t got = read(worker::kRequestFd, place, missing);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    place += got;
    missing -= static_cast<std::size_t>(got);
  }
  return request.magic == neurontools::abi::kMagic;
}

// A tensor lies at the end of its slot, so that the first byte past it is in the guard.
bool place_tensor(neurontools::abi::Tensor& tensor, int slot, std::uint64_t slot_bytes) {
  if (tensor.nbytes > slot_bytes || !worker::map_slot(slot, slot_bytes)) return false;
  tensor.data = worker::slots[slot].writable + slot_bytes - tensor.nbytes;
  tensor.const_data = worker::slots[slot].constant + slot_bytes - tensor.nbytes;
  return true;
}

bool place_tensors(Request& request) {
  for (std::uint32_t i = 0; i < request.argument_count; ++i) {
    const int slot = static_cast<int>(i);
    if (request.arguments[i].kind != neurontools::abi::kTensorArgument) continue;
    if (!place_tensor(request.arguments[i].tensor, slot, request.slot_bytes[i])) return false;
  }
  return place_tensor(request.output, neurontools::abi::kOutputSlot,
                      request.slot_bytes[neurontools::abi::kOutputSlot]);
}

std::uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1000000000u + static_cast<std::uint64_t>(time.tv_nsec);
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
  const std::uint64_t start = now_ns();
  library.call(&request, &reply);
  reply.elapsed_ns = now_ns() - start;
  worker::set_running(nullptr, nullptr);
#if defined(NEURONTOOLS_SANITIZED)
  if (runs) worker::tensors_from_heap(request, reply);
#endif
  worker::localize_frames(library, reply);
}

int serve(int parent) {
  worker::follow_parent(parent);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // Bounds what a kernel can print; further writes fail.
  const rlimit printed{64u << 20, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &printed);
  setvbuf(stdout, nullptr, _IOLBF, 4096);
  worker::install_handlers();
  static Request request;
  static Reply reply;
  while (receive(request)) {
    std::memset(&reply, 0, sizeof reply);
    reply.magic = neurontools::abi::kMagic;
    answer(request, reply);
    std::fflush(stdout);
    if (!worker::send(reply)) break;
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
  std::fprintf(stderr, "usage: %s serve PARENT | describe FD\n", argv[0]);
  return 2;
}
