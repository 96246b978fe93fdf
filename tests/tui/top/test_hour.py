"""An hour at ten updates a second, quickly: nothing that neuron-top keeps may grow with time."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from neurontools.dashboard.monitor import KEPT, MachineMonitor
from neurontools.dashboard.snapshot_history import SnapshotHistory
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreUse,
    DeviceState,
    MemoryUse,
    ProcessState,
    Snapshot,
)
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.pages.registry import make_pages
from neurontools.tui.top.playback import SHORTEST_TAPED_NS, PlaybackController
from neurontools.tui.top.source import TimedSnapshot

if TYPE_CHECKING:
    from neurontools.tui.widgets.lines import Line

TICK_NS = 100_000_000
TICKS = 36_000
CORES = 4
ROOM_BYTES = 400_000


def snapshot_at(number: int) -> Snapshot:
    """A machine on which every core works, and a new process takes over every minute, with failures and ECC errors."""
    uses = tuple(
        CoreUse(
            core,
            number * (10_000_000 + core * 1_000_000),
            number,
            number * 10**9,
            0,
            number % 2 == 0,
            MemoryUse(),
        )
        for core in range(CORES)
    )
    generation = number // 600
    process = ProcessState(
        1000 + generation,
        generation,
        0,
        f"train {generation}",
        f"job-{generation}",
        "2",
        "recorded",
        True,
        uses,
        MemoryUse(tensors=number),
        (),
        ((0, number), (1005, number // 50)),
        (number, *(0,) * (LATENCY_BUCKETS - 1)),
        0,
    )
    device = DeviceState(0, "", "", "0", None, tuple(range(CORES)), 1 << 40, number)
    device = replace(device, hardware=replace(device.hardware, mem_ecc_corrected=number // 100))
    return Snapshot(
        "m",
        "sim",
        "trn1.2xlarge",
        "i-0",
        1,
        False,
        "v2",
        number * TICK_NS,
        1.78e9 + number / 10,
        5.0,
        (device,),
        (process,),
    )


def test_an_hour_at_ten_hertz_does_not_grow() -> None:
    model = TopModel(monitor=MachineMonitor())
    tape = SnapshotHistory(SHORTEST_TAPED_NS, disk_bytes=ROOM_BYTES)
    playback = PlaybackController(model, tape)
    pages = make_pages()
    drawn: list[Line] = []
    sizes: list[tuple[int, int]] = []
    for number in range(TICKS):
        playback.take(TimedSnapshot(snapshot_at(number), None))
        if number % 1000 == 0:
            for page in pages:
                drawn = [*page.lines(model, 120, 40)]
        if number in {TICKS // 3, TICKS - 1}:
            gc.collect()
            sizes.append((len(gc.get_objects()), psutil.Process().memory_info().rss))
    assert drawn
    (objects, resident_bytes), (objects_at_end, resident_bytes_at_end) = sizes
    assert objects_at_end - objects < 3000
    assert resident_bytes_at_end - resident_bytes < 8 << 20
    assert tape.nbytes < 1.5 * ROOM_BYTES
    assert tape.first > 0
    assert len(model.monitor.events) <= KEPT
    tape.close()
