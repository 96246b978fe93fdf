"""Arithmetic of shapes and strides."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def infer_sizes(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the sizes of a shape, -1 replaced by the size that gives the number of elements."""
    sizes = [int(item) for item in shape]
    if -1 in sizes:
        rest = prod(item for item in sizes if item != -1)
        sizes[sizes.index(-1)] = size // rest if rest else 0
    return tuple(sizes)


def merge_dims(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return sizes and strides of the fewest dimensions that name the same elements in the same order."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def reshape_strides(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the strides of another shape of the same elements, None where it has none."""
    runs = merge_dims(shape, strides) or [(1, 1)]
    found: list[int] = []
    remaining = [*runs]
    for size in reversed(wanted):
        if size == 1:
            found.append(found[-1] if found else 1)
            continue
        if not remaining:
            return None
        length, stride = remaining.pop()
        if length % size:
            return None
        found.append(stride)
        if length > size:
            remaining.append((length // size, stride * size))
    return tuple(reversed(found))


def offsets_grid(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Return by index the offset of each element of a pattern."""
    total = np.zeros(tuple(shape), dtype=np.int64)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        total += steps.reshape([-1 if number == dim else 1 for number in range(len(shape))])
    return total
