// Code for torch also uses `at::`, which has all public names of `torch::`.
#pragma once

#include "torch/torch.h"

namespace at {
using namespace ::torch;
}
