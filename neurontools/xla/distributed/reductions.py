"""The arithmetic of reductions over workers, on tensors in the areas of their shared memory."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla.device_guard import find_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REDUCE_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
}


class SmallReduction:
    """An all_reduce of which each member computes all: for small tensors, that takes less time than a second meeting.

    It is kept for the next tensors of the same shapes.

    Args:
        reduce_type: a key of `REDUCE_FUNCTIONS`.
        tensors: one tensor of each shape, all of one data type.
        areas: for each turn, the vectors of all members.
        position: this member's position.
        memory: bytes for the result.
    """

    def __init__(
        self,
        reduce_type: str,
        tensors: Sequence[torch.Tensor],
        areas: Sequence[Sequence[torch.Tensor]],
        position: int,
        memory: torch.Tensor,
    ) -> None:
        dtype = tensors[0].dtype
        counts = [tensor.numel() for tensor in tensors]
        count = sum(counts)

        def shaped(vector: torch.Tensor) -> list[torch.Tensor]:
            parts = vector.split(counts)
            return [part.view(tensor.size()) for part, tensor in zip(parts, tensors, strict=True)]

        self.what = f"all_reduce {reduce_type} of {count} {dtype}"
        self._reduce_type = reduce_type
        self._areas = [[area[:count] for area in turn] for turn in areas]
        self._own = [shaped(turn[position]) for turn in self._areas]
        self._result = memory.view(dtype)[:count]
        self._parts = shaped(self._result)
        self._add_and_scale = _find_sum(reduce_type, dtype)
        self._counts = (ctypes.c_int64 * len(counts))(*counts)
        self._vectors = [_pointers(turn) for turn in self._areas]

    def write(self, turn: int, tensors: Sequence[torch.Tensor]) -> None:
        """Copy this member's tensors to its area."""
        torch._foreach_copy_(self._own[turn], tensors)

    def finish(self, turn: int, tensors: Sequence[torch.Tensor], scale: float) -> None:
        """Reduce what all members have written, in their order, and write it into the tensors, multiplied by `scale`."""
        areas = self._areas[turn]
        if self._add_and_scale is not None and all(map(torch.Tensor.is_contiguous, tensors)):
            self._add_and_scale(
                _pointers(tensors), self._counts, len(tensors), self._vectors[turn], len(areas), scale
            )
            return
        reduce_into(self._result, self._reduce_type, areas, scale)
        torch._foreach_copy_(tensors, self._parts)


def reduce_into(
    target: torch.Tensor, reduce_type: str, vectors: Sequence[torch.Tensor], scale: float
) -> None:
    """Reduce vectors in their order into another one, or into the first of them, and multiply the result by `scale`."""
    add_and_scale = _find_sum(reduce_type, target.dtype)
    if add_and_scale is not None:
        counts = (ctypes.c_int64 * 1)(target.numel())
        add_and_scale(_pointers([target]), counts, 1, _pointers(vectors), len(vectors), scale)
        return
    reduce = REDUCE_FUNCTIONS[reduce_type]
    first, second, *others = vectors
    reduce(first, second, out=target)
    for vector in others:
        reduce(target, vector, out=target)
    scale_(target, scale)


def _find_sum(reduce_type: str, dtype: torch.dtype) -> Callable[..., None] | None:
    return find_sum() if reduce_type == "sum" and dtype == torch.float32 else None


def _pointers(tensors: Sequence[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def scale_(tensor: torch.Tensor, scale: float) -> None:
    """Multiply a tensor in place; integers are rounded towards zero."""
    if scale == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(scale)
    else:
        tensor.copy_(tensor * scale)
