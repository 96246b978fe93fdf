// What happens when a stream accessor and an element accessor may disagree about a tensor's contents.
#pragma once

namespace torch {

struct CoherencyEnforcer {
  enum class Policy { COHERENT, INCOHERENT_VERBOSE, INCOHERENT_QUIET };
};

}  // namespace torch
