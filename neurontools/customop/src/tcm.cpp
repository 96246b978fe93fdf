// The 16 KiB pool of a core: blocks between canaries; new blocks are filled with a pattern, never with old values.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "neurontools/context.hpp"
#include "neurontools/error.hpp"
#include "list.hpp"
#include "runtime.hpp"

namespace neurontools {

namespace {

constexpr std::size_t kCanaryBytes = 256;
constexpr std::size_t kGranule = 16;
constexpr unsigned char kCanary = 0xc5;
constexpr unsigned char kFresh = 0xa5;

struct Block {
  unsigned char* data;
  std::size_t nbytes;  // as requested; the canary follows immediately
  std::size_t charged;
  const void* place;  // caller of tcm_malloc
};

List<Block> blocks;
std::size_t in_use = 0;

std::size_t round_up(std::size_t nbytes, std::size_t unit) { return (nbytes + unit - 1) / unit * unit; }

bool intact(const unsigned char* begin) {
  for (std::size_t i = 0; i < kCanaryBytes; ++i)
    if (begin[i] != kCanary) return false;
  return true;
}

void check_canaries(const Block& block) {
  const bool past = !intact(block.data + block.nbytes);
  if (!past && intact(block.data - kCanaryBytes)) return;
  failure_place = block.place;
  fail("tcm", "write %s of a TCM block of %zu bytes, from tcm_malloc", past ? "past the end" : "before the beginning",
       block.nbytes);
}

// The fill byte of the C library (MALLOC_PERTURB_), if set: it reveals reads before writes, as in tensors.
int fresh_byte() {
  static const char* const asked = std::getenv("MALLOC_PERTURB_");
  return asked == nullptr ? kFresh : std::atoi(asked) & 0xff;
}

void discard(const Block& block) { std::free(block.data - kCanaryBytes); }

void warn_of_leaks() {
  char message[128];
  char place[32];
  std::snprintf(message, sizeof message, "tcm: %zu TCM block%s (%zu bytes) not freed when the kernel returned, from tcm_malloc",
                blocks.size(), blocks.size() == 1 ? "" : "s", in_use);
  list_place(blocks[0].place, place, sizeof place);
  warn_at(place, message);
}

}  // namespace

__attribute__((noinline)) void* tcm_allocate(std::size_t nbytes) {
  if (context.meta) fail("shape", "tcm_malloc in a shape function: it runs on the host, which has no TCM");
  const std::size_t charged = round_up(nbytes == 0 ? 1 : nbytes, kGranule);
  if (charged > kTcmPoolBytes - in_use || nbytes > kTcmPoolBytes) return nullptr;
  const std::size_t whole = round_up(nbytes + 2 * kCanaryBytes, 64);
  unsigned char* memory = static_cast<unsigned char*>(::aligned_alloc(64, whole));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kCanary, whole);
  std::memset(memory + kCanaryBytes, fresh_byte(), nbytes);
  blocks.add({memory + kCanaryBytes, nbytes, charged, __builtin_return_address(0)});
  in_use += charged;
  return memory + kCanaryBytes;
}

void tcm_release(void* pointer) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].data != pointer) continue;
    const Block block = blocks[i];
    check_canaries(block);
    blocks.remove(i);
    in_use -= block.charged;
    discard(block);
    return;
  }
  fail("tcm", "tcm_free of a pointer that is not a live TCM block");
}

std::int64_t tcm_room(const void* pointer) {
  const unsigned char* place = static_cast<const unsigned char*>(pointer);
  for (const Block& block : blocks)
    if (place >= block.data && place <= block.data + block.nbytes) return block.data + block.nbytes - place;
  return -1;
}

void tcm_begin() {
  for (const Block& block : blocks) discard(block);
  blocks.clear();
  in_use = 0;
}

void tcm_end() {
  for (const Block& block : blocks) check_canaries(block);
  if (!blocks.empty()) warn_of_leaks();
  tcm_begin();
}

}  // namespace neurontools
