"""The names that release 2.26 documents, and what tests of later releases use besides."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from neurontools.nki.limits import document
from neurontools.nki.operators import MathOperator

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
FUNCTIONS = [
    (module, name, parameters)
    for module, functions in document()["functions_of_first"].items()
    for name, parameters in functions.items()
]
BEYOND = {"nc_matmul": ["perf_mode"], "dma_transpose": ["dge_mode"]}
"""Parameters of tests of later releases."""


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_module_offers_the_documented_names(module):
    loaded = import_module(module)
    assert [name for name in DOCUMENTED[module].split() if not hasattr(loaded, name)] == []
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert set(DOCUMENTED[module].split()) >= set(loaded.__all__)


@pytest.mark.parametrize(
    ("module", "name", "parameters"), FUNCTIONS, ids=[f"{m}.{n}" for m, n, _ in FUNCTIONS]
)
def test_a_function_has_the_documented_parameters(module, name, parameters):
    function = getattr(import_module(f"neuronxcc.nki.{module}"), name)
    names = [part.partition("=")[0].lstrip("*") for part in parameters.split(", ") if part.strip("*")]
    if isinstance(function, MathOperator):
        assert {*names[function.arity :]} == {"dtype", "mask"}
    else:
        given = [item.name for item in inspect.signature(function).parameters.values()]
        assert given == names + BEYOND.get(name, [])


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
