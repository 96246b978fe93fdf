// Load compiled libraries and find their code in memory.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdio>

#include "worker.hpp"

namespace worker {

namespace {

int find_end(dl_phdr_info* info, std::size_t, void* data) {
  Library& library = *static_cast<Library*>(data);
  if (info->dlpi_addr != library.base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
      const std::uintptr_t end = library.base + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
      if (library.end < end) library.end = end;
    }
  }
  return 1;
}

template <typename Function>
void find_symbol(void* handle, const char* name, Function& function, Library& library) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) library.error = "the library lacks the entry points of a custom operator library";
}

}  // namespace

Library open_library(int fd) {
  Library library;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.error = dlerror();
    return library;
  }
  std::uint32_t (*version)() = nullptr;
  void (*set_fatal_hook)(void (*)(const char*, const char*)) = nullptr;
  find_symbol(handle, "neurontools_abi_version", version, library);
  find_symbol(handle, "neurontools_set_fatal_hook", set_fatal_hook, library);
  find_symbol(handle, "neurontools_call", library.call, library);
  find_symbol(handle, "neurontools_core", library.core, library);
  find_symbol(handle, "neurontools_describe", library.describe, library);
  find_symbol(handle, "neurontools_explain", library.explain, library);
  if (library.error != nullptr) return library;
  if (version() != neurontools::abi::kVersion) {
    library.error = "the library was built for another version; build it again";
    return library;
  }
  set_fatal_hook(&fatal);
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) {
    library.base = map->l_addr;
    dl_iterate_phdr(&find_end, &library);
  }
  return library;
}

void localize_frames(const Library& library, neurontools::abi::Reply& reply) {
  std::uint64_t kept = 0;
  for (std::uint64_t i = 0; i < reply.frame_count; ++i)
    if (reply.frames[i] >= library.base && reply.frames[i] < library.end)
      reply.frames[kept++] = reply.frames[i] - library.base;
  reply.frame_count = kept;
}

}  // namespace worker
