// Preloaded into a fuzzed process: the memory of tensors ends before a page that nobody may touch, and begins after one.
// torch takes it with posix_memalign. Freed memory is never used again, so that a late access ends the process, too.

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kPage = 4096, kRegion = size_t{1} << 42;
constexpr unsigned char kFiller = 0xA7;

struct Block { size_t size, bytes; };  // in the first bytes of the pages before a block's end

char* const region = static_cast<char*>(
    mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
std::atomic<size_t> used{0};

bool is_ours(const void* block) {
  const char* place = static_cast<const char*>(block);
  return region != MAP_FAILED && place >= region && place < region + kRegion;
}

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// A block lies at the end of its pages, after its description and a filler that must stay as it is.
Block* description(const void* block) {
  const auto place = reinterpret_cast<uintptr_t>(block);
  return reinterpret_cast<Block*>((place - sizeof(Block)) / 64 * 64);
}

}  // namespace

extern "C" int posix_memalign(void** result, size_t align, size_t size) {
  if (align < 64) align = 64;
  const size_t room = (size + align - 1) / align * align, bytes = pages(room + align + 64);
  const size_t place = used.fetch_add(bytes + kPage);
  if (region == MAP_FAILED || place + bytes + kPage > kRegion || size > kRegion) return ENOMEM;
  char* const begin = region + place;
  if (mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) return ENOMEM;
  char* const block = begin + bytes - room;
  *description(block) = Block{size, bytes};
  std::memset(block + size, kFiller, room - size);
  *result = block;
  return 0;
}

extern "C" void free(void* block) {
  static auto* const real = reinterpret_cast<void (*)(void*)>(dlsym(RTLD_NEXT, "free"));
  if (!is_ours(block)) return real(block);
  const Block found = *description(block);
  const auto* const end = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(block) + found.size + 63) / 64 * 64);
  for (const unsigned char* byte = static_cast<unsigned char*>(block) + found.size; byte < end; ++byte)
    if (*byte != kFiller) std::abort();
  char* const last = reinterpret_cast<char*>(pages(reinterpret_cast<uintptr_t>(end)));
  mmap(last - found.bytes, found.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
