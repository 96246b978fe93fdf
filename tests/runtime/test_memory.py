"""Accounting of device memory and its reservation in granules."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.machine.connection import SilentDaemonError
from neurontools.machine.snapshot import MemoryCategory, MemoryUse
from neurontools.runtime.memory import BIG_BYTES, GRANULE_BYTES, SLOW_NS
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runtime.conftest import Place

MIB = 1 << 20


def test_small_tensors_share_a_granule(place: Place) -> None:
    for _ in range(100):
        place.runtime.allocate(0, 1000)
    assert place.client.calls == [(0, GRANULE_BYTES)]
    assert place.runtime.memory_info(0).used_bytes == 100_000


def test_big_tensors_are_reserved_exactly(place: Place) -> None:
    place.runtime.allocate(1, BIG_BYTES + 1)
    assert place.client.calls == [(1, BIG_BYTES + 1)]


def test_a_freed_tensor_leaves_a_little_reserve(place: Place) -> None:
    place.runtime.allocate(0, 10 * BIG_BYTES)
    place.runtime.free(0, 10 * BIG_BYTES)
    assert place.client.used == GRANULE_BYTES
    place.runtime.allocate(0, 5)
    assert len(place.client.calls) == 2


def test_used_peak_and_limit(place: Place) -> None:
    place.runtime.allocate(0, 700)
    place.runtime.allocate(0, 300, MemoryCategory.DMA_BUFFERS)
    place.runtime.free(0, 600)
    info = place.runtime.memory_info(0)
    assert (info.used_bytes, info.peak_bytes) == (400, 1000)
    assert info.limit_bytes == place.runtime.instance.device.memory_bytes
    assert place.runtime.memory_use(0) == MemoryUse(tensors=100, dma_buffers=300)
    assert place.runtime.memory_info(1).used_bytes == 0


def test_the_page_shows_use_and_reservation(place: Place) -> None:
    place.runtime.allocate(1, 123)
    value = place.page.read(0)
    assert value is not None
    assert value.cores[1].memory == MemoryUse(tensors=123)
    assert value.reserved_bytes == (0, GRANULE_BYTES)


def test_the_last_bytes_of_a_device_can_be_had(new_place: Callable[..., Place]) -> None:
    place = new_place(total=GRANULE_BYTES + 10)
    place.runtime.allocate(0, GRANULE_BYTES)
    place.runtime.allocate(0, 10)
    with pytest.raises(NrtError):
        place.runtime.allocate(0, 1)


def test_the_reserve_of_another_core_of_the_device_is_used_first(new_place: Callable[..., Place]) -> None:
    place = new_place(total=3 * GRANULE_BYTES)
    place.runtime.allocate(0, 1)
    place.runtime.allocate(1, 3 * GRANULE_BYTES - 1)
    assert place.client.used == place.client.total


def test_a_full_device_is_reported_as_the_real_runtime_does(
    new_place: Callable[..., Place], capsys: pytest.CaptureFixture[str]
) -> None:
    place = new_place(total=100 * MIB)
    place.runtime.allocate(0, 90 * MIB)
    with pytest.raises(NrtError) as caught:
        place.runtime.allocate(1, 20 * MIB)
    assert caught.value.status == NrtStatus.NRT_RESOURCE
    assert str(caught.value) == 'nrt_tensor_allocate status=4 message="Allocation Failure"'
    assert (
        f"has {100 * MIB} bytes, {90 * MIB} are in use and {20 * MIB} more are needed" in caught.value.remedy
    )
    assert (
        f"neuron:mc_alloc: device mempool [0:0] total {100 * MIB} occupied {90 * MIB} needed {20 * MIB} "
        f"available {10 * MIB}" in capsys.readouterr().err
    )
    assert place.runtime.memory_info(1).used_bytes == 0
    place.runtime.free(0, 90 * MIB)
    place.runtime.allocate(1, 20 * MIB)


@pytest.mark.parametrize(("nc", "nbytes"), [(0, -1), (2, 1), (-1, 1)])
def test_invalid_input_is_refused(place: Place, nc: int, nbytes: int) -> None:
    with pytest.raises(NrtError) as caught:
        place.runtime.allocate(nc, nbytes)
    assert caught.value.status == NrtStatus.NRT_INVALID


def test_more_than_was_taken_is_not_given_back(place: Place) -> None:
    place.runtime.allocate(0, 10)
    with pytest.raises(NrtError, match="status=2") as caught:
        place.runtime.free(0, 11)
    assert "11 bytes of tensors to free on nc0, 10 in use" in caught.value.remedy
    with pytest.raises(NrtError):
        place.runtime.free(0, 10, MemoryCategory.CONSTANTS)


def test_without_a_daemon_the_job_goes_on_and_asks_for_the_sum_later(place: Place) -> None:
    place.client.down = True
    place.runtime.allocate(0, BIG_BYTES)
    assert place.runtime.memory_info(0).used_bytes == BIG_BYTES
    place.client.down = False
    place.runtime.allocate(0, 100)
    assert place.client.used == BIG_BYTES + 100
    place.client.down = True
    place.runtime.free(0, BIG_BYTES)
    place.client.down = False
    place.runtime.free(0, 100)
    assert place.client.used == GRANULE_BYTES


@pytest.mark.parametrize("heard", [True, False])
def test_a_lost_answer_leaves_no_wrong_reservation(place: Place, heard: bool) -> None:
    place.runtime.allocate(0, 10 * BIG_BYTES)
    place.client.loses_answers, place.client.down = heard, not heard
    place.runtime.free(0, 4 * BIG_BYTES)
    place.runtime.free(0, 1 * BIG_BYTES)
    place.client.loses_answers = place.client.down = False
    place.runtime.free(0, 1 * BIG_BYTES)
    place.runtime.allocate(0, 3 * BIG_BYTES)
    place.client.loses_answers, place.client.down = heard, not heard
    place.runtime.allocate(0, 6 * BIG_BYTES)
    place.runtime.allocate(0, 2 * BIG_BYTES)
    place.client.loses_answers = place.client.down = False
    place.runtime.allocate(0, 1)
    used = place.runtime.memory_info(0).used_bytes
    assert used == 15 * BIG_BYTES + 1
    assert used <= place.client.used <= used + 2 * BIG_BYTES
    value = place.page.read(0)
    assert value is not None
    assert value.reserved_bytes[0] == place.client.used


def test_a_daemon_that_hangs_is_left_alone_for_a_while(place: Place) -> None:
    asked = []

    def hang(core: int, total_bytes: int) -> None:
        asked.append(total_bytes)
        time.sleep(1.5 * SLOW_NS / 1e9)
        raise SilentDaemonError("no answer")

    place.client.reserve = hang  # type: ignore[method-assign]
    for _ in range(5):
        place.runtime.allocate(0, GRANULE_BYTES)
    assert len(asked) < 5
    assert place.runtime.memory_info(0).used_bytes == 5 * GRANULE_BYTES


def test_a_tensor_freed_by_the_garbage_collector_inside_an_allocation(place: Place) -> None:
    class Tensor:
        def __init__(self) -> None:
            place.runtime.allocate(0, 100)
            self.cycle = self

        def __del__(self) -> None:
            place.runtime.free(0, 100)

    Tensor()
    reserve = place.client.reserve

    def collect_first(core: int, total_bytes: int) -> None:
        gc.collect()
        reserve(core, total_bytes)

    place.client.reserve = collect_first  # type: ignore[method-assign]
    place.runtime.allocate(0, GRANULE_BYTES)
    assert place.runtime.memory_info(0).used_bytes == GRANULE_BYTES


def test_threads_that_allocate_and_free_lose_nothing(place: Place) -> None:
    def work(nc: int) -> None:
        for size in range(1, 400):
            place.runtime.allocate(nc, size * 1000)
            place.runtime.free(nc, size * 1000 - 1)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [place.runtime.memory_info(nc).used_bytes for nc in (0, 1)] == [2 * 399] * 2


step = st.tuples(
    st.booleans(), st.integers(0, 1), st.sampled_from(tuple(MemoryCategory)), st.integers(0, 300 * MIB)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(steps=st.lists(step, max_size=40))
def test_what_is_in_use_is_always_reserved(
    new_place: Callable[..., Place], steps: list[tuple[bool, int, MemoryCategory, int]]
) -> None:
    place = new_place()
    used = {(nc, category): 0 for nc in (0, 1) for category in MemoryCategory}
    for takes, nc, category, nbytes in steps:
        if takes:
            fits = sum(used.values()) + nbytes <= place.client.total
            with nullcontext() if fits else pytest.raises(NrtError, match="Allocation Failure"):
                place.runtime.allocate(nc, nbytes, category)
            used[nc, category] += nbytes if fits else 0
        else:
            freed = min(nbytes, used[nc, category])
            place.runtime.free(nc, freed, category)
            used[nc, category] -= freed
        value = place.page.read(0)
        assert value is not None
        assert sum(value.reserved_bytes) == place.client.used <= place.client.total
        for core in (0, 1):
            total = sum(size for (where, _), size in used.items() if where == core)
            assert place.runtime.memory_info(core).used_bytes == total <= value.reserved_bytes[core]
            assert value.cores[core].memory.total_bytes == total
            assert place.runtime.memory_info(core).peak_bytes >= total
