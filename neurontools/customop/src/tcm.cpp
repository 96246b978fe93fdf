// The 16 KiB pool of a core. Its blocks lie apart in a ring of guard bytes, which reuses freed blocks last. An access
// outside of the blocks reads guard bytes or ends the kernel; a write is found when the kernel ends. A build with sanitizers
// poisons the guard bytes, so the access itself is reported. New blocks are filled with a pattern, never with old values.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "neurontools/context.hpp"
#include "neurontools/error.hpp"
#include "list.hpp"
#include "runtime.hpp"
#include "sanitizing.hpp"

namespace neurontools {

namespace {

constexpr std::size_t kRingBytes = std::size_t{1} << 20;     // of a core; 1024 blocks of 16 bytes fit
constexpr std::size_t kStepBytes = std::size_t{1} << 15;     // filled at once
constexpr std::size_t kOutsideBytes = std::size_t{1} << 20;  // inaccessible memory before and after all rings
constexpr std::size_t kWholeBytes = abi::kMaxCores * kRingBytes + 2 * kOutsideBytes;
constexpr std::size_t kMarginBytes = 2048;  // checked before and after the blocks of a call; ends of a ring without blocks
constexpr std::size_t kGranule = 16;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kFreedMax = 64;

struct Block {
  unsigned char* data;
  std::size_t nbytes;  // as requested; guard bytes follow immediately
  std::size_t charged;
  const void* place;  // caller of tcm_malloc
};

struct Ring {
  std::size_t accessible = 0;  // bytes from its beginning
  std::size_t next = 0;        // offset from which the next block is placed
  std::size_t first = 0;       // `next` at the start of the call
  bool went_round = false;
  List<Block> freed;  // the newest of the call, to explain addresses
};

unsigned char* whole = nullptr;
Ring rings[abi::kMaxCores];
List<Block> blocks;  // of the running core
std::size_t in_use = 0;
bool clean = true;

std::size_t round_up(std::size_t nbytes, std::size_t unit) { return (nbytes + unit - 1) / unit * unit; }

// It depends on the guard byte, so that a read past the guard bytes, too, gives other values with other bytes.
std::size_t gap_bytes() { return 256 + kAlignment * (guard_byte() & 7u); }

Ring& ring() { return rings[context.core]; }

unsigned char* memory_of(const Ring& ring) { return whole + kOutsideBytes + static_cast<std::size_t>(&ring - rings) * kRingBytes; }

void close_off(unsigned char* begin, std::size_t nbytes) {
#if defined(NEURONTOOLS_SANITIZED)
  __asan_poison_memory_region(begin, nbytes);
#else
  std::memset(begin, guard_byte(), nbytes);
#endif
}

void open_up(unsigned char* begin, std::size_t nbytes) {
#if defined(NEURONTOOLS_SANITIZED)
  __asan_unpoison_memory_region(begin, nbytes);
#endif
  std::memset(begin, fresh_byte(), nbytes);
}

bool reserve_rings() {
  if (whole != nullptr) return true;
  void* memory = mmap(nullptr, kWholeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  whole = static_cast<unsigned char*>(memory);
#if defined(NEURONTOOLS_SANITIZED)
  __asan_poison_memory_region(whole, kWholeBytes);
#endif
  return true;
}

bool make_accessible(Ring& ring, std::size_t nbytes) {
  while (ring.accessible < nbytes) {
    unsigned char* begin = memory_of(ring) + ring.accessible;
    if (mprotect(begin, kStepBytes, PROT_READ | PROT_WRITE) != 0) return false;
    close_off(begin, kStepBytes);
    ring.accessible += kStepBytes;
  }
  return true;
}

const Block* overlapping(const unsigned char* begin, const unsigned char* end) {
  for (const Block& block : blocks)
    if (begin < block.data + round_up(block.nbytes, kAlignment) && block.data - gap_bytes() < end) return &block;
  return nullptr;
}

// Find memory for a block, with guard bytes before it; nullptr if there is no piece of this size.
unsigned char* find_room(Ring& ring, std::size_t nbytes) {
  unsigned char* memory = memory_of(ring);
  const std::size_t needed = gap_bytes() + round_up(nbytes, kAlignment);
  std::size_t offset = ring.next;
  for (std::size_t tries = 0; tries < 2 * blocks.size() + 3; ++tries) {
    if (offset < kMarginBytes || offset + needed > kRingBytes - kMarginBytes) {
      ring.went_round = ring.went_round || offset >= kMarginBytes;
      offset = kMarginBytes;
    }
    const Block* other = overlapping(memory + offset, memory + offset + needed);
    if (other == nullptr) {
      ring.next = offset + needed;
      return make_accessible(ring, ring.next + kMarginBytes) ? memory + offset + gap_bytes() : nullptr;
    }
    offset = static_cast<std::size_t>(other->data - memory) + round_up(other->nbytes, kAlignment);
  }
  return nullptr;
}

void release(std::size_t index) {
  const Block block = blocks[index];
  List<Block>& freed = ring().freed;
  close_off(block.data, block.nbytes);
  blocks.remove(index);
  in_use -= block.charged;
  if (freed.size() == kFreedMax) freed.remove(0);
  freed.add(block);
}

std::size_t distance(const unsigned char* address, const Block& block) {
  if (address < block.data) return static_cast<std::size_t>(block.data - address);
  const unsigned char* end = block.data + block.nbytes;
  return address < end ? 0 : static_cast<std::size_t>(address - end) + 1;
}

// Find the block at an address, or the nearest one within its guard bytes; the newest of equal ones.
const Block* block_near(const unsigned char* address) {
  const Block* nearest = nullptr;
  for (List<Block>* list : {&ring().freed, &blocks})
    for (const Block& block : *list)
      if (distance(address, block) <= (nearest == nullptr ? gap_bytes() : distance(address, *nearest))) nearest = &block;
  return nearest;
}

const Block* explain(const unsigned char* address, char* text, std::size_t size) {
  const Block* block = block_near(address);
  if (block == nullptr)
    std::snprintf(text, size, "outside of all TCM blocks");
  else if (distance(address, *block) == 0)
    std::snprintf(text, size, "in a freed TCM block of %zu bytes", block->nbytes);
  else
    std::snprintf(text, size, "%s of a TCM block of %zu bytes", address < block->data ? "before the beginning" : "past the end",
                  block->nbytes);
  return block;
}

bool is_in_rings(const void* address) {
  const unsigned char* place = static_cast<const unsigned char*>(address);
  return whole != nullptr && place >= whole && place < whole + kWholeBytes;
}

// Look for writes to the guard bytes of the running core; the sanitizer has reported them already.
void check_guards() {
#if !defined(NEURONTOOLS_SANITIZED)
  const Ring& checked = ring();
  if (checked.accessible == 0) return;
  const std::size_t begin = checked.went_round || checked.first < kMarginBytes ? 0 : checked.first - kMarginBytes;
  const std::size_t end = checked.went_round ? checked.accessible : checked.next + kMarginBytes;
  const std::size_t written = begin + filled_bytes(memory_of(checked) + begin, end - begin, guard_byte());
  if (written == end) return;
  char text[96];
  const Block* block = explain(memory_of(checked) + written, text, sizeof text);
  note_damage("tcm", block == nullptr ? nullptr : block->place, "write %s%s", text, block == nullptr ? "" : ", from tcm_malloc");
#endif
}

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
  if (charged > kTcmPoolBytes - in_use || nbytes > kTcmPoolBytes || !reserve_rings()) return nullptr;
  unsigned char* memory = find_room(ring(), nbytes);
  if (memory == nullptr) return nullptr;
  open_up(memory, nbytes);
  blocks.add({memory, nbytes, charged, __builtin_return_address(0)});
  in_use += charged;
  return memory;
}

void tcm_release(void* pointer) {
  for (std::size_t i = blocks.size(); i-- > 0;)
    if (blocks[i].data == pointer) return release(i);
  fail("tcm", "tcm_free of a pointer that is not a live TCM block");
}

std::int64_t tcm_room(const void* pointer) {
  const unsigned char* place = static_cast<const unsigned char*>(pointer);
  for (const Block& block : blocks)
    if (place >= block.data && place <= block.data + block.nbytes) return block.data + block.nbytes - place;
  if (!is_in_rings(pointer)) return -1;
  char text[96];
  explain(place, text, sizeof text);
  fail("tcm", "copy with a pointer %s", text);
}

void tcm_begin() {
  for (Ring& ring : rings) {
    if (!clean) close_off(memory_of(ring), ring.accessible);  // the last call failed
    ring.freed.clear();
    ring.first = ring.next;
    ring.went_round = false;
  }
  blocks.clear();
  in_use = 0;
  clean = false;
}

void tcm_end_core() {
  if (!blocks.empty()) warn_of_leaks();
  while (!blocks.empty()) release(0);
}

void tcm_end() {
  for (context.core = 0; context.core < context.core_count; ++context.core) check_guards();
  clean = !is_damaged();
}

}  // namespace neurontools

/// Write what is at an address of TCM; false for other addresses.
NEURONTOOLS_EXPORT bool neurontools_explain(const void* address, char* text, std::size_t size) {
  if (!neurontools::is_in_rings(address)) return false;
  neurontools::explain(static_cast<const unsigned char*>(address), text, size);
  return true;
}
