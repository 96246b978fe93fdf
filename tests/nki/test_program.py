from __future__ import annotations

from typing import Any

import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.compiler.engines.placement import Engine
from neurontools.nki import program as programs
from neurontools.nki.program import (
    modelled_core,
    modelled_us,
    program_of,
    schedule_of,
    slowest_program,
    start_us,
)
from tests.nki.launches import launch_of, matmul, ones, scale


def test_each_instruction_waits_for_the_one_whose_result_it_reads() -> None:
    schedule = schedule_of(launch_of(scale, ones(128, 512)).cores[0])
    load, work, store = schedule.groups
    assert (load.engine, work.engine, store.engine) == (Engine.DMA, Engine.VECTOR, Engine.DMA)
    assert load.end_ns < work.start_ns < work.end_ns < store.start_ns


def test_tiles_that_share_no_memory_overlap() -> None:
    one = schedule_of(launch_of(scale, ones(128, 512), depth=20).cores[0]).end_ns
    four = schedule_of(launch_of(scale, ones(512, 512), depth=20).cores[0]).end_ns
    work = 20 * 512 * 0.5 / 0.96  # two elements a cycle
    assert one < four < one + 3.1 * work


def test_a_tensor_that_takes_the_memory_of_another_waits_for_its_last_access() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for start in range(x.shape[0] // 128):
            rows = slice(start * 128, start * 128 + 128)
            tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
            nisa.dma_copy(dst=tile, src=x[rows, :])
            nisa.dma_copy(dst=out[rows, :], src=tile)
        return out

    groups = schedule_of(launch_of(kernel, ones(256, 512)).cores[0]).groups
    assert groups[2].start_ns >= groups[1].end_ns


def test_neighbours_in_chosen_memory_do_not_wait_for_each_other() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        small = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
        nisa.memset(dst=small, value=0.0)
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf, address=(0, 4))
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=small)
        nisa.dma_copy(dst=out, src=tile)
        return out

    groups = schedule_of(launch_of(kernel, ones(128, 512)).cores[0]).groups
    assert groups[1].start_ns == 0.0


def test_parts_of_a_tensor_are_told_apart() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 1024), dtype=x.dtype, buffer=nl.sbuf)
        for half in range(2):
            columns = slice(half * 512, half * 512 + 512)
            nisa.dma_copy(dst=tile[:, columns], src=x[:, columns])
        nisa.dma_copy(dst=out[:, 0:512], src=tile[:, 0:512])
        nisa.dma_copy(dst=out[:, 512:1024], src=tile[:, 512:1024])
        return out

    program = program_of(launch_of(kernel, ones(128, 1024)).cores[0]).alone()
    assert [instruction.reads for instruction in program.steps[0].instructions] == [(), (), (0,), (1,)]


def test_a_named_predecessor_is_waited_for() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        first = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        second = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        earlier = nisa.memset(dst=first, value=0.0)
        nisa.dma_copy(dst=second, src=x).depends_on(earlier)
        nisa.tensor_tensor(dst=second, data1=first, data2=second, op=nl.add)
        nisa.dma_copy(dst=out, src=second)
        return out

    instructions = program_of(launch_of(kernel, ones(128, 512)).cores[0]).instructions
    assert instructions[1].reads == (0,)


@pytest.mark.parametrize(
    ("columns", "share"),
    [(32, 0.048), (512, 0.77)],  # of the plateau: rows of 128 bytes, and of 2 KiB
)
def test_short_rows_waste_the_dma_engines(columns: int, share: float) -> None:
    launch = launch_of(scale, ones(128, columns))
    load = schedule_of(launch.cores[0]).groups[0]
    bandwidth = modelled_core(launch.limits).dma_bytes_ns
    assert 128 * columns * 4 / load.busy_ns / bandwidth == pytest.approx(share, rel=0.1)


def test_descriptors_made_by_hardware_take_their_time_on_the_sync_engine() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge)
        nisa.dma_copy(dst=out, src=tile, dge_mode=nisa.dge_mode.swdge)
        return out

    groups = schedule_of(launch_of(kernel, ones(128, 512)).cores[0]).groups
    assert [group.engine for group in groups] == [Engine.SYNC, Engine.DMA, Engine.GPSIMD, Engine.DMA]
    assert groups[0].busy_ns == 600
    assert groups[1].start_ns >= groups[0].end_ns


def test_the_products_of_a_tile_follow_each_other_on_the_tensor_engine() -> None:
    groups = schedule_of(launch_of(matmul, ones(256, 128), ones(256, 512)).cores[0]).groups
    products = [group for group in groups if group.engine is Engine.TENSOR]
    assert len(products) == 2
    assert products[1].start_ns >= products[0].end_ns
    # 79 and 20 TFLOPS in bf16 and fp32 (arch-v3): as many passes of 512 columns, and 32 cycles for the stationary matrix.
    assert products[0].instruction.tile_ns == pytest.approx((512 * 79 / 20 + 32) / 2.4)


def test_the_time_is_that_of_the_slower_core_and_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        rows = slice(core * 128, core * 128 + 128)
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        for _ in range(1 + 9 * core):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[rows, :], src=tile)
        return out

    launch = launch_of(kernel, ones(256, 512), cores=2)
    ends = [schedule_of(core).end_ns for core in launch.cores]
    assert ends[0] < ends[1]
    assert modelled_us(launch) == pytest.approx(start_us(launch.limits) + ends[1] / 1e3)
    built = []
    monkeypatch.setattr(programs, "program_of", lambda core: built.append(core) or program_of(core))
    assert slowest_program(launch).instructions == program_of(launch.cores[1]).instructions
    assert built == launch.cores


def test_each_generation_has_its_own_clocks() -> None:
    times = [
        schedule_of(launch_of(scale, ones(128, 512), target=name).cores[0]).end_ns
        for name in ("trn1", "trn2", "trn3")
    ]
    assert times[0] > times[1] > times[2]
