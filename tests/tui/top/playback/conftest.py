"""Moments of a small machine for tests about time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreUse,
    DeviceState,
    MemoryUse,
    ProcessState,
    Snapshot,
)
from neurontools.tui.top.source import TimedSnapshot

SECOND_NS = 1_000_000_000
MakeTick = Callable[..., TimedSnapshot]


@pytest.fixture
def tick_at() -> MakeTick:
    """A machine of one device at a second: its two cores are busy for `second` percent of each second before."""

    def make(second: float, started_unix_s: float = 5.0, cores: int = 2) -> TimedSnapshot:
        # The sum over the seconds so far, so that the rate between two of them is that of the later one.
        busy_ns = round(SECOND_NS * second * (second + 1) / 200)
        use = tuple(CoreUse(core, busy_ns, int(second), 0, 0, False, MemoryUse()) for core in range(cores))
        process = ProcessState(
            1,
            1,
            0,
            "train",
            "job",
            "2",
            "recorded",
            True,
            use,
            MemoryUse(),
            (),
            (),
            (0,) * LATENCY_BUCKETS,
            0,
        )
        device = DeviceState(0, "", "", "0", None, tuple(range(cores)), 1 << 30, 0)
        return TimedSnapshot(
            Snapshot(
                "m",
                "sim",
                "trn1.2xlarge",
                "i-0",
                1,
                False,
                "v2",
                round(second * SECOND_NS),
                1_780_000_000.0 + second,
                started_unix_s,
                (device,),
                (process,),
            ),
            None,
        )

    return make
