// Errors, warnings, and the check that the cores together wrote every byte of the output exactly once.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "neurontools/context.hpp"
#include "neurontools/error.hpp"
#include "neurontools/tensor_impl.hpp"
#include "list.hpp"
#include "runtime.hpp"

namespace neurontools {

abi::Reply* reply = nullptr;
const void* failure_place = nullptr;

namespace {

struct Span {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t core;
  const void* place;
};

List<Span> spans;

struct Damage {
  const char* kind = nullptr;
  const void* place;
  std::uint32_t core;
  char message[160];
} damage;

int compare_begins(const void* left, const void* right) {
  const std::uint64_t a = static_cast<const Span*>(left)->begin;
  const std::uint64_t b = static_cast<const Span*>(right)->begin;
  return a < b ? -1 : a > b ? 1 : 0;
}

void blame(const Span& span) {
  failure_place = span.place;
  reply->core = static_cast<std::int32_t>(span.core);
}

}  // namespace

void fail(const char* kind, const char* format, ...) {
  char message[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof message, format, values);
  va_end(values);
#if defined(NEURONTOOLS_NO_WRAP)
  capture_frames(1);  // else the frames at the throw are kept
#endif
  throw c10::Error(kind, message);
}

void check_failed(const char* condition, const std::string& message) {
  if (message.empty()) fail("check", "expected %s to be true, but it is false", condition);
  fail("check", "%s", message.c_str());
}

void warn(const char* format, ...) {
  if (reply == nullptr) return;
  char message[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof message, format, values);
  va_end(values);
  if (std::strstr(reply->warnings, message) != nullptr) return;  // finding places is slow
  char places[160];
  list_places(places, sizeof places);
  warn_at(places, message);
}

void warn_at(const char* places, const char* message) {
  if (std::strstr(reply->warnings, message) != nullptr) return;
  const std::size_t used = std::strlen(reply->warnings);
  const std::size_t room = sizeof reply->warnings - used;
  const int needed =
      std::snprintf(reply->warnings + used, room, "%s\t%u\t%s\n", message, context.core, places);
  if (static_cast<std::size_t>(needed) >= room) reply->warnings[used] = '\0';  // no partial lines
}

unsigned char fresh_byte() {
  static const char* const wanted = std::getenv("MALLOC_PERTURB_");
  return static_cast<unsigned char>(wanted == nullptr ? 0xa5 : std::atoi(wanted));
}

unsigned char guard_byte() { return static_cast<unsigned char>(~fresh_byte()); }

std::size_t filled_bytes(const unsigned char* begin, std::size_t nbytes, unsigned char byte) {
  if (nbytes != 0 && begin[0] == byte && std::memcmp(begin, begin + 1, nbytes - 1) == 0) return nbytes;
  std::size_t filled = 0;
  while (filled < nbytes && begin[filled] == byte) ++filled;
  return filled;
}

void note_damage(const char* kind, const void* place, const char* format, ...) {
  if (is_damaged()) return;  // the first one may have caused the others
  damage.kind = kind;
  damage.place = place;
  damage.core = context.core;
  va_list values;
  va_start(values, format);
  std::vsnprintf(damage.message, sizeof damage.message, format, values);
  va_end(values);
}

bool is_damaged() { return damage.kind != nullptr; }

void damage_begin() { damage.kind = nullptr; }

void damage_check() {
  if (!is_damaged()) return;
  failure_place = damage.place;
  reply->core = static_cast<std::int32_t>(damage.core);
  fail(damage.kind, "%s", damage.message);
}

void check_coherence(const TensorImpl& impl, bool writes) {
  using Policy = torch::CoherencyEnforcer::Policy;
  if (!impl.written_by_stream && !writes) return;
  if (impl.policy == Policy::COHERENT)
    fail("coherence", "element access while a stream accessor of the same tensor is active; close() it first, or set "
                      "another coherence policy");
  if (impl.policy == Policy::INCOHERENT_VERBOSE)
    warn("coherence: element access while a stream accessor of the same tensor is active: the values may be stale");
}

void coverage_begin() { spans.clear(); }

__attribute__((noinline)) void note_output_write(std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return;
  if (!spans.empty() && spans.back().core == context.core && spans.back().end == begin)
    spans.back().end = end;
  else
    spans.add({begin, end, context.core, __builtin_return_address(0)});
}

void coverage_check(std::uint64_t output_bytes, std::uint64_t element_bytes) {
  if (spans.empty() && !context.multicore) return;
  if (!spans.empty()) std::qsort(spans.begin(), spans.size(), sizeof(Span), &compare_begins);
  std::uint64_t covered = 0;
  std::uint64_t missing = 0;
  std::uint64_t first_missing = 0;
  const Span* last = nullptr;
  const Span* before_gap = nullptr;
  const auto note_gap = [&](std::uint64_t end) {
    if (end <= covered) return;
    if (missing == 0) {
      first_missing = covered;
      before_gap = last;
    }
    missing += end - covered;
  };
  for (const Span& span : spans) {
    if (last != nullptr && span.begin < covered && span.core != last->core) {
      const bool ascending = last->core < span.core;
      blame(span);
      fail("overlap", "cores %u and %u both wrote output byte %llu", ascending ? last->core : span.core,
           ascending ? span.core : last->core, static_cast<unsigned long long>(span.begin));
    }
    note_gap(span.begin);
    if (span.end > covered) {
      covered = span.end;
      last = &span;
    }
  }
  note_gap(output_bytes);
  if (missing == 0 || !context.output_taken || context.output_written_untracked) return;
  if (before_gap != nullptr) blame(*before_gap);
  fail("coverage", "%llu of %llu output bytes were never written, from element %llu on",
       static_cast<unsigned long long>(missing), static_cast<unsigned long long>(output_bytes),
       static_cast<unsigned long long>(element_bytes == 0 ? 0 : first_missing / element_bytes));
}

}  // namespace neurontools
