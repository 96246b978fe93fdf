"""The sums along rows that optimum-neuron and NxD Inference call when they sample on the device.

Its meaning follows from their calls: `cumsum(input, output, axis=1)` of two matrices, as `torch.cumsum`.
"""

from __future__ import annotations

from typing import Any

from neuronxcc.nki import isa as nisa
from neuronxcc.nki import language as nl

_COLUMNS = 2048


def cumsum(input: Any, output: Any, axis: int = -1) -> None:  # noqa: A002 # the name that callers use
    """Write the sums along the rows of a matrix to another one.

    Args:
        input: of shape (rows, columns).
        output: of the same shape.
        axis: the last one.
    """
    rows, columns = input.shape
    assert axis in {1, -1}, "cumsum adds along the last axis: transpose the matrix"
    for row in nl.static_range(0, rows, nl.tile_size.pmax):
        height = min(nl.tile_size.pmax, rows - row)
        total = nl.zeros((height, 1), nl.float32)
        for column in nl.static_range(0, columns, _COLUMNS):
            width = min(_COLUMNS, columns - column)
            part = slice(row, row + height), slice(column, column + width)
            numbers = nl.load(input[part])
            ones = nl.ones((height, width), nl.float32)
            sums = nisa.tensor_tensor_scan(ones, numbers, total, nl.multiply, nl.add, dtype=nl.float32)
            nl.store(output[part], sums)
            total = nl.copy(sums[:, width - 1 : width])
