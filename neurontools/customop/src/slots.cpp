// Device memory: ranges of its file are mapped between guard pages on demand, and stay mapped for the next call. Tensors
// of the program are mapped read-only; memory that a kernel may write has a second mapping.
#include <sys/mman.h>

#include "worker.hpp"

namespace worker {

Slot slots[neurontools::abi::kSlots];

namespace {

constexpr std::size_t kMaxRanges = 4096;  // far below the limit of mappings of a process
constexpr int kTableBits = 13;            // at most half of the table is used
constexpr std::size_t kTableSize = std::size_t{1} << kTableBits;

struct Key {
  std::uint64_t offset;  // in the file
  std::uint64_t nbytes;  // 0: an empty entry
};

struct Range {
  Key key;
  unsigned char* writable;
  unsigned char* constant;
};

static_assert(2 * kMaxRanges <= kTableSize, "a search must find an empty place");

Range ranges[kTableSize];  // unused pages take no memory
std::size_t range_count = 0;

Range& range_of(const Key& key) {
  const std::uint64_t mixed = (key.offset + 31 * key.nbytes) * 0x9e3779b97f4a7c15u;
  for (std::size_t i = mixed >> (64 - kTableBits);; i = (i + 1) % kTableSize) {
    Range& range = ranges[i];
    if (range.key.offset == key.offset && range.key.nbytes == key.nbytes) return range;
    if (range.key.nbytes != 0) continue;
    range.key = key;
    ++range_count;
    return range;
  }
}

unsigned char* map_between_guards(const Key& key, int protection) {
  const std::size_t whole = key.nbytes + 2 * kGuardBytes;
  void* reserved = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  unsigned char* begin = static_cast<unsigned char*>(reserved) + kGuardBytes;
  if (mmap(begin, key.nbytes, protection, MAP_SHARED | MAP_FIXED, kMemoryFd, static_cast<off_t>(key.offset)) == MAP_FAILED) {
    munmap(reserved, whole);
    return nullptr;
  }
  return begin;
}

void unmap(unsigned char* begin, std::size_t nbytes) {
  if (begin != nullptr) munmap(begin - kGuardBytes, nbytes + 2 * kGuardBytes);
}

}  // namespace

bool map_slot(int index, const neurontools::abi::Place& place) {
  const Key key{place.offset, place.nbytes};
  if (key.nbytes == 0) return false;
  Range& range = range_of(key);
  if (range.constant == nullptr) range.constant = map_between_guards(key, PROT_READ);
  if (range.writable == nullptr && place.constant == 0) range.writable = map_between_guards(key, PROT_READ | PROT_WRITE);
  slots[index] = {place.constant != 0 ? nullptr : range.writable, range.constant, place.nbytes};
  return range.constant != nullptr && (place.constant != 0 || range.writable != nullptr);
}

void forget_ranges() {
  if (range_count <= kMaxRanges) return;
  for (Range& range : ranges) {
    unmap(range.writable, range.key.nbytes);
    unmap(range.constant, range.key.nbytes);
    range = {};
  }
  range_count = 0;
}

}  // namespace worker
