"""What kernels of NKI cost beside their arithmetic, products and attention against numpy, and how soon commands answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import own_directories
from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.first.language import NAMES
from neurontools.nki.first.launch import jit as jit_first
from neurontools.nki.launch import Kernel, numeric_context, run
from neurontools.nki.limits import TARGET_VARIABLE
from neurontools.nki.program import modelled_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.nki.context import Launch

nl1 = SimpleNamespace(**NAMES)  # of the first generation
_INSTRUCTIONS, _SIZE, _TOKENS, _ROUNDS = in_short_form((20_000, 4096, 4096, 5), (200, 512, 512, 1))
_TILE, _COLUMNS = 128, 512
_SMALL = 16  # rows and columns of a tile whose arithmetic takes next to no time
_PARTS = 32
_TUTORIAL = """
    import numpy as np
    import nki
    import nki.isa as nisa
    import nki.language as nl


    @nki.jit
    def add(a, b):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        left, right = nl.ndarray(a.shape, dtype=a.dtype), nl.ndarray(b.shape, dtype=b.dtype)
        nisa.dma_copy(left, a)
        nisa.dma_copy(right, b)
        nisa.tensor_tensor(left, left, right, nl.add)
        nisa.dma_copy(out, left)
        return out


    if __name__ == "__main__":
        add(np.ones((128, 512), np.float32), np.ones((128, 512), np.float32))
"""


def main() -> list[BenchmarkRow]:
    """Return CPU times of this thread, or of a command, the least of several rounds."""
    before = os.environ.get(TARGET_VARIABLE)
    os.environ[TARGET_VARIABLE] = "trn2"
    try:
        return [*_overhead(), *_products(), *_attention(), *_commands()]
    finally:
        os.environ.pop(TARGET_VARIABLE)
        if before is not None:
            os.environ[TARGET_VARIABLE] = before


def _least_s(work: Callable[[], Any], rounds: int = _ROUNDS) -> tuple[float, Any]:
    """Return the least CPU time of several rounds and what the last has returned."""
    times, result = [], None
    for _ in range(rounds):
        begun = time.thread_time()
        result = work()
        times.append(time.thread_time() - begun)
    return min(times), result


def _product_kernel(
    height: int, width: int, finish: Callable[[Any, Any], object]
) -> Callable[[Any, Any], Any]:
    """Return a kernel that loads two tiles for each product, adds products up, and stores what `finish` makes of them."""

    def product(lhs: Any, rhs: Any) -> Any:
        rows, columns = lhs.shape[1], rhs.shape[1]
        out = nl.ndarray((rows, columns), nl.float32, nl.shared_hbm)
        for m in nl.affine_range(rows // height):
            for n in nl.affine_range(columns // width):
                total = nl.ndarray((height, width), nl.float32, nl.psum)
                for k in nl.affine_range(lhs.shape[0] // height):
                    left = nl.ndarray((height, height), lhs.dtype)
                    right = nl.ndarray((height, width), rhs.dtype)
                    inner = slice(k * height, (k + 1) * height)
                    nisa.dma_copy(left, lhs[inner, m * height : (m + 1) * height])
                    nisa.dma_copy(right, rhs[inner, n * width : (n + 1) * width])
                    nisa.nc_matmul(total, left, right)
                result = nl.ndarray((height, width), nl.float32)
                finish(result, total)
                nisa.dma_copy(out[m * height : (m + 1) * height, n * width : (n + 1) * width], result)
        return out

    return product


# ---- instructions


def whole_tiles(a: Any) -> Any:
    """Compute with whole tiles."""
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    x, y = nl.load(a), nl.ndarray(a.shape, a.dtype)
    for _ in range(_INSTRUCTIONS // 4):
        nisa.tensor_copy(y, x)
        nisa.tensor_scalar(x, y, nl.multiply, 0.5)
        nisa.tensor_tensor(y, x, y, nl.add)
        nisa.activation(x, nl.tanh, y)
    nisa.dma_copy(out, x)
    return out


def slices(a: Any) -> Any:
    """Compute with parts of tiles."""
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    x, y = nl.load(a), nl.zeros(a.shape, a.dtype)
    for _ in range(_INSTRUCTIONS // (2 * _PARTS)):
        for part in range(_PARTS):
            columns = slice(part * _SMALL, (part + 1) * _SMALL)
            nisa.tensor_copy(y[:, columns], x[:, columns])
            nisa.tensor_tensor(x[:, columns], x[:, columns], y[:, columns], nl.add)
    nisa.dma_copy(out, x)
    return out


def _overhead() -> list[BenchmarkRow]:
    generator = np.random.default_rng(0)
    side = _SMALL * round((_INSTRUCTIONS / 50) ** 0.5)
    rows = []
    small_products = _product_kernel(
        _SMALL, _SMALL, lambda result, total: nisa.activation(result, nl.exp, total, scale=0.01)
    )
    for label, kernel, shapes in (
        ("whole tiles", whole_tiles, [(_SMALL, _SMALL)]),
        ("slices", slices, [(_SMALL, _PARTS * _SMALL)]),
        ("products of small tiles", small_products, [(16 * _SMALL, side)] * 2),
    ):
        arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]
        spent, launch = _least_s(lambda kernel=kernel, arrays=arrays: run(Kernel(kernel), arrays, {}).launch)
        scheduling, _ = _least_s(lambda launch=launch: modelled_us(launch))
        count = _count(launch)
        name = f"{label}, {count} instructions"
        rows += [
            BenchmarkRow.at_most(f"{name}, each with its checks", 1e6 * spent / count, "us", 15),
            BenchmarkRow.at_most(
                f"{name}, each with its schedule", 1e6 * (spent + scheduling) / count, "us", 30
            ),
        ]
    return rows


def _count(launch: Launch) -> int:
    return sum(len(core.records) for core in launch.cores)


# ---- products and attention


def matmul_of_values(lhs: Any, rhs: Any) -> Any:
    """Multiply as the tutorial of the first generation does."""
    rows, columns = lhs.shape[1], rhs.shape[1]
    out = nl1.ndarray((rows, columns), dtype=lhs.dtype, buffer=nl1.shared_hbm)
    for m in nl1.affine_range(rows // _TILE):
        for n in nl1.affine_range(columns // _COLUMNS):
            total = nl1.zeros((_TILE, _COLUMNS), nl1.float32, buffer=nl1.psum)
            for k in nl1.affine_range(lhs.shape[0] // _TILE):
                inner = slice(k * _TILE, (k + 1) * _TILE)
                left = nl1.load(lhs[inner, m * _TILE : (m + 1) * _TILE])
                right = nl1.load(rhs[inner, n * _COLUMNS : (n + 1) * _COLUMNS])
                total += nl1.matmul(left, right, transpose_x=True)
            result = nl1.copy(total, dtype=lhs.dtype)
            nl1.store(out[m * _TILE : (m + 1) * _TILE, n * _COLUMNS : (n + 1) * _COLUMNS], value=result)
    return out


def _products() -> list[BenchmarkRow]:
    generator = np.random.default_rng(0)
    lhs, rhs = (generator.standard_normal((_SIZE, _SIZE), dtype=np.float32) for _ in range(2))
    rounds = min(_ROUNDS, 2)

    def multiply() -> np.ndarray:
        with numeric_context():
            product: np.ndarray = lhs.T @ rhs
        return product

    rows = []
    for name, work in (
        ("kernel", lambda: run(Kernel(_product_kernel(_TILE, _COLUMNS, nisa.tensor_copy)), (lhs, rhs), {})),
        ("kernel of the first generation", lambda: jit_first(matmul_of_values).run((lhs, rhs), {})),
    ):
        plain, product = _least_s(multiply, rounds)
        spent, finished = _least_s(work, rounds)
        if not np.allclose(finished.results, product, rtol=1e-3, atol=1e-2):
            raise RuntimeError(f"{name}: wrong product")
        rows.append(
            BenchmarkRow.at_most(
                f"product of {_SIZE} x {_SIZE}, {name}",
                spent / plain,
                "times numpy",
                3,
                f"{plain:.1f} s; {_count(finished.launch)} instructions",
            )
        )
    return rows


def attention(q: Any, k: Any, v: Any) -> Any:
    """Compute softmax(q.T k) v of one head of 128 channels; q and k have the channels first."""
    length = q.shape[1]
    out = nl.ndarray((length, _TILE), nl.float32, nl.shared_hbm)
    identity = nl.shared_identity_matrix(_TILE, nl.float32)
    keys = [nl.load(k[:, start : start + _COLUMNS]) for start in range(0, length, _COLUMNS)]
    values = [nl.load(v[start : start + _TILE, :]) for start in range(0, length, _TILE)]
    for row in nl.affine_range(length // _TILE):
        query = nl.load(q[:, row * _TILE : (row + 1) * _TILE])
        weights = nl.ndarray((_TILE, length), nl.float32)
        for number, part in enumerate(keys):
            scores = nl.ndarray((_TILE, _COLUMNS), nl.float32, nl.psum)
            nisa.nc_matmul(scores, query, part)
            columns = slice(number * _COLUMNS, (number + 1) * _COLUMNS)
            nisa.activation(weights[:, columns], nl.exp, scores)
        sums = nl.ndarray((_TILE, 1), nl.float32)
        nisa.tensor_reduce(sums, nl.add, weights, axis=1)
        total = nl.ndarray((_TILE, _TILE), nl.float32, nl.psum)
        for number, part in enumerate(values):
            turned = nl.ndarray((_TILE, _TILE), nl.float32, nl.psum)
            nisa.nc_matmul(
                turned, weights[:, number * _TILE : (number + 1) * _TILE], identity, is_transpose=True
            )
            held = nl.ndarray((_TILE, _TILE), nl.float32)
            nisa.tensor_copy(held, turned)
            nisa.nc_matmul(total, held, part)
        result = nl.ndarray((_TILE, _TILE), nl.float32)
        nisa.tensor_scalar(result, total, nl.divide, sums)
        nisa.dma_copy(out[row * _TILE : (row + 1) * _TILE, :], result)
    return out


def _attention() -> list[BenchmarkRow]:
    generator = np.random.default_rng(0)
    q, k = (generator.standard_normal((_TILE, _TOKENS), dtype=np.float32) / 16 for _ in range(2))
    v = generator.standard_normal((_TOKENS, _TILE), dtype=np.float32)

    def plain() -> np.ndarray:
        with numeric_context():
            weights = np.exp(q.T @ k)
            result: np.ndarray = weights @ v / weights.sum(axis=1, keepdims=True)
        return result

    rounds = min(_ROUNDS, 2)
    formula, expected = _least_s(plain, rounds)
    spent, finished = _least_s(lambda: run(Kernel(attention), (q, k, v), {}), rounds)
    if not np.allclose(finished.results, expected, rtol=1e-3, atol=1e-3):
        raise RuntimeError("wrong attention")
    count = _count(finished.launch)
    note = f"{spent / formula:.1f} times numpy; {count} instructions"
    return [BenchmarkRow.at_most(f"attention of {_TOKENS} tokens, one head", spent, "s", 3.75, note)]


# ---- commands


def _commands() -> list[BenchmarkRow]:
    programs = Path(sys.executable).parent
    shapes = ("--shape", "a=128x512", "--shape", "b=128x512")
    with tempfile.TemporaryDirectory() as directory, own_directories():
        source = Path(directory) / "kernel.py"
        source.write_text(textwrap.dedent(_TUTORIAL), encoding="utf-8")
        reported = min(
            _command_s([f"{programs}/neuron-profile", "kernel", f"{source}::add", *shapes])
            for _ in range(_ROUNDS)
        )
        ran = min(
            _command_s([f"{programs}/neuron-run", "--", sys.executable, str(source)]) for _ in range(_ROUNDS)
        )
    return [
        BenchmarkRow.at_most("neuron-profile kernel, a tutorial's", reported, "s", 2, "CPU of the command"),
        BenchmarkRow.at_most("neuron-run, a tutorial's kernel", ran, "s", 2, "CPU of the command"),
    ]


def _command_s(command: list[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime
