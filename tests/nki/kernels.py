"""A kernel that runs steps on tiles: tests give the steps and the arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.launch import Kernel, run

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


def on_tiles(
    step: Callable[..., Any],
    *arrays: np.ndarray,
    shape: tuple[int, ...] | None = None,
    dtype: Any = None,
    buffer: Any = nl.sbuf,
) -> np.ndarray:
    """Return what a step writes to a tile.

    Args:
        step: gets the destination and a tile of each array.
        arrays: copied to SBUF.
        shape: of the destination, that of the first array if not given.
        dtype: of the destination, that of the first array if not given.
        buffer: where the destination is.
    """

    def kernel(*inputs: Any) -> Any:
        tiles = [nl.load(tensor) for tensor in inputs]
        dst = nl.ndarray(shape or tiles[0].shape, dtype or tiles[0].dtype, buffer)
        step(dst, *tiles)
        out = nl.ndarray(dst.shape, dst.dtype, nl.shared_hbm)
        if buffer is nl.psum:
            copied = nl.ndarray(dst.shape, dst.dtype)
            nisa.tensor_copy(copied, dst)
            dst = copied
        nisa.dma_copy(out, dst)
        return out

    result: np.ndarray = run(Kernel(kernel), arrays, {}).results
    return result
