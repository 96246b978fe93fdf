"""Who waits for whom within an execution, which of its events decide how long it takes, and the details of an event.

As for critical paths, the schedule of a program is made anew from the graph in its NEFF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neurontools.base import units
from neurontools.base.text import short_operator
from neurontools.compiler.engines.estimate import cost_of, row_groups
from neurontools.errors import NeuronToolsError
from neurontools.profiler.analysis.programs import core_of, read_neff, schedule_of
from neurontools.profiler.capture.format import CLOCKS, NO_CORE, ProfileError, Track
from neurontools.profiler.trace.rows import NO_EVENT

if TYPE_CHECKING:
    from collections.abc import Container

    from neurontools.compiler.engines.schedule import Schedule
    from neurontools.compiler.neff import Neff
    from neurontools.profiler.trace.intervals import Mask
    from neurontools.profiler.trace.trace import Trace, TraceEvent

_SAME_START = 64
_LISTED = 4


class PlaceLink(NamedTuple):
    """Another row of a schedule, and the delay that the earlier one could have without effect on the later one."""

    place: int
    slack_ns: int


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """The order of the rows of a program's schedule, by their places in it.

    Args:
        earlier: what a row follows, the tightest first.
        later: what follows it, the tightest first.
        decides: what a row waited for last, -1 for nothing.
        path: the rows on the critical path.
        slack_ns: how much later a row could end without a later end of the execution.
    """

    earlier: tuple[tuple[PlaceLink, ...], ...]
    later: tuple[tuple[PlaceLink, ...], ...]
    decides: tuple[int, ...]
    path: frozenset[int]
    slack_ns: tuple[int, ...]


class EventLink(NamedTuple):
    """Another event of the same execution; `slack_ns` as in `PlaceLink`."""

    event: int
    slack_ns: int
    decides: bool


@dataclass(frozen=True, slots=True, eq=False)
class EventOrder:
    """The place of an event in its execution.

    Args:
        earlier: what it waited for: first what it waited for last.
        later: what waits for it, the tightest first.
        is_critical: whether it is on the critical path.
        slack_ns: how much later it could end without a later end of the execution.
        path: by action of the trace, whether it is on the critical path of the program.
    """

    earlier: tuple[EventLink, ...]
    later: tuple[EventLink, ...]
    is_critical: bool
    slack_ns: int
    path: Mask


class Dependencies:
    """The orders of a profile's programs, each read once.

    Args:
        trace: the profile.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._orders: dict[str, ProgramOrder | NeuronToolsError] = {}

    def program_of(self, event: int) -> str:
        """Return the hash of the NEFF that has an event in its schedule, empty for other events."""
        traced = self._trace.event(event)
        return self._trace.models[traced.model].neff_hash if traced.action.place >= 0 else ""

    def is_read(self, neff_hash: str) -> bool:
        """Return whether a program was read."""
        return neff_hash in self._orders

    def read(self, neff_hash: str) -> None:
        """Read the order of a program, or the error; for a program of many operators this takes a second."""
        try:
            neff = read_neff(self._trace, neff_hash)
            self._orders[neff_hash] = program_order(neff)
        except NeuronToolsError as error:
            self._orders[neff_hash] = error
        except (ValueError, LookupError) as error:  # a graph that the compiler would not have made
            self._orders[neff_hash] = ProfileError(
                f"the graph in the NEFF has no schedule: {error}", "compile the program again"
            )

    def of_event(self, event: int) -> EventOrder:
        """Return the place of an event of a program that was read.

        Raises:
            NeuronToolsError: the program has no order.
        """
        order = self._orders[self.program_of(event)]
        if isinstance(order, NeuronToolsError):
            raise order
        traced = self._trace.event(event)
        place = traced.action.place
        at = np.array([traced.number - traced.row.first], dtype=np.int64)
        base = int(traced.row.events.at(at).action[0]) - place
        decider = order.decides[place]
        earlier = sorted(order.earlier[place], key=lambda link: link.place != decider)
        path: Mask = np.zeros(len(self._trace.actions), dtype=bool)
        path[[base + each for each in order.path]] = True
        return EventOrder(
            self._links(traced, base, earlier, decider),
            self._links(traced, base, order.later[place]),
            place in order.path,
            order.slack_ns[place],
            path,
        )

    def _links(
        self, event: TraceEvent, base: int, links: list[PlaceLink] | tuple[PlaceLink, ...], decider: int = -1
    ) -> tuple[EventLink, ...]:
        places = ((_sibling(self._trace, event, base, link.place), link) for link in links)
        return tuple(
            EventLink(number, link.slack_ns, link.place == decider)
            for number, link in places
            if number != NO_EVENT
        )


def order_details(trace: Trace, order: EventOrder) -> tuple[tuple[str, str], ...]:
    """Return names and values of an event's place in its execution as text."""
    late = f"may end {units.format_ns(order.slack_ns)} later"
    details = [("critical path", "on it" if order.is_critical else f"no, {late}")]
    for name, links, word in (
        ("waited for", order.earlier, "early"),
        ("waits for it", order.later, "later"),
    ):
        for number, link in enumerate(links[:_LISTED]):
            event = trace.event(link.event)
            slack = f", {units.format_ns(link.slack_ns)} {word}" if link.slack_ns else ""
            text = f"{short_operator(event.action.title)} on {event.row.name}"
            details.append(("" if number else name, text + (", last" if link.decides else slack)))
        if not links:
            details.append((name, "nothing"))
        if len(links) > _LISTED:
            details.append(("", f"and {len(links) - _LISTED} more"))
    return tuple(details)


def program_order(neff: Neff) -> ProgramOrder:
    """Return the order of a program.

    Raises:
        ProfileError: the NEFF's schedule is that of another cost model.
        CompileError: it was compiled for an unknown device.
    """
    machine = core_of(neff)
    schedule = schedule_of(neff, machine)
    if cost_of(schedule, machine, neff.graph).rows != neff.cost.rows:
        raise ProfileError(
            "the schedule in the NEFF is that of another version of the cost model",
            "compile the program again",
        )
    groups = row_groups(schedule)
    # A product has a row for its transposes before its own.
    last = {group: place for place, group in enumerate(groups)}
    slack_ns = schedule.slack_ns()
    on_path = frozenset(schedule.critical_path())
    before = _earlier_groups(schedule, last)
    earlier: list[list[PlaceLink]] = []
    later: list[list[PlaceLink]] = [[] for _ in groups]
    decides: list[int] = []
    for place, group in enumerate(groups):
        if place and groups[place - 1] == group:
            links, decider = {place - 1: 0}, place - 1
        else:
            links = {last[other]: slack for other, slack in before[group].items()}
            decider = last.get(_decider(schedule, group, last), -1)
            if decider >= 0:
                # A transfer may wait for room in SBUF besides its operands.
                links.setdefault(decider, 0)
        for other, slack in links.items():
            later[other].append(PlaceLink(place, slack))
        earlier.append([PlaceLink(other, slack) for other, slack in links.items()])
        decides.append(decider)
    return ProgramOrder(
        tuple(map(_tightest_first, earlier)),
        tuple(map(_tightest_first, later)),
        tuple(decides),
        frozenset(place for place, group in enumerate(groups) if group in on_path),
        tuple(max(0, round(slack_ns[group])) for group in groups),
    )


def _tightest_first(links: list[PlaceLink]) -> tuple[PlaceLink, ...]:
    return tuple(sorted(links, key=lambda link: (link.slack_ns, link.place)))


def _earlier_groups(schedule: Schedule, shown: Container[int]) -> dict[int, dict[int, int]]:
    """Return by group with a row the groups with rows that it follows, with the slack; others only pass waits on."""
    passed: dict[int, dict[int, int]] = {}
    earlier_groups: dict[int, dict[int, int]] = {}
    for number, group in enumerate(schedule.groups):
        links: dict[int, int] = {}
        for earlier, margin in group.waits:
            slack = round(min(margin, schedule.end_ns))
            sources = {earlier: 0} if earlier in shown else passed[earlier]
            for source, more in sources.items():
                links[source] = min(slack + more, links.get(source, slack + more))
        (earlier_groups if number in shown else passed)[number] = links
    return earlier_groups


def _decider(schedule: Schedule, group: int, shown: Container[int]) -> int:
    """Return the group with a row that a group waited for last, -1 for none."""
    number = schedule.groups[group].after
    while number >= 0 and number not in shown:
        number = schedule.groups[number].after
    return number


def _sibling(trace: Trace, event: TraceEvent, base: int, place: int) -> int:
    """Return the event at another place of the program in the same execution, NO_EVENT if it is left out."""
    action = trace.actions[base + place]
    program = trace.programs[trace.models[event.model].neff_hash]
    assert program is not None
    starts = [program.operations[each].start_ns for each in (event.action.place, place)]
    start = event.start + starts[1] - starts[0]
    for row in trace.rows:
        if (row.process, row.nc, row.track) == (event.row.process, event.row.nc, action.track):
            first = int(row.events.first_from(np.array([start], dtype=np.int64))[0])
            block = row.events.block(first, min(first + _SAME_START, row.events.count))
            hits = np.flatnonzero((block.start == start) & (block.action == base + place))
            return row.first + first + int(hits[0]) if len(hits) else NO_EVENT
    return NO_EVENT


def event_details(trace: Trace, event: int) -> tuple[tuple[str, str], ...]:
    """Return names and values of an event as text, without empty ones."""
    found = trace.event(event)
    row, action, start, duration = found.row, found.action, found.start, found.duration
    model = trace.models[found.model] if row.nc != NO_CORE else None
    seconds = duration / 1e9
    moved = action.read_bytes + action.write_bytes
    fields = (
        ("name", action.name),
        ("opcode", action.opcode),
        ("engine", "" if row.track.measured else row.track.label),
        ("start", f"{units.format_ns(start)} ({start} ns after the first event)"),
        ("duration", f"{units.format_ns(duration)} ({duration} ns)"),
        ("clock", CLOCKS["wall" if row.track.measured else "device"]),
        ("queue", action.queue_name),
        ("shape", action.shape),
        ("source", action.source),
        *(("called in", frame) for frame in action.stack),
        ("flops", _rate_text(action.flops, seconds, "flop/s")),
        ("read", f"{action.read_bytes} B" if action.read_bytes else ""),
        ("written", f"{action.write_bytes} B" if action.write_bytes else ""),
        ("throughput", f"{units.format_count(moved / seconds)}B/s" if moved and seconds else ""),
        ("gap before", _gap_before(trace, found)),
        ("model", f"{model.name} (id {model.model_id}, NEFF {model.neff_hash})" if model else ""),
        ("execution", str(found.execution) if model else ""),
        ("CPU" if row.track is Track.CPU else "bytes", _value_text(found)),
        ("status", str(found.status) if found.status else ""),
        (
            "process",
            row.process_label
            + ("" if row.nc == NO_CORE else f", NC{row.nc} (core {row.core} of the machine)"),
        ),
    )
    return tuple((name, value) for name, value in fields if value)


def _value_text(event: TraceEvent) -> str:
    if event.row.track is Track.CPU:
        return f"{event.value} % of all CPUs"
    return f"{event.value} B" if event.value else ""


def _rate_text(amount: int, seconds: float, unit: str) -> str:
    if not amount:
        return ""
    return f"{amount} ({units.format_count(amount / seconds)}{unit})" if seconds else str(amount)


def _gap_before(trace: Trace, event: TraceEvent) -> str:
    if event.number == event.row.first:
        return ""
    before = trace.event(event.number - 1)
    gap = event.start - before.start - before.duration
    return (
        f"{units.format_ns(gap)} after {before.action.title}"
        if gap >= 0
        else f"overlaps {before.action.title}"
    )
