from __future__ import annotations

from typing import Any

import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError
from tests.nki.launches import launch_of, line_of, matmul, ones, scale


def _of_kind(launch: Any, kind: str) -> list[Any]:
    return [warning for warning in launch.warnings if warning.kind == kind]


@jit
def _writes_twice(x: Any, filler: bool = False, part: bool = False) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    if filler:
        nisa.memset(dst=tile, value=0.0)
    else:
        nisa.dma_copy(dst=tile, src=x)
    columns = slice(0, 32 if part else 64)
    nisa.dma_copy(dst=tile[:, columns], src=x[:, columns])  # again
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_write_that_nothing_reads_is_named_with_the_one_that_overwrites_it() -> None:
    (warning,) = _of_kind(launch_of(_writes_twice, ones(128, 64)), "lost")
    assert warning.location.line == line_of(_writes_twice, "nisa.dma_copy(dst=tile, src=x)")
    again = line_of(_writes_twice, "# again")
    assert warning.message.startswith("dma_copy: what it writes to tile is overwritten by dma_copy at ")
    assert f":{again} before it is read" in warning.message


@pytest.mark.parametrize("options", [{"filler": True}, {"part": True}, {"filler": True, "part": True}])
def test_a_fill_or_a_part_may_be_overwritten(options: dict[str, bool]) -> None:
    assert _of_kind(launch_of(_writes_twice, ones(128, 64), **options), "lost") == []


@pytest.mark.parametrize("fills", [False, True])
def test_a_copy_of_a_fill_may_be_overwritten(fills: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        start = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        if fills:
            nisa.memset(dst=start, value=0.0)
        else:
            nisa.dma_copy(dst=start, src=x)
        nisa.dma_copy(dst=out, src=start)
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert len(_of_kind(launch_of(kernel, ones(128, 64)), "lost")) == (not fills)


def test_results_beside_a_sum_need_no_reader() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        unused = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        sums = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        for column in range(4):
            nisa.activation_reduce(
                dst=unused, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=sums[:, column : column + 1]
            )
        nisa.dma_copy(dst=out, src=sums)
        return out

    assert launch_of(kernel, ones(128, 64)).warnings == []


@jit
def _sums(a: Any, b: Any, start: str = "") -> Any:
    out = nl.ndarray((2, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    if start == "memset":
        nisa.memset(dst=total, value=0.0)
    for number in range(2):
        first = False if start == "overwrite" else None
        nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=first)
        nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=True)
        result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=total)
        nisa.dma_copy(dst=out[number], src=result)
    return out


def test_a_second_sum_that_goes_on_with_the_first_is_named() -> None:
    (warning,) = _of_kind(launch_of(_sums, ones(128, 128), ones(128, 512)), "sum")
    assert warning.location.line == line_of(_sums, "accumulate=first")
    assert "adds to a sum of total that was read" in warning.message


def test_a_sum_that_adds_to_other_values_is_named() -> None:
    found = _of_kind(launch_of(_sums, ones(128, 128), ones(128, 512), start="memset"), "sum")
    assert any("adds to what memset wrote to total at " in warning.message for warning in found)


def test_a_sum_that_overwrites_is_no_fault() -> None:
    assert launch_of(_sums, ones(128, 128), ones(128, 512), start="overwrite").warnings == []


def test_kernels_without_faults_have_no_warnings() -> None:
    assert launch_of(scale, ones(256, 64), depth=2).warnings == []
    assert launch_of(matmul, ones(256, 256), ones(256, 512)).warnings == []


@pytest.mark.parametrize("rows", [0, 64])
def test_results_must_be_written(rows: int) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm, name="out")
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        if rows:
            nisa.dma_copy(dst=out[0:rows, :], src=tile[0:rows, :])
        return out

    if rows:
        (warning,) = launch_of(kernel, ones(128, 64)).warnings
        assert warning.message == "kernel: 4096 of 8192 elements of result out were never written"
    else:
        with pytest.raises(KernelError, match="result out was never written"):
            launch_of(kernel, ones(128, 64))
