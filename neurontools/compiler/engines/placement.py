"""Which engine of a NeuronCore runs an operator, and under which opcode (names from the AWS Neuron documentation, neuron-profile user guide)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from neurontools.compiler.graph import reads

if TYPE_CHECKING:
    from neurontools.compiler.graph import Node


class Engine(StrEnum):
    """An engine of a NeuronCore, or the DMA engines that serve it."""

    TENSOR = "Tensor"
    VECTOR = "Vector"
    SCALAR = "Scalar"
    GPSIMD = "GpSimd"
    SYNC = "Sync"
    DMA = "DMA"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operator runs and what its instruction is called."""

    engine: Engine
    opcode: str


CUSTOM_OPCODE = "CUSTOM_OP"
COLLECTIVE_OPCODE = "PSEUDO_TRIGGER_COLLECTIVE"

_CUSTOM = Placement(Engine.GPSIMD, CUSTOM_OPCODE)
_COLLECTIVE = Placement(Engine.DMA, COLLECTIVE_OPCODE)
_MATMUL = Placement(Engine.TENSOR, "MATMUL")
_ACTIVATE = Placement(Engine.SCALAR, "ACTIVATE")
_TRANSFER = Placement(Engine.DMA, "DMA_DIRECT2D")
_REDUCE = Placement(Engine.VECTOR, "REDUCE")
_MEMSET = Placement(Engine.VECTOR, "MEMSET")
_TENSOR_TENSOR = Placement(Engine.VECTOR, "TENSOR_TENSOR")
_SCALAR_OPERAND = Placement(Engine.VECTOR, "SCALAR")

_OWN_NAMESPACES = frozenset({"aten", "prims", "neurontools", "c10d", "_c10d_functional"})
_COLLECTIVE_NAMESPACES = frozenset({"neurontools", "c10d", "_c10d_functional"})
_COLLECTIVE_WORDS = [
    "all_reduce",
    "allreduce",
    "gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "permute",
    "send",
    "recv",
    "barrier",
]

# Names are those of the forward, out-of-place, single-tensor form: see `family`.
_FAMILIES: tuple[tuple[Placement, str], ...] = (
    (
        _MATMUL,
        """
        mm addmm bmm baddbmm addbmm mv addmv dot vdot linear matmul convolution convolution_overrideable
        _convolution conv1d conv2d conv3d conv_transpose2d _int_mm _scaled_mm _addmm_activation mkldnn_convolution
        """,
    ),
    (
        _ACTIVATE,
        """
        exp exp2 expm1 log log2 log10 log1p gelu tanh sigmoid log_sigmoid log_sigmoid_forward silu mish softplus
        elu celu selu hardswish hardsigmoid hardtanh leaky_relu relu relu6 prelu _prelu_kernel _softmax softmax
        _log_softmax log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax erf erfc erfinv
        sqrt rsqrt sin cos tan asin acos atan sinh cosh asinh acosh atanh glu logit lgamma digamma
        _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
        """,
    ),
    (
        Placement(Engine.GPSIMD, "GATHER"),
        """
        gather index index_select embedding _embedding_bag take take_along_dim masked_select sort argsort topk
        kthvalue msort unique _unique2 multinomial randperm bincount searchsorted bucketize grid_sampler_2d
        upsample_nearest2d upsample_bilinear2d cumsum cumprod logcumsumexp
        """,
    ),
    (
        Placement(Engine.GPSIMD, "SCATTER"),
        """
        scatter scatter_add scatter_reduce index_put _index_put_impl index_add index_copy index_fill put
        masked_scatter embedding_dense histc
        """,
    ),
    (Placement(Engine.GPSIMD, "NONZERO_WITH_COUNT"), "nonzero nonzero_static argwhere"),
    (Placement(Engine.GPSIMD, "IOTA"), "arange range linspace logspace tril triu tril_indices triu_indices"),
    (
        _TRANSFER,
        """
        copy _copy_from _copy_from_and_resize _to_copy to clone contiguous cat stack _local_scalar_dense
        constant_pad_nd reflection_pad2d replication_pad2d repeat roll flip rot90 slice_scatter select_scatter
        diagonal_scatter as_strided_scatter slice_backward select_backward diagonal_backward unfold_backward
        get_rng_state set_rng_state im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle convert_element_type repeat_interleave
        """,
    ),
    (
        _REDUCE,
        """
        sum mean nansum amax amin aminmax max min argmax argmin any all prod norm linalg_vector_norm var std
        var_mean std_mean logsumexp count_nonzero median native_layer_norm native_batch_norm
        _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update native_group_norm
        _fused_rms_norm nll_loss_forward nll_loss2d_forward mse_loss l1_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits kl_div max_pool2d_with_indices avg_pool2d
        _adaptive_avg_pool2d adaptive_max_pool2d equal
        """,
    ),
    (
        _MEMSET,
        "zero fill zeros ones full eye scalar_tensor zeros_like ones_like full_like new_zeros new_ones new_full",
    ),
)
_PLACES = {name: placement for placement, names in _FAMILIES for name in names.split()}

# These change what a tensor looks like, not what memory holds: no instruction comes of them.
_VIEWS = """
view reshape _reshape_alias _unsafe_view as_strided alias detach t transpose permute expand squeeze
unsqueeze narrow slice select unfold flatten unflatten view_as split split_with_sizes chunk unbind
diagonal empty empty_strided empty_like new_empty new_empty_strided lift_fresh movedim view_as_real
view_as_complex
"""
_NO_INSTRUCTION = frozenset(_VIEWS.split())


@cache
def split_name(op: str) -> tuple[str, str]:
    """Return the namespace and the name of an operator: `aten.add_.Tensor` gives `aten` and `add_`."""
    namespace, _, rest = op.replace("::", ".").partition(".")
    return namespace, rest.partition(".")[0]


@cache
def family(op: str) -> str:
    """Return the name that stands for an operator and its in-place, list and backward forms."""
    name = split_name(op)[1].removeprefix("_foreach_")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if name in _PLACES or name in _NO_INSTRUCTION:
        return name
    for suffix in ("_backward", "_copy", "_backward_overrideable"):
        base = name.removesuffix(suffix)
        if base != name and (base in _PLACES or suffix == "_copy"):
            return base if base in _PLACES else "copy"
    return name


def is_custom(op: str) -> bool:
    """Return whether an operator comes from a user's library."""
    return split_name(op)[0] not in _OWN_NAMESPACES


@cache
def is_collective(op: str) -> bool:
    """Return whether an operator exchanges data with other cores."""
    namespace, name = split_name(op)
    return namespace in _COLLECTIVE_NAMESPACES and any(word in name for word in _COLLECTIVE_WORDS)


def has_instruction(node: Node) -> bool:
    """Return whether a call becomes an instruction; views and uninitialised buffers do not."""
    return is_custom(node.op) or family(node.op) not in _NO_INSTRUCTION


def is_attention(op: str) -> bool:
    """Return whether an operator is a fused attention kernel or its backward."""
    name = split_name(op)[1]
    return "attention" in name and ("scaled_dot_product" in name or "flash" in name or "efficient" in name)


def place(node: Node, *, has_gpsimd: bool = True) -> Placement:
    """Return the engine and the opcode of an operator call.

    Args:
        node: the call.
        has_gpsimd: whether the core has a GpSimd engine; without one (NeuronCore-v1) its work goes to the Vector engine.
    """
    placement = _place(node)
    if placement.engine is Engine.GPSIMD and not has_gpsimd:
        return Placement(Engine.VECTOR, placement.opcode)
    return placement


def _place(node: Node) -> Placement:
    if is_custom(node.op):
        return _CUSTOM
    if is_collective(node.op):
        return _COLLECTIVE
    if is_attention(node.op):
        return _MATMUL
    known = _PLACES.get(family(node.op))
    if known is not None:
        return known
    operands = len(reads(node))
    if operands == 0:
        return _MEMSET
    return _SCALAR_OPERAND if operands == 1 else _TENSOR_TENSOR
