"""The tape: every moment comes back as it was, and it never takes more room than it may."""

from __future__ import annotations

import io
import random
import tempfile
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.dashboard.snapshot_history import (
    RUN,
    BlockReader,
    SnapshotHistory,
    TimedSnapshot,
    pack,
    unpack,
)
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreUse,
    DeviceState,
    MemoryUse,
    ProcessState,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECOND_NS = 1_000_000_000


@pytest.fixture
def made_tape() -> Iterator[Callable[..., SnapshotHistory]]:
    """Makes tapes and closes them at the end."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(
            closing(SnapshotHistory(*arguments, **options))
        )


def moments(count: int, cores: int = 4, seed: int = 0, step_ns: int = SECOND_NS) -> list[TimedSnapshot]:
    """A machine whose processes come, work and go at random."""
    chance = random.Random(seed)
    processes: dict[int, ProcessState] = {}
    made = []
    for number in range(count):
        if len(processes) < 5 and chance.random() < 0.2:
            pid = number + 1
            uses = tuple(CoreUse(core, 0, 0, 0, 0, False, MemoryUse()) for core in range(cores))
            processes[pid] = ProcessState(
                pid,
                pid,
                0,
                "train",
                "",
                "2",
                "live",
                True,
                uses,
                MemoryUse(),
                (),
                (),
                (0,) * LATENCY_BUCKETS,
                pid,
            )
        if processes and chance.random() < 0.1:
            processes.pop(chance.choice(list(processes)))
        for pid, process in list(processes.items()):
            uses = tuple(
                replace(use, busy_ns=use.busy_ns + chance.randrange(SECOND_NS), executions=use.executions + 1)
                for use in process.cores
            )
            processes[pid] = replace(process, cores=uses)
        device = DeviceState(0, "", "", "0", None, tuple(range(cores)), 1 << 30, number)
        snapshot = Snapshot(
            "m",
            "sim",
            "trn1",
            "i",
            1,
            False,
            "v2",
            number * step_ns,
            float(number),
            0.0,
            (device,),
            tuple(processes.values()),
        )
        cpu = HostSample(8.0 * number, CpuTimes(1.0 * number, 0.5), (((1, 2), CpuTimes(0.25, 0.5)),))
        made.append(TimedSnapshot(snapshot, cpu if number % 3 else None))
    return made


@settings(max_examples=15)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 1000), st.randoms())
def test_every_moment_comes_back_as_it_was_in_any_order(count, block, seed, order):
    numbers = list(range(count))
    order.shuffle(numbers)  # this may end an example, so no file is open yet
    tape = SnapshotHistory(block_size=block)
    made = moments(count, seed=seed)
    for moment in made:
        assert tape.add(moment)
    for number in numbers:
        assert tape.snapshot(number) == made[number]
        assert tape.time_ns(number) == made[number].snapshot.taken_ns
    assert (tape.first, tape.end, len(tape)) == (0, count, count)
    tape.close()


def test_a_snapshot_is_found_by_its_time(made_tape):
    tape = made_tape(block_size=4)
    for moment in moments(10):
        tape.add(moment)
    assert [tape.at(time_ns) for time_ns in (-5, 0, SECOND_NS - 1, 7 * SECOND_NS, 99 * SECOND_NS)] == [
        0,
        0,
        0,
        7,
        9,
    ]


def test_it_keeps_to_its_room_and_forgets_the_oldest(made_tape):
    tape = made_tape(disk_bytes=40_000, block_size=5)
    made = moments(1000)
    for moment in made:
        tape.add(moment)
        assert tape.nbytes < 60_000
    assert tape.first > 0
    assert tape.end == 1000
    for number in (tape.first, tape.first + 3, 999):
        assert tape.snapshot(number) == made[number]
    for number in (tape.first - 1, 1000, 0):
        with pytest.raises(IndexError):
            tape.snapshot(number)
        with pytest.raises(IndexError):
            tape.time_ns(number)


def test_without_a_disk_it_stays_in_memory_and_is_as_bounded(made_tape, monkeypatch):
    def no_room(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    tape = made_tape(memory_bytes=40_000, block_size=5)
    made = moments(500)
    for moment in made:
        tape.add(moment)
    assert tape.nbytes < 60_000
    assert tape.snapshot(499) == made[499]
    assert tape.snapshot(tape.first) == made[tape.first]


def test_a_disk_that_fills_up_loses_nothing(made_tape, monkeypatch):
    tape = made_tape(block_size=5)
    made = moments(40)
    for moment in made[:20]:
        tape.add(moment)
    files = tape._store._files

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, _):
            raise OSError(28, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    files[-1] = Full(files[-1])
    for moment in made[20:]:
        tape.add(moment)
    assert isinstance(files[-1], io.BytesIO)
    assert [tape.snapshot(number) for number in range(40)] == made


def test_moments_that_come_too_soon_are_left_out(made_tape):
    tape = made_tape(SECOND_NS // 2)
    kept = [tape.add(moment) for moment in moments(12, step_ns=SECOND_NS // 10)]
    assert [number for number, was in enumerate(kept) if was] == [0, 5, 10]


def test_a_clock_that_goes_back_is_a_new_machine_and_kept(made_tape):
    tape = made_tape(SECOND_NS)
    made = moments(3)
    for moment in (made[2], made[0], made[1]):
        assert tape.add(moment)
    assert tape.snapshot(1) == made[0]


@settings(max_examples=15)
@given(st.integers(1, 60), st.lists(st.integers(0, 59), min_size=1, max_size=12))
def test_looking_back_keeps_only_some_moments_of_a_block_unpacked(count, places):
    made = moments(count)
    pieces = [pack(moment, made[at - 1] if at else None) for at, moment in enumerate(made)]
    reading = BlockReader()
    for place in [place % count for place in places]:
        assert reading.unpack(place, pieces) == made[place]
        assert reading.get(place) == made[place]
        assert len(reading) <= -(-count // RUN) + RUN


def test_a_step_back_unpacks_a_short_run_and_not_the_whole_block(monkeypatch):
    made = moments(60)
    pieces = [pack(moment, made[at - 1] if at else None) for at, moment in enumerate(made)]
    reading = BlockReader()
    reading.unpack(59, pieces)
    unpacking = []
    monkeypatch.setattr(
        "neurontools.dashboard.snapshot_history.unpack",
        lambda piece, before: unpacking.append(piece) or unpack(piece, before),
    )
    for place in range(58, 47, -1):
        assert (reading.get(place) or reading.unpack(place, pieces)) == made[place]
    assert len(unpacking) == RUN - 1
