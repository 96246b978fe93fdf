// Policies for a stream accessor and an element accessor of the same tensor.
#pragma once

namespace torch {

struct CoherencyEnforcer {
  enum class Policy { COHERENT, INCOHERENT_VERBOSE, INCOHERENT_QUIET };
};

}  // namespace torch
