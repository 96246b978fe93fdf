from __future__ import annotations

from typing import Any

import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from tests.nki.launches import launch_of, line_of, ones


@jit
def _exchanges(x: Any, with_barrier: bool = True) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm, name="shared")
    core = nl.program_id(0)
    mine, other = slice(core * 128, core * 128 + 128), slice((1 - core) * 128, (1 - core) * 128 + 128)
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[mine, :])
    nisa.dma_copy(dst=shared[mine, :], src=tile)
    if with_barrier:
        nisa.core_barrier(data=shared, cores=(0, 1))
    theirs = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=theirs, src=shared[other, :])
    nisa.dma_copy(dst=out[mine, :], src=theirs)
    return out


def _races(launch: Any) -> list[Any]:
    return [warning for warning in launch.warnings if warning.kind == "race"]


def test_a_dropped_barrier_is_named_with_both_lines() -> None:
    found = _races(launch_of(_exchanges, ones(256, 64), cores=2, with_barrier=False))
    writes, reads = line_of(_exchanges, "dst=shared[mine"), line_of(_exchanges, "src=shared[other")
    assert {warning.location.line for warning in found} == {writes, reads}
    first = next(warning for warning in found if warning.location.line == writes)
    assert "core 0 writes shared while core 1 reads the same elements at " in first.message
    assert f":{reads}, with no barrier between" in first.message


def test_a_barrier_orders_the_cores() -> None:
    assert _races(launch_of(_exchanges, ones(256, 64), cores=2)) == []


@pytest.mark.parametrize("step", [1, 2])
def test_writes_split_by_columns_do_not_race(step: int) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        core, width = nl.program_id(0), x.shape[1] // 2
        columns = slice(core * width, core * width + width) if step == 1 else slice(core, x.shape[1], 2)
        tile = nl.ndarray((128, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, columns])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(core))
        nisa.dma_copy(dst=out[:, columns], src=tile)
        return out

    assert _races(launch_of(kernel, ones(128, 64), cores=2)) == []


def test_cores_that_write_other_values_to_one_place_race() -> None:
    @jit
    def kernel(x: Any, differ: float = 0.0) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=differ * nl.program_id(0))
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert len(_races(launch_of(kernel, ones(128, 64), cores=2, differ=1.0))) == 1
    assert _races(launch_of(kernel, ones(128, 64), cores=2)) == []


def test_one_core_races_with_none() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
        nisa.dma_copy(dst=tile, src=out)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert launch_of(kernel, ones(128, 64)).warnings == []
