"""Kernels that each have one fault of those that rules look for, and the same kernels without it."""

from __future__ import annotations

from typing import Any

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl

PART = 64


@jit
def short_rows(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(a.shape[0] // 128):
        for column in nl.affine_range(a.shape[1] // PART):
            rows, columns = nl.ds(row * 128, 128), nl.ds(column * PART, PART)
            nl.store(out[rows, columns], nl.multiply(nl.load(a[rows, columns]), 2.0))
    return out


@jit
def whole_rows(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(a.shape[0] // 128):
        rows = nl.ds(row * 128, 128)
        tile = nl.load(a[rows])
        made = nl.ndarray(tile.shape, a.dtype, buffer=nl.sbuf)
        for column in nl.affine_range(a.shape[1] // PART):
            columns = nl.ds(column * PART, PART)
            nisa.tensor_scalar(made[:, columns], tile[:, columns], nl.multiply, 2.0)
        nl.store(out[rows], made)
    return out


@jit
def short_and_whole_rows(a: Any, b: Any) -> Any:
    """Move parts of the rows of a, and whole rows of b that are short: only those of a can be longer."""
    sums = nl.ndarray(b.shape, a.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(a.shape[0] // 128):
        rows = nl.ds(row * 128, 128)
        total = nl.load(b[rows])
        for column in nl.sequential_range(a.shape[1] // PART):
            part = nl.load(a[rows, nl.ds(column * PART, PART)])
            total = nl.add(total, part)
        nl.store(sums[rows], total)
    return sums


@jit
def on_cores(a: Any) -> Any:
    """Double rows, those of each core; core 1 does the work twice."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    rows = nl.ds(core * 128, 128)
    tile = nl.load(a[rows])
    for _ in range(core + 1):
        tile = nl.multiply(tile, 2.0)
    nl.store(out[rows], tile)
    return out


def _products(a: Any, b: Any, tiles: int) -> Any:
    """Multiply a (128 x 128, transposed) with b (128 x n), and keep the results in the given number of tiles."""
    out = nl.ndarray((128, b.shape[1]), nl.float32, buffer=nl.shared_hbm)
    left, right = nl.load(a), nl.load(b)
    made = nl.ndarray((128, b.shape[1]), nl.float32, buffer=nl.sbuf)
    shared = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in range(tiles)]
    for number in range(b.shape[1] // 512):
        columns = nl.ds(number * 512, 512)
        result = shared[number % tiles] if tiles else nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(result, left, right[:, columns])
        nisa.tensor_copy(made[:, columns], result, engine=nisa.engine.vector)
    nl.store(out, made)
    return out


@jit
def one_bank(a: Any, b: Any) -> Any:
    return _products(a, b, 1)


@jit
def a_bank_each(a: Any, b: Any) -> Any:
    return _products(a, b, 0)


def _scaled_often(a: Any, second: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(a.shape[1] // 512):
        columns = nl.ds(number * 512, 512)
        tile = nl.load(a[:, columns])
        for _ in range(9):
            nisa.tensor_scalar(tile, tile, nl.multiply, 1.5, engine=nisa.engine.vector)
        for _ in range(6):
            nisa.tensor_scalar(tile, tile, nl.multiply, 0.5, engine=second)
        nl.store(out[:, columns], tile)
    return out


@jit
def all_on_vector(a: Any) -> Any:
    return _scaled_often(a, nisa.engine.vector)


@jit
def half_on_scalar(a: Any) -> Any:
    return _scaled_often(a, nisa.engine.scalar)


def _in_two_passes(a: Any, *, spills: bool) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray(a.shape, a.dtype, buffer=nl.private_hbm if spills else nl.sbuf)
    columns = [nl.ds(number * 512, 512) for number in range(a.shape[1] // 512)]
    for part in columns:
        tile = nl.multiply(nl.load(a[:, part]), 2.0)
        if spills:
            nl.store(kept[:, part], tile)
        else:
            nisa.tensor_copy(kept[:, part], tile)
    for part in columns:
        tile = nl.load(kept[:, part]) if spills else kept[:, part]
        nl.store(out[:, part], nl.add(tile, 1.0))
    return out


@jit
def through_hbm(a: Any) -> Any:
    return _in_two_passes(a, spills=True)


@jit
def kept_in_sbuf(a: Any) -> Any:
    return _in_two_passes(a, spills=False)


def _by_rows(a: Any, rows: int) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(a.shape[0] // rows):
        part = nl.ds(number * rows, rows)
        nl.store(out[part], nl.exp(nl.exp(nl.load(a[part]))))
    return out


@jit
def a_quarter_of_the_partitions(a: Any) -> Any:
    return _by_rows(a, 32)


@jit
def all_partitions(a: Any) -> Any:
    return _by_rows(a, 128)
