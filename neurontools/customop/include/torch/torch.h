// The part of the torch C++ API that a GPSIMD kernel and its shape function may use.
#pragma once

#include "neurontools/accessor.hpp"
#include "neurontools/array_ref.hpp"
#include "neurontools/bitwise_ops.hpp"
#include "neurontools/arithmetic_ops.hpp"
#include "neurontools/coherence.hpp"
#include "neurontools/dtype.hpp"
#include "neurontools/error.hpp"
#include "neurontools/factories.hpp"
#include "neurontools/options.hpp"
#include "neurontools/scalar.hpp"
#include "neurontools/stream.hpp"
#include "neurontools/tcm.hpp"
#include "neurontools/tensor.hpp"
#include "neurontools/unary_ops.hpp"
