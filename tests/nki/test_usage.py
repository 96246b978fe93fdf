from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError
from neurontools.nki.memory import MemoryRegion
from neurontools.nki.usage import level_at, lifetimes, placed_lifetimes, usage
from tests.nki.launches import launch_of, line_of, matmul, ones, scale


def test_a_tensor_holds_its_memory_from_first_write_to_last_access() -> None:
    core = launch_of(scale, ones(256, 512)).cores[0]
    assert [(item.first, item.last) for item in lifetimes(core.records)] == [(0, 2), (3, 5)]
    used = usage(MemoryRegion.sbuf, lifetimes(core.records))
    assert used.peak_bytes == 512 * 4
    assert used.levels == ((0, 2048), (3, 2048), (6, 0))
    assert [level_at(used.levels, number) for number in (0, 4, 6)] == [2048, 2048, 0]


def test_psum_is_counted_apart() -> None:
    core = launch_of(matmul, ones(128, 256), ones(128, 512)).cores[0]
    assert usage(MemoryRegion.psum, lifetimes(core.records)).peak_bytes == 2048


@jit
def _hoarder(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = []
    for number in range(14):
        tile = nl.ndarray((128, 4096), dtype=x.dtype, buffer=nl.sbuf, name=f"tile{number}")
        nisa.memset(dst=tile, value=0.0)
        tiles.append(tile)
    for tile in tiles:
        nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=tile, op=nl.add)
    nisa.dma_copy(dst=out, src=tiles[0])
    return out


def test_an_overflow_names_the_largest_tensors_alive() -> None:
    with pytest.raises(KernelError) as raised:
        launch_of(_hoarder, ones(128, 4096))
    lines = raised.value.message.splitlines()
    at = line_of(_hoarder, "nisa.memset(dst=tile")
    assert f":{at}: SBUF overflow: 229376 bytes a partition at " in lines[0]
    assert lines[0].endswith("at most 212992 on trn2")
    assert len(lines) == 12
    declared = line_of(_hoarder, "tile = nl.ndarray")
    assert lines[1].startswith("note: tile0: 16384 bytes a partition, declared at ")
    assert lines[1].endswith(f":{declared}")
    assert lines[-1] == "note: 4 more tensors: 65536 bytes a partition"


def test_what_overflows_one_device_fits_another() -> None:
    assert launch_of(_hoarder, ones(128, 4096), target="trn3").warnings == []


def _loads_before_use(
    *, in_order: bool = False, sums: int = 1, copied: bool = False, indexed: bool = False
) -> Any:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        source = x
        if copied:
            source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
            nisa.dma_copy(dst=source, src=x)
        with nl.no_reorder() if in_order else nullcontext():
            tiles = [nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(14)]
            if indexed:
                row = nl.ndarray((1, 1), nl.int32)
                nisa.memset(row, 0)
                source = x.ap([[4096, 128], [1, 4096]], scalar_offset=row)
            for tile in tiles:
                nisa.dma_copy(dst=tile[:64], src=source[:64])
                nisa.dma_copy(dst=tile[64:], src=source[64:])
            total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            for tile in tiles * sums:
                nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
            nisa.dma_copy(dst=out, src=total)
        return out

    return kernel


@pytest.mark.parametrize("indexed", [False, True])
def test_loads_wait_until_they_are_needed_where_program_order_overflows(indexed: bool) -> None:
    launch = launch_of(_loads_before_use(indexed=indexed), ones(128, 4096))
    assert launch.warnings == []
    peak = usage(MemoryRegion.sbuf, placed_lifetimes(launch.cores[0])).peak_bytes
    assert 2 * 16384 <= peak <= 2 * 16384 + 32


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(_loads_before_use(in_order=True), id="no_reorder"),
        pytest.param(_loads_before_use(sums=2), id="all are needed at once"),
        pytest.param(_loads_before_use(copied=True), id="the kernel writes the source"),
    ],
)
def test_what_cannot_wait_overflows(kernel: Any) -> None:
    with pytest.raises(KernelError, match=r"SBUF overflow: 2\d+ bytes a partition"):
        launch_of(kernel, ones(128, 4096))


def test_loads_stay_in_program_order_where_it_fits() -> None:
    launch = launch_of(_loads_before_use(), ones(128, 2048))
    assert usage(MemoryRegion.sbuf, placed_lifetimes(launch.cores[0])).peak_bytes == 15 * 8192


def test_psum_overflows_at_the_ninth_bank() -> None:
    @jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a)
        nisa.dma_copy(dst=right, src=b)
        sums = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(9)]
        for total in sums:
            nisa.nc_matmul(dst=total, stationary=left, moving=right)
        result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=result, value=0.0)
        for total in sums:
            nisa.tensor_tensor(dst=result, data1=result, data2=total, op=nl.add)
        nisa.dma_copy(dst=out, src=result)
        return out

    with pytest.raises(
        KernelError, match=r"PSUM overflow: 18432 bytes a partition at .*, at most 16384 on trn2"
    ):
        launch_of(kernel, ones(128, 128), ones(128, 512))


def _at(offset: int, *, apart: bool = False) -> Any:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((2, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        first = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf, name="first", address=(0, 0))
        second = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf, name="second", address=(0, offset))
        nisa.dma_copy(dst=first, src=x)
        if apart:
            nisa.dma_copy(dst=out[0], src=first)
        nisa.dma_copy(dst=second, src=x)
        if not apart:
            nisa.dma_copy(dst=out[0], src=first)
        nisa.dma_copy(dst=out[1], src=second)
        return out

    return kernel


def test_chosen_addresses_that_overlap_are_an_error_with_both_declarations() -> None:
    with pytest.raises(KernelError) as raised:
        launch_of(_at(2044), ones(128, 512))
    lines = raised.value.message.splitlines()
    assert "second at (0, 2044) overlaps first at (0, 0), and both are in use" in lines[0]
    assert [line.split(" declared at ")[0] for line in lines[1:]] == ["note: first", "note: second"]


@pytest.mark.parametrize("kernel", [_at(2048), _at(0, apart=True)])
def test_addresses_may_be_used_again_once_a_tensor_is_dead(kernel: Any) -> None:
    assert launch_of(kernel, ones(128, 512)).warnings == []


@jit
def _products(x: Any, count: int, rounds: int) -> Any:
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.load(x)
    products = [nl.ndarray((128, 512), nl.float32, nl.psum) for _ in range(count)]
    for number in range(rounds):
        for product in products:
            nisa.nc_matmul(product, tile[:, 0:128], tile, accumulate=number > 0)
    total = nl.ndarray((128, 512), nl.float32)
    nisa.memset(total, 0)
    for product in products[::-1]:
        kept = nl.ndarray((128, 512), nl.float32)
        nisa.tensor_copy(kept, product)
        nisa.tensor_tensor(total, total, kept, nl.add)
    nisa.dma_copy(out, total)
    return out


@pytest.mark.parametrize("count", [8, 9, 40])
def test_results_leave_psum_as_soon_as_they_are_there_where_it_overflows(count: int) -> None:
    core = launch_of(_products, ones(128, 512), count, 1).cores[0]
    assert usage(MemoryRegion.psum, placed_lifetimes(core)).peak_bytes <= 8 * 2048


def test_sums_that_are_continued_stay_in_psum() -> None:
    launch_of(_products, ones(128, 512), 8, 2)
    with pytest.raises(KernelError, match="PSUM overflow: 18432 bytes a partition"):
        launch_of(_products, ones(128, 512), 9, 2)


@jit
def _many_names(x: Any) -> Any:
    shape, dtype = x.shape, nl.float32
    out = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    a, b = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype)
    c = nl.ndarray(shape, dtype); d = nl.ndarray(shape, dtype)  # fmt: skip  # noqa: E702
    e, (f, g) = (
        nl.ndarray(shape, dtype),
        (nl.ndarray(shape, dtype), nl.ndarray(shape, dtype)),
    )
    tiles = [
        nl.ndarray(shape, dtype)
        for _ in range(2)
    ]  # fmt: skip
    tiles[0] = nl.ndarray(
        shape, dtype
    )  # fmt: skip
    box = SimpleNamespace()
    box.h = nl.ndarray(shape, dtype, name="")
    i: Any = nl.ndarray(shape, dtype)
    named = (a, b, c, d, e, f, g, *tiles, box.h, i)
    for tile in (*named, (j := nl.ndarray(shape, dtype)), nl.ndarray(shape, dtype)):
        nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=j)
    return out


def test_tensors_are_named_by_the_variables_that_their_declarations_are_assigned_to() -> None:
    labels = [allocation.label for allocation in launch_of(_many_names, ones(128, 4)).allocations]
    names = "x out a b c d e f g tiles tiles tiles[0] box.h i j sbuf"
    assert labels == names.split()
