// Failing, warning, and the check that the cores together wrote the whole output, each byte once.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "neurontools/context.hpp"
#include "neurontools/error.hpp"
#include "neurontools/tensor_impl.hpp"
#include "runtime.hpp"

namespace neurontools {

abi::Reply* reply = nullptr;

namespace {

struct Span {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t core;
};

std::vector<Span> spans;

}  // namespace

void fail(const char* kind, const char* format, ...) {
  char message[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof message, format, values);
  va_end(values);
  throw c10::Error(kind, message);
}

void warn(const char* format, ...) {
  if (reply == nullptr) return;
  char message[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof message, format, values);
  va_end(values);
  if (std::strstr(reply->warnings, message) != nullptr) return;
  const std::size_t used = std::strlen(reply->warnings);
  std::snprintf(reply->warnings + used, sizeof reply->warnings - used, "%s\n", message);
}

void check_coherence(const TensorImpl& impl, bool writes) {
  using Policy = torch::CoherencyEnforcer::Policy;
  if (!impl.written_by_stream && !writes) return;
  if (impl.policy == Policy::COHERENT)
    fail("coherence", "element access while a stream accessor of the same tensor is active; close() it first, or set "
                      "another coherence policy");
  if (impl.policy == Policy::INCOHERENT_VERBOSE)
    warn("element access while a stream accessor of the same tensor is active: the values may be stale");
}

void coverage_begin() { spans.clear(); }

void note_output_write(std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return;
  if (!spans.empty() && spans.back().core == context.core && spans.back().end == begin)
    spans.back().end = end;
  else
    spans.push_back({begin, end, context.core});
}

void coverage_check(std::uint64_t output_bytes) {
  if (spans.empty() && !context.multicore) return;
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::uint64_t covered = 0;
  std::uint64_t missing = 0;
  std::uint32_t last_core = 0;
  for (const Span& span : spans) {
    if (span.begin < covered && span.core != last_core)
      fail("overlap", "cores %u and %u both wrote output byte %llu", std::min(last_core, span.core),
           std::max(last_core, span.core), static_cast<unsigned long long>(span.begin));
    if (span.begin > covered) missing += span.begin - covered;
    if (span.end > covered) {
      covered = span.end;
      last_core = span.core;
    }
  }
  missing += output_bytes > covered ? output_bytes - covered : 0;
  if (missing != 0 && context.output_taken && !context.output_written_untracked)
    fail("coverage", "%llu of %llu output bytes were never written", static_cast<unsigned long long>(missing),
         static_cast<unsigned long long>(output_bytes));
}

}  // namespace neurontools
