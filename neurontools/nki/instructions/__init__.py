"""The instructions of nki.isa (second generation): each checks its operands, computes, writes and is recorded."""

from neurontools.nki.instructions.activation import activate2, activation, activation_reduce, exponential
from neurontools.nki.instructions.elementwise import (
    dropout,
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
)
from neurontools.nki.instructions.matrix import nc_matmul, nc_matmul_mx, nc_transpose, quantize_mx
from neurontools.nki.instructions.movement import (
    core_barrier,
    dma_compute,
    dma_copy,
    dma_transpose,
    nc_stream_shuffle,
    sendrecv,
)
from neurontools.nki.instructions.random import rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from neurontools.nki.instructions.reductions import (
    bn_aggr,
    bn_stats,
    max8,
    nc_find_index8,
    nc_match_replace8,
    tensor_partition_reduce,
    tensor_reduce,
)
from neurontools.nki.instructions.registers import (
    register_alloc,
    register_load,
    register_move,
    register_store,
)
from neurontools.nki.instructions.selection import (
    affine_select,
    iota,
    local_gather,
    nc_n_gather,
    nonzero_with_count,
    range_select,
    select_reduce,
    sequence_bounds,
    topk,
)

INSTRUCTIONS = {
    function.__name__: function
    for function in (
        activate2, activation, activation_reduce, affine_select, bn_aggr, bn_stats, core_barrier, dma_compute, dma_copy,
        dma_transpose, dropout, exponential, iota, local_gather, max8, memset, nc_find_index8, nc_match_replace8, nc_matmul,
        nc_matmul_mx, nc_n_gather, nc_stream_shuffle, nc_transpose, nonzero_with_count, quantize_mx, rand2, rand_get_state,
        rand_set_state, range_select, reciprocal, register_alloc, register_load, register_move, register_store, rng,
        scalar_tensor_tensor, select_reduce, sendrecv, sequence_bounds, set_rng_seed, tensor_copy, tensor_copy_predicated,
        tensor_partition_reduce, tensor_reduce, tensor_scalar, tensor_scalar_cumulative, tensor_scalar_reduce, tensor_tensor,
        tensor_tensor_scan, topk,
    )
}  # fmt: skip
"""The instructions of nki.isa by name."""

__all__ = [
    "INSTRUCTIONS",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dma_compute",
    "dma_copy",
    "dma_transpose",
    "dropout",
    "exponential",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nonzero_with_count",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
]
