"""The names that release 2.26 documents, and one that tests of later releases use."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

DOCUMENTED = {
    "neuronxcc.nki": "baremetal benchmark jit profile simulate_kernel tensor trace compiler isa language nccl typing",
    "neuronxcc.nki.language": """
        load store load_transpose2d atomic_rmw copy broadcast_to ndarray empty_like zeros zeros_like ones full rand random_seed
        shared_constant shared_identity_matrix add subtract multiply divide power maximum minimum max min mean var sum prod all
        abs negative sign trunc floor ceil mod fmod exp log cos sin tan tanh arctan sqrt rsqrt sigmoid relu gelu gelu_dx
        gelu_apprx_tanh gelu_apprx_sigmoid silu silu_dx erf erf_dx softplus mish square softmax rms_norm dropout matmul transpose
        reciprocal bitwise_and bitwise_or bitwise_xor invert left_shift right_shift equal not_equal greater greater_equal less
        less_equal logical_and logical_or logical_xor logical_not ds arange mgrid expand_dims where gather_flattened all_reduce
        static_range affine_range sequential_range par_dim psum sbuf hbm private_hbm shared_hbm program_id num_programs
        program_ndim spmd_dim nc device_print loop_reduce static_cast finfo tfloat32 bfloat16 float8_e4m3 float8_e5m2 float16
        float32 int8 int16 int32 uint8 uint16 uint32 bool_ tile_size fp32 bfp16
    """,
    "neuronxcc.nki.isa": """
        nc_matmul nc_transpose activation activation_reduce tensor_reduce tensor_partition_reduce tensor_tensor tensor_tensor_scan
        scalar_tensor_tensor tensor_scalar tensor_scalar_cumulative tensor_scalar_reduce tensor_copy
        tensor_copy_dynamic_src tensor_copy_dynamic_dst tensor_copy_predicated reciprocal iota dropout affine_select range_select select_reduce sequence_bounds memset bn_stats
        bn_aggr local_gather dma_copy dma_transpose max8 nc_find_index8 nc_match_replace8 nc_stream_shuffle engine reduce_cmd
        dge_mode oob_mode nc_version get_nc_version tensor_engine vector_engine scalar_engine gpsimd_engine dma_engine
        unknown_engine fp32
    """,
    "neuronxcc.nki.isa.constants": "dge_mode engine nc_version oob_mode reduce_cmd",
    "neuronxcc.nki.compiler": """
        sbuf psum skip_middle_end_transformations enable_stack_allocator force_auto_alloc multi_buffer no_reorder allocation_scope
    """,
    "neuronxcc.nki.typing": "tensor mutable_tensor scalar",
    "neuronxcc.nki.language.constants": "sizeinbytes",
}
PARAMETERS = {
    "activation": "op data bias scale reduce_op reduce_res reduce_cmd mask dtype",
    "affine_select": "pred on_true_tile on_false_value mask dtype",
    "dma_copy": "dst src mask dst_rmw_op oob_mode dge_mode",
    "iota": "expr dtype mask",
    "local_gather": "src_buffer index num_elem_per_idx num_valid_indices mask",
    "memset": "shape value dtype mask engine",
    "nc_match_replace8": "data vals imm dst_idx mask dtype",
    "nc_matmul": "stationary moving is_stationary_onezero is_moving_onezero is_transpose tile_position tile_size mask perf_mode",
    "nc_stream_shuffle": "src dst shuffle_mask dtype mask",
    "nc_transpose": "data mask dtype engine",
    "range_select": """
        on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd reduce_res reduce_op range_start on_false_value mask dtype
    """,
    "scalar_tensor_tensor": "data op0 operand0 op1 operand1 reverse0 reverse1 dtype mask",
    "select_reduce": "dst predicate on_true on_false reduce_res reduce_cmd reduce_op reverse_pred mask dtype",
    "tensor_copy_predicated": "src dst predicate reverse_pred mask dtype",
    "tensor_reduce": "op data axis mask dtype negate keepdims",
    "tensor_scalar": "data op0 operand0 reverse0 op1 operand1 reverse1 dtype mask engine",
    "tensor_scalar_cumulative": "src dst op0 op1 imm0 imm1 reduce_cmd mask",
    "tensor_scalar_reduce": "data op0 operand0 reduce_op reduce_res reverse0 dtype mask",
    "tensor_tensor": "data1 data2 op dtype mask engine",
    "tensor_tensor_scan": "data0 data1 initial op0 op1 reverse0 reverse1 dtype mask",
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_module_offers_the_documented_names(module):
    loaded = import_module(module)
    assert [name for name in DOCUMENTED[module].split() if not hasattr(loaded, name)] == []
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert set(DOCUMENTED[module].split()) >= set(loaded.__all__)


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_instruction_has_the_documented_parameters(name):
    signature = inspect.signature(getattr(import_module("neuronxcc.nki.isa"), name))
    given = [item.name for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    assert given == PARAMETERS[name].split()


def test_a_name_that_is_missing_names_the_nearest():
    with pytest.raises(AttributeError, match="not simulated; nearest supported name: nc_matmul"):
        _ = import_module("neuronxcc.nki.isa").nc_matmull
    with pytest.raises(AttributeError, match="not simulated"):
        _ = import_module("neuronxcc.nki.nccl").all_reduce


def test_sizes_of_the_device():
    sizes = import_module("neuronxcc.nki.language").tile_size
    assert (sizes.pmax, sizes.psum_fmax, sizes.gemm_stationary_fmax, sizes.gemm_moving_fmax) == (
        128,
        512,
        128,
        512,
    )
    assert import_module("neuronxcc.nki.language.constants").sizeinbytes("float16") == 2
