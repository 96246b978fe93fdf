"""Events between two snapshots of a machine: processes that started or ended, failed executions, memory errors."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from neurontools.machine.machine_view import process_key
from neurontools.machine.snapshot import HardwareCounter
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neurontools.machine.snapshot import DeviceState, HardwareCounters, ProcessState, Snapshot


class MachineEventKind(StrEnum):
    """The kind of an event."""

    STARTED = "started"
    ENDED = "ended"
    FAILED = "failed"
    ECC = "ecc"
    LOST = "lost"
    FOUND = "found"
    LINK_DOWN = "link-down"
    LINK_UP = "link-up"
    NO_DATA = "no-data"
    DATA = "data"
    ALERT = "alert"
    ALERT_OVER = "alert-over"


_COUNTED = frozenset({MachineEventKind.FAILED, MachineEventKind.ECC})
SAME_S = 10.0
"""Equal counted events within this many seconds are merged."""

PROBLEMS = frozenset(
    {
        MachineEventKind.FAILED,
        MachineEventKind.ECC,
        MachineEventKind.LOST,
        MachineEventKind.LINK_DOWN,
        MachineEventKind.NO_DATA,
        MachineEventKind.ALERT,
    }
)


class MachineEvent(Struct, frozen=True):
    """An event, seen at `unix_s`.

    `pid` is None for events of devices, `device` None for events of processes; a link is between `device` and `peer`.
    `count` is how often it happened since the previous snapshot, `counter` the kind of memory error. `what` is the text
    without the count.
    """

    unix_s: float
    kind: MachineEventKind
    what: str
    pid: int | None = None
    device: int | None = None
    peer: int | None = None
    count: int = 1
    counter: HardwareCounter | None = None

    @property
    def text(self) -> str:
        """The text of the event, with its count."""
        if self.kind is MachineEventKind.ECC:
            return f"{self.what} +{self.count}"
        return self.what if self.count == 1 else f"{self.what} ({self.count} times)"

    def again(self, newer: MachineEvent) -> MachineEvent | None:
        """Merge two equal events at most `SAME_S` apart into one at the newer time; None if they differ."""
        same = (self.kind, self.what, self.pid, self.device) == (
            newer.kind,
            newer.what,
            newer.pid,
            newer.device,
        )
        if self.kind not in _COUNTED or not same or not 0 <= newer.unix_s - self.unix_s <= SAME_S:
            return None
        return replace(newer, count=self.count + newer.count)


def find_events(before: Snapshot, after: Snapshot) -> tuple[MachineEvent, ...]:
    """Return the events between two snapshots of the same machine."""
    return (*_of_processes(before, after), *_of_devices(before, after))


def _of_processes(before: Snapshot, after: Snapshot) -> Iterator[MachineEvent]:
    earlier = {process_key(process): process for process in before.processes if process.uses_device}
    later = {process_key(process): process for process in after.processes if process.uses_device}
    when = after.taken_unix_s
    for key, process in earlier.items():
        if key not in later:
            yield MachineEvent(
                when, MachineEventKind.ENDED, f"process {process.pid} ended: {_what(process)}", process.pid
            )
    for key, process in later.items():
        start = earlier.get(key)
        if start is None:
            yield MachineEvent(
                when,
                MachineEventKind.STARTED,
                f"process {process.pid} started: {_what(process)}",
                process.pid,
            )
        if start is None or process.status_counts is not start.status_counts:
            yield from _failures(start, process, when)


def _failures(before: ProcessState | None, after: ProcessState, when: float) -> Iterator[MachineEvent]:
    earlier = dict(before.status_counts) if before else {}
    for status, count in after.status_counts:
        more = count - earlier.get(status, 0)
        if status and more > 0:
            text = f"process {after.pid}: {_status(status)}"
            yield MachineEvent(when, MachineEventKind.FAILED, text, after.pid, count=more)


def _of_devices(before: Snapshot, after: Snapshot) -> Iterator[MachineEvent]:
    earlier = {device.index: device for device in before.devices}
    when = after.taken_unix_s
    for device in after.devices:
        start = earlier.get(device.index)
        if start is None or start is device or start == device:
            continue
        if device.lost != start.lost:
            kind, what = (MachineEventKind.LOST, "lost") if device.lost else (MachineEventKind.FOUND, "back")
            yield MachineEvent(when, kind, f"ND{device.index} is {what}", device=device.index)
        yield from _links(start, device, when)
        yield from _memory_errors(start.hardware, device.hardware, device.index, when)


def _links(before: DeviceState, after: DeviceState, when: float) -> Iterator[MachineEvent]:
    # A link breaks at both ends; it is reported once, at the lower one.
    for peer in sorted(set(before.links_down) ^ set(after.links_down)):
        if peer > after.index:
            down = peer in after.links_down
            kind, what = (MachineEventKind.LINK_DOWN, "down") if down else (MachineEventKind.LINK_UP, "up")
            text = f"link ND{after.index} to ND{peer} is {what}"
            yield MachineEvent(when, kind, text, device=after.index, peer=peer)


def _memory_errors(
    before: HardwareCounters, after: HardwareCounters, device: int, when: float
) -> Iterator[MachineEvent]:
    for counter in HardwareCounter:
        more = getattr(after, counter) - getattr(before, counter)
        if more > 0:
            text = f"ND{device}: {counter}"
            yield MachineEvent(when, MachineEventKind.ECC, text, device=device, count=more, counter=counter)


def _what(process: ProcessState) -> str:
    return process.tag or process.command


def _status(number: int) -> str:
    try:
        return f"{NrtStatus(number).name} ({number})"
    except ValueError:
        return f"NRT status {number}"


FOLDED_S = 10.0
"""Like events at most this many seconds apart are one line."""

_NUMBER = re.compile(r"\d+")
_FEWEST = 2
_MOST_LISTED = 4


class FoldedEvents(Struct, frozen=True):
    """Events of one kind whose texts differ in numbers only, newest first."""

    events: tuple[MachineEvent, ...]

    @property
    def newest(self) -> MachineEvent:
        """The last of them."""
        return self.events[0]

    @property
    def text(self) -> str:
        """The text of the event, or of all together with their number."""
        newest = self.newest
        if len(self.events) < _FEWEST:
            return newest.text
        what = _merge_numbers([event.what for event in reversed(self.events)])
        subject, _, rest = what.partition(": ")
        if newest.kind in {MachineEventKind.STARTED, MachineEventKind.ENDED}:
            pids = sorted(event.pid for event in self.events if event.pid is not None)
            span = f", pids {pids[0]} to {pids[-1]}" if pids else ""
            return f"{rest or subject} x{len(self.events)} {newest.kind}{span}"
        count = sum(event.count for event in self.events)
        return f"{what} +{count}" if newest.kind is MachineEventKind.ECC else f"{what} ({count} times)"


def _merge_numbers(texts: list[str]) -> str:
    """Return one text for several that differ in numbers only: `link ND8 to ND9, 12 is down`, `rank0-31`."""
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    merged = iter([_merge(dict.fromkeys(column)) for column in numbers])
    return _NUMBER.sub(lambda _: next(merged), texts[0])


def _merge(numbers: dict[str, None]) -> str:
    if len(numbers) <= _MOST_LISTED:
        return ", ".join(sorted(numbers, key=int))
    ordered = sorted(map(int, numbers))
    return f"{ordered[0]}-{ordered[-1]}"


def fold(events: Iterable[MachineEvent]) -> tuple[FoldedEvents, ...]:
    """Return events, newest first, with runs of like ones as one."""
    runs: list[list[MachineEvent]] = []
    patterns: list[tuple[MachineEventKind, str]] = []
    for event in events:
        pattern = (event.kind, _NUMBER.sub("#", event.what))
        if runs and pattern == patterns[-1] and 0 <= runs[-1][-1].unix_s - event.unix_s <= FOLDED_S:
            runs[-1].append(event)
        else:
            runs.append([event])
            patterns.append(pattern)
    return tuple(FoldedEvents(tuple(run)) for run in runs)
