// Counters of the running core, in total and by place in the user's source.
#include "neurontools/counting.hpp"

#include <cstdio>
#include <cstring>

#include "neurontools/tensor_impl.hpp"
#include "list.hpp"
#include "runtime.hpp"

namespace neurontools {

namespace {

struct Place {
  const void* caller;
  Way way;
  int tensor;  // position among the arguments, -1 for a temporary, -2 for the output
  std::uint32_t core;
  std::uint64_t count;
  std::uint64_t nbytes;
  std::uint64_t largest;
  char frames[96];
};

List<Place*> places;  // allocated one by one: accessors keep pointers to their counters

int tensor_of(const TensorImpl& impl) { return impl.origin == Origin::kOutput ? -2 : impl.argument; }

Place& place_of(const void* caller, Way way, const TensorImpl& impl) {
  const int tensor = tensor_of(impl);
  for (Place* place : places)
    if (place->caller == caller && place->way == way && place->tensor == tensor && place->core == context.core)
      return *place;
  places.add(new Place{caller, way, tensor, context.core, 0, 0, 0, {}});
  Place& added = *places.back();
  if (caller != nullptr) list_places(added.frames, sizeof added.frames);
  return added;
}

void add(Place& place, std::uint64_t count, std::uint64_t nbytes, std::uint64_t largest) {
  place.count += count;
  place.nbytes += nbytes;
  if (place.largest < largest) place.largest = largest;
}

void note(const void* caller, Way way, const TensorImpl& impl, std::uint64_t count, std::uint64_t nbytes,
          std::uint64_t largest) {
  if (context.count_places && count != 0) add(place_of(caller, way, impl), count, nbytes, largest);
}

std::uint64_t pieces_of(std::uint64_t nbytes) { return (nbytes + kStreamBufferBytes - 1) / kStreamBufferBytes; }

void transfer(std::uint64_t count, std::uint64_t nbytes) {
  context.counters.transfers += count;
  context.counters.transferred_bytes += nbytes;
}

void move(const void* caller, Way way, const TensorImpl& impl) {
  if (impl.nbytes == 0) return;
  context.counters.moves += 1;
  context.counters.moved_bytes += impl.nbytes;
  note(caller, way, impl, 1, impl.nbytes, impl.nbytes);
}

}  // namespace

__attribute__((noinline)) void* open_stream(const TensorImpl& impl, bool buffered) {
  if (!context.count_places) return nullptr;
  return &place_of(__builtin_return_address(0), buffered ? Way::kStream : Way::kUnbuffered, impl);
}

__attribute__((noinline)) std::uint64_t* count_elements(const TensorImpl& impl, std::uint64_t assumed) {
  if (!context.count_places) {
    context.counters.element_accesses += assumed;
    return &context.counters.element_accesses;
  }
  Place& place = place_of(__builtin_return_address(0), Way::kElement, impl);
  place.count += assumed;
  place.largest = c10::elementSize(impl.dtype);
  return &place.count;
}

__attribute__((noinline)) void count_transfer(const TensorImpl& impl, std::uint64_t nbytes) {
  transfer(1, nbytes);
  note(__builtin_return_address(0), Way::kTcm, impl, 1, nbytes, nbytes);
}

void count_stream(const TensorImpl& impl, std::uint64_t elements, bool buffered, void* place) {
  const std::uint64_t size = c10::elementSize(impl.dtype);
  const std::uint64_t nbytes = elements * size;
  if (buffered)
    transfer(pieces_of(nbytes), nbytes);
  else
    context.counters.element_accesses += elements;
  if (place == nullptr) return;
  const std::uint64_t piece = nbytes < kStreamBufferBytes ? nbytes : kStreamBufferBytes;
  const std::uint64_t largest = buffered ? piece : size;
  add(*static_cast<Place*>(place), buffered ? pieces_of(nbytes) : elements, nbytes, largest);
}

__attribute__((noinline)) void count_function(const TensorImpl& impl) {
  transfer(pieces_of(impl.nbytes), impl.nbytes);
  note(__builtin_return_address(0), Way::kFunction, impl, pieces_of(impl.nbytes), impl.nbytes, impl.nbytes);
}

void count_compute(const TensorImpl& result) { context.counters.computed_bytes += result.nbytes; }

__attribute__((noinline)) void count_move(const TensorImpl& impl) {
  move(__builtin_return_address(0), Way::kMove, impl);
}

void count_returned(const TensorImpl& impl) { move(nullptr, Way::kReturned, impl); }

void places_begin() {
  for (Place* place : places) delete place;
  places.clear();
}

void places_end_core() {
  for (Place* place : places) {
    if (place->core != context.core || place->way != Way::kElement) continue;
    place->nbytes = place->count * place->largest;
    context.counters.element_accesses += place->count;
  }
}

void list_counts(std::size_t first, char* text, std::size_t size) {
  std::size_t used = 0;
  text[0] = '\0';
  for (std::size_t i = first; i < places.size(); ++i) {
    const Place& place = *places[i];
    const std::size_t room = size - used;
    const int needed = std::snprintf(
        text + used, room, "%u\t%u\t%d\t%llu\t%llu\t%llu\t%s\n", static_cast<unsigned>(place.way), place.core,
        place.tensor, static_cast<unsigned long long>(place.count), static_cast<unsigned long long>(place.nbytes),
        static_cast<unsigned long long>(place.largest), place.frames);
    if (static_cast<std::size_t>(needed) >= room) {
      text[used] = '\0';
      return;
    }
    used += static_cast<std::size_t>(needed);
  }
}

}  // namespace neurontools
