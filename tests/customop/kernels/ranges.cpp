// Maps more ranges of a file than the worker keeps, and prints how many read and write what they should.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <initializer_list>

#include "worker.hpp"

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kRanges = 9000;

bool holds(std::uint64_t number, bool constant) {
  const neurontools::abi::Place place{number * kPage, kPage, constant ? 1u : 0u};
  worker::forget_ranges();
  if (!worker::map_slot(0, place)) return false;
  const worker::Slot& slot = worker::slots[0];
  if (constant) return slot.writable == nullptr && slot.constant[0] == (number & 0xff);
  slot.writable[0] = static_cast<unsigned char>(number);
  return slot.constant[0] == (number & 0xff) && slot.nbytes == kPage;
}

int main() {
  const int file = memfd_create("memory", 0);
  if (dup2(file, worker::kMemoryFd) < 0 || ftruncate(worker::kMemoryFd, kRanges * kPage) != 0) return 1;
  std::uint64_t right = 0;
  for (const bool constant : {false, true})
    for (std::uint64_t number = 0; number < kRanges; ++number) right += holds(number, constant) ? 1 : 0;
  unsigned char* first = worker::slots[0].constant;
  const bool same = holds(kRanges - 1, true) && worker::slots[0].constant == first;
  const bool refused = !worker::map_slot(0, {0, 0, 0});
  std::printf("%llu right, same %d, empty refused %d\n", static_cast<unsigned long long>(right), same, refused);
}
