// The machine's memory: ranges of its file are mapped between guards when a call needs them, and stay mapped for the
// next one. A tensor of the program is mapped read-only; where a kernel may write there is a second mapping.
#include <sys/mman.h>

#include <map>
#include <utility>

#include "worker.hpp"

namespace worker {

Slot slots[neurontools::abi::kSlots];

namespace {

constexpr std::size_t kMaxRanges = 4096;  // far fewer mappings than a process may have

struct Range {
  unsigned char* writable = nullptr;
  unsigned char* constant = nullptr;
};

using Key = std::pair<std::uint64_t, std::uint64_t>;  // offset and size in the file

std::map<Key, Range>& ranges() {
  static std::map<Key, Range> all;
  return all;
}

unsigned char* map_between_guards(const Key& key, int protection) {
  const std::size_t whole = key.second + 2 * kGuardBytes;
  void* reserved = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  unsigned char* begin = static_cast<unsigned char*>(reserved) + kGuardBytes;
  if (mmap(begin, key.second, protection, MAP_SHARED | MAP_FIXED, kMemoryFd, static_cast<off_t>(key.first)) == MAP_FAILED) {
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
  Range& range = ranges()[key];
  if (range.constant == nullptr) range.constant = map_between_guards(key, PROT_READ);
  if (range.writable == nullptr && place.constant == 0) range.writable = map_between_guards(key, PROT_READ | PROT_WRITE);
  slots[index] = {place.constant != 0 ? nullptr : range.writable, range.constant, place.nbytes};
  return range.constant != nullptr && (place.constant != 0 || range.writable != nullptr);
}

void forget_ranges() {
  if (ranges().size() <= kMaxRanges) return;
  for (const auto& entry : ranges()) {
    unmap(entry.second.writable, entry.first.second);
    unmap(entry.second.constant, entry.first.second);
  }
  ranges().clear();
}

}  // namespace worker
