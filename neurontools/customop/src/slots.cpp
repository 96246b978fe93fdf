// Tensor slots: each argument has a range of the arena file, mapped twice (one mapping is read-only), between guards.
#include <sys/mman.h>

#include "worker.hpp"

namespace worker {

Slot slots[neurontools::abi::kSlots];

namespace {

unsigned char* map_between_guards(int index, std::size_t nbytes, int protection) {
  const std::size_t whole = nbytes + 2 * kGuardBytes;
  void* reserved = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  unsigned char* begin = static_cast<unsigned char*>(reserved) + kGuardBytes;
  const off_t offset = static_cast<off_t>(kSlotStride * static_cast<std::uint64_t>(index));
  if (mmap(begin, nbytes, protection, MAP_SHARED | MAP_FIXED, kArenaFd, offset) == MAP_FAILED) {
    munmap(reserved, whole);
    return nullptr;
  }
  return begin;
}

void unmap(unsigned char* begin, std::size_t nbytes) {
  if (begin != nullptr) munmap(begin - kGuardBytes, nbytes + 2 * kGuardBytes);
}

}  // namespace

bool map_slot(int index, std::size_t nbytes) {
  Slot& slot = slots[index];
  if (slot.nbytes == nbytes && slot.writable != nullptr) return true;
  unmap(slot.writable, slot.nbytes);
  unmap(slot.constant, slot.nbytes);
  slot.writable = map_between_guards(index, nbytes, PROT_READ | PROT_WRITE);
  slot.constant = map_between_guards(index, nbytes, PROT_READ);
  slot.nbytes = nbytes;
  return slot.writable != nullptr && slot.constant != nullptr;
}

}  // namespace worker
