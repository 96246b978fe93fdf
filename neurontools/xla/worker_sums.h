// Sums of the tensors of several workers, for small all_reduces: one pass over memory where torch's operators take three.

#pragma once

#include <cstdint>
#include <vector>

namespace sums {

typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);

// Adds vectors in their order, multiplies the sums and writes them one after the other into tensors.
void add_and_scale(
    float* const* tensors, const int64_t* counts, int64_t tensor_count, const float* const* vectors, int64_t vector_count,
    float scale) {
  std::vector<const float*> sources(vectors, vectors + vector_count);
  Lanes scales;
  for (int64_t lane = 0; lane < kLanes; ++lane) scales[lane] = scale;
  for (int64_t tensor = 0; tensor < tensor_count; ++tensor) {
    float* target = tensors[tensor];
    const int64_t count = counts[tensor];
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Lanes sum = *reinterpret_cast<const Lanes*>(sources[0] + i);
      for (int64_t other = 1; other < vector_count; ++other) sum += *reinterpret_cast<const Lanes*>(sources[other] + i);
      *reinterpret_cast<Lanes*>(target + i) = sum * scales;
    }
    for (; i < count; ++i) {
      float sum = sources[0][i];
      for (int64_t other = 1; other < vector_count; ++other) sum += sources[other][i];
      target[i] = sum * scale;
    }
    for (const float*& source : sources) source += count;
  }
}

}  // namespace sums
