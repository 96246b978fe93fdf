"""Sizes of results before they are computed: a tensor that fits no device fails before this computer allocates it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from neurontools.base.interrupts import is_of_handler
from neurontools.base.units import format_size
from neurontools.xla.memory import HostMemoryError
from neurontools.xla.operators import Kind, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.xla.memory import MemoryAccount

_ELEMENT_BYTES = 8
_ALLOCATOR = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")


def may_be_larger(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], nbytes: int) -> bool:
    """Return whether a call's result may be larger than `nbytes`, by a rough and quick upper bound.

    The bound is the product of all different dimensions of the arguments and of the sizes that they name.
    """
    if operator.returns_parameter >= 0:
        return False
    values = (*args, *kwargs.values())
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    factor = _ELEMENT_BYTES
    for value in values:
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
            factor *= max(1, abs(prod(value)))
    if factor * prod(tensor.numel() for tensor in tensors) <= nbytes:
        return False
    counts: dict[int, int] = {}
    for tensor in tensors:
        shape = tensor.shape
        for dimension in shape:
            counts[dimension] = max(counts.get(dimension, 0), shape.count(dimension))
    return bool(factor * prod(dimension**count for dimension, count in counts.items()) > nbytes)


def to_meta(values: Any) -> Any:
    """Return arguments with meta tensors, which have no contents, in place of tensors."""

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    return tree_map(meta, values)


def meta_results(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a call on host tensors as meta tensors; None if torch cannot tell."""
    meta_args, meta_kwargs = to_meta((list(args), dict(kwargs)))
    for parameter in operator.parameters:
        if parameter.kind is Kind.DEVICE:
            meta_kwargs[parameter.name] = torch.device("meta")
    try:
        return operator.overload(*meta_args, **meta_kwargs)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        if is_of_handler(error):
            raise
        return None


def result_bytes(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the size of the results of a call on host tensors without computing them; 0 if torch cannot tell."""
    leaves = tree_leaves(meta_results(operator, args, kwargs))  # the call itself reports wrong arguments
    return sum(leaf.numel() * leaf.itemsize for leaf in leaves if isinstance(leaf, torch.Tensor))


@contextmanager
def host_allocation(account: MemoryAccount) -> Iterator[None]:
    """Report an allocation for which this computer has no memory as the device would.

    Raises:
        DeviceMemoryError: the device has no memory for it, either.
        HostMemoryError: only this computer has not.
    """
    try:
        yield
    except RuntimeError as error:
        found = _ALLOCATOR.search(str(error))
        if found is None:
            raise
        nbytes = int(found[1])
        account.check(nbytes)
        raise HostMemoryError(
            f"this computer has no memory for a device tensor of {format_size(nbytes)} "
            "(the simulated device memory is not full)",
            "use a smaller model or batch",
        ) from error
