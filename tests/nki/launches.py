"""Kernels that tests share, and how they run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.nki.launch import run
from neurontools.nki.limits import limits_of

if TYPE_CHECKING:
    from neurontools.nki.context import Launch


def launch_of(kernel: Any, *arrays: Any, target: str = "trn2", cores: int = 1, **scalars: Any) -> Launch:
    """Return the launch of a kernel that has run on arrays."""
    chosen = kernel[cores] if cores > 1 else kernel
    return run(chosen, arrays, scalars, limits=limits_of(target), quiet=True).launch


def ones(*shape: int) -> np.ndarray:
    """Return an array of ones in float32."""
    return np.ones(shape, np.float32)


def line_of(function: Any, text: str) -> int:
    """Return the first line of a kernel that contains a text."""
    import inspect

    lines, start = inspect.getsourcelines(function.func)
    return start + next(number for number, line in enumerate(lines) if text in line)


@jit
def scale(x: Any, depth: int = 1) -> Any:
    """Multiply tiles of 128 rows by 2, `depth` times."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in nl.affine_range(x.shape[0] // 128):
        rows = slice(start * 128, start * 128 + 128)
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        for _ in range(depth):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[rows, :], src=tile)
    return out


@jit
def matmul(a: Any, b: Any) -> Any:
    """Multiply a transposed by b in tiles of 128 x 512."""
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    for row in nl.affine_range(a.shape[1] // 128):
        total = nl.ndarray((128, b.shape[1]), dtype=nl.float32, buffer=nl.psum)
        for depth in nl.affine_range(a.shape[0] // 128):
            left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
            right = nl.ndarray((128, b.shape[1]), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[depth * 128 : depth * 128 + 128, row * 128 : row * 128 + 128])
            nisa.dma_copy(dst=right, src=b[depth * 128 : depth * 128 + 128, :])
            nisa.nc_matmul(dst=total, stationary=left, moving=right)
        result = nl.ndarray((128, b.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=total)
        nisa.dma_copy(dst=out[row * 128 : row * 128 + 128, :], src=result)
    return out
