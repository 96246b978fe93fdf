"""Debuggers in kernels of both generations, and the watch for NaN and infinity."""

from __future__ import annotations

import io
import pdb  # noqa: T100  the debugger is what is tested
import sys
from typing import Any

import ml_dtypes
import neuronxcc.nki.language as first_nl
import numpy as np
import pytest
from neuronxcc.nki import jit as first_jit

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from tests.nki.launches import line_of, ones


@jit
def stepped(a: Any) -> Any:
    """Return 2 * a, with a stop before."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf, address=(0, 2048))
    nisa.dma_copy(tile, a)
    breakpoint()  # noqa: T100
    doubled = nl.multiply(tile, 2.0)
    nl.store(out, doubled)
    return out


@first_jit
def first_stepped(a: Any) -> Any:
    """Do the same in the first generation."""
    out = first_nl.ndarray(a.shape, a.dtype, buffer=first_nl.shared_hbm)
    tile = first_nl.load(a)
    breakpoint()  # noqa: T100
    doubled = tile * 2
    first_nl.store(out, doubled)
    return out


@pytest.mark.parametrize(
    ("kernel", "tile"),
    [
        (stepped, "tile: float32 (2, 2) in sbuf, address (0, 2048)"),
        (stepped[2], "tile: float32 (2, 2) in sbuf, address (0, 2048)"),
        (first_stepped, "tile: float32 (2, 2) in sbuf, address left to the compiler"),
    ],
)
def test_a_debugger_stops_in_the_kernel_and_shows_tiles(monkeypatch, kernel, tile):
    output = io.StringIO()

    def stop() -> None:
        commands = io.StringIO("p tile\nnext\nnext\np doubled\ncontinue\n")
        pdb.Pdb(stdin=commands, stdout=output, nosigint=True, readrc=False).set_trace(sys._getframe(1))

    monkeypatch.setattr("sys.breakpointhook", stop)
    kernel(ones(2, 2))
    shown = output.getvalue()
    assert f"test_debugging.py({line_of(kernel, 'doubled = ')})" in shown
    assert f"{tile}\n[[1. 1.]\n [1. 1.]]" in shown
    assert "doubled: float32 (2, 2) in sbuf, address left to the compiler\n[[2. 2.]\n [2. 2.]]" in shown


def _exponential(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    tile = nl.load(a)
    nisa.activation(tile, nl.exp, tile)  # here
    nl.store(out, nl.subtract(tile, tile))
    return out


def _logarithm(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.log(nl.multiply(nl.load(a), -1.0)))  # here
    return out


def _narrowed(a: Any) -> Any:
    out = nl.ndarray(a.shape, nl.float16, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, nl.float16)
    nisa.tensor_scalar(tile, nl.load(a), nl.multiply, 1000.0)  # here
    nl.store(out, tile)
    return out


def _summed(a: Any) -> Any:
    out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
    tile = nl.load(a)
    total = nl.ndarray((a.shape[1], 1), nl.float32, buffer=nl.psum)
    column = nl.multiply(tile[:, 0:1], 1e38)
    rows = nl.multiply(tile, 1e38)
    nisa.nc_matmul(total, rows, column)  # here
    nisa.nc_matmul(total, tile, tile[:, 0:1], accumulate=True)
    nl.store(out, nl.copy(total)[0:1])
    return out


def _masked(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, a.dtype)
    nisa.memset(tile, float("-inf"))
    nl.store(out, nl.maximum(tile, nl.load(a)))
    return out


@first_jit
def _first_exponential(a: Any) -> Any:
    out = first_nl.ndarray(a.shape, a.dtype, buffer=first_nl.shared_hbm)
    tile = first_nl.exp(first_nl.load(a))  # here
    first_nl.store(out, tile - tile)
    return out


@pytest.mark.parametrize(
    ("kernel", "array", "found"),
    [
        (
            _exponential,
            ones(2, 2) * 90,
            "activation: of 4 elements of tile, 4 are infinite, from finite operands",
        ),
        (_exponential, ones(2, 2), ""),
        (_exponential, ones(2, 2) * np.nan, ""),
        (_logarithm, ones(2, 2), "activation: of 4 elements of sbuf, 4 are NaN, from finite operands"),
        (
            _narrowed,
            ones(2, 2) * 70,
            "tensor_scalar: of 4 elements of tile, 4 are infinite, from finite operands",
        ),
        (_summed, ones(2, 2) * 2, "nc_matmul: of 2 elements of total, 2 are infinite, from finite operands"),
        (_masked, ones(2, 2), ""),
        (
            _masked,
            ones(2, 2).astype(ml_dtypes.bfloat16),
            "",
        ),
        (
            _first_exponential,
            ones(2, 2) * 90,
            "activation: of 4 elements of tile, 4 are infinite, from finite operands",
        ),
    ],
)
def test_the_first_line_that_makes_nan_or_infinity_is_named(monkeypatch, kernel, array, found):
    made = kernel if hasattr(kernel, "run") else jit(kernel)

    def warnings() -> list[tuple[int, str]]:
        launch = made.run((array,), {}, quiet=True).launch
        return [(item.location.line, item.message) for item in launch.warnings if item.kind == "non-finite"]

    assert warnings() == []
    monkeypatch.setenv("NEURON_FAIL_ON_NAN", "1")
    assert [line for line, _ in warnings()] == ([line_of(made, "# here")] if found else [])
    assert all(message.startswith(found) for _, message in warnings())
