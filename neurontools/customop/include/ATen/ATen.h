// Upstream code also says `at::`; every public name of `torch::` is there too.
#pragma once

#include "torch/torch.h"

namespace at {
using namespace ::torch;
}
