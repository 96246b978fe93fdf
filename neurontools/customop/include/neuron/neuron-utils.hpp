// Functions of the GPSIMD core that runs the kernel.
#pragma once

#include <cstdint>

#include "neurontools/context.hpp"
#include "torch/torch.h"

/// Index of this core, in [0, get_cpu_count()).
inline std::uint32_t get_cpu_id() { return neurontools::context.core; }

/// Number of cores that run the kernel: 8 in multicore mode, 1 otherwise.
inline std::uint32_t get_cpu_count() { return neurontools::context.core_count; }

/// The operator's output; after this call the return value of the kernel is ignored.
inline torch::Tensor get_dst_tensor() { return neurontools::take_output(); }
