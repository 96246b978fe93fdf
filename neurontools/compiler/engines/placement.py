"""The engines of a NeuronCore (names from the AWS Neuron documentation, neuron-profile user guide), and where operators come from."""

from __future__ import annotations

from enum import StrEnum
from functools import cache


class Engine(StrEnum):
    """An engine of a NeuronCore, or the DMA engines and the CC-cores that serve it."""

    TENSOR = "Tensor"
    VECTOR = "Vector"
    SCALAR = "Scalar"
    GPSIMD = "GpSimd"
    SYNC = "Sync"
    DMA = "DMA"
    CC = "CC-cores"


CUSTOM_OPCODE = "CUSTOM_OP"
COLLECTIVE_OPCODE = "PSEUDO_TRIGGER_COLLECTIVE"

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


@cache
def split_name(op: str) -> tuple[str, str]:
    """Return the namespace and the name of an operator: `aten.add_.Tensor` gives `aten` and `add_`."""
    namespace, _, rest = op.replace("::", ".").partition(".")
    return namespace, rest.partition(".")[0]


@cache
def is_custom(op: str) -> bool:
    """Return whether an operator comes from a user's library."""
    return split_name(op)[0] not in _OWN_NAMESPACES


@cache
def is_collective(op: str) -> bool:
    """Return whether an operator exchanges data with other cores."""
    namespace, name = split_name(op)
    return namespace in _COLLECTIVE_NAMESPACES and any(word in name for word in _COLLECTIVE_WORDS)


def is_attention(op: str) -> bool:
    """Return whether an operator is a fused attention kernel or its backward."""
    name = split_name(op)[1]
    return "attention" in name and ("scaled_dot_product" in name or "flash" in name or "efficient" in name)
