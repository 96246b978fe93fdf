"""Snapshots for the dashboard's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreUse,
    DeviceState,
    MemoryUse,
    ProcessState,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND_NS = 10**9


def process_at(
    pid: int,
    *,
    busy_ns: int = 0,
    statuses: tuple[tuple[int, int], ...] = (),
    bucket: int = 20,
    cores: tuple[int, ...] = (0,),
    command: str = "python train.py",
) -> ProcessState:
    done = sum(count for _, count in statuses)
    histogram = tuple(done if index == bucket else 0 for index in range(LATENCY_BUCKETS))
    uses = tuple(
        CoreUse(
            core,
            busy_ns,
            done if core == cores[0] else 0,
            0,
            0,
            executing=False,
            memory=MemoryUse(tensors=100),
        )
        for core in cores
    )
    return ProcessState(
        pid, 1, 0, command, "", "2.0", "live", True, uses, MemoryUse(), (), statuses, histogram, pid
    )


@pytest.fixture(name="process_at")
def _process_at() -> Callable[..., ProcessState]:
    return process_at


@pytest.fixture
def machine_at() -> Callable[..., Snapshot]:
    """A snapshot of two devices with two cores each, so many seconds after the first."""
    devices = tuple(
        DeviceState(index, "", "", "-1", (1 - index,), (2 * index, 2 * index + 1), 1000, 0)
        for index in range(2)
    )
    start = Snapshot("m", "sim", "trn1.32xlarge", "i-0", 1, False, "v2", 0, 100.0, 0.0, devices, ())

    def at(second: float, *processes: ProcessState, **changes: object) -> Snapshot:
        when = {"taken_ns": int(second * SECOND_NS), "taken_unix_s": 100.0 + second}
        return replace(start, processes=processes, **when, **changes)  # type: ignore[arg-type]

    return at
