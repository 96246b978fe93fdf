"""Totals of a cache by state, layout and compiler, and hits, misses and waits by run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, table, wrap_field
from neurontools.base.units import format_size, format_time
from neurontools.cache.entry_files import FilesInspector, State
from neurontools.cache.events import Events, LookupEventKind, Usage, UsageTotals
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.listing import skipped_notes
from neurontools.cache.lock_owner import Liveness
from neurontools.cache.walk import Walk, exists, with_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.events import LookupEvent


@dataclass(frozen=True, slots=True)
class EntryTotals:
    """A group of entries. `active` are locked or loaded now; the others' bytes are reclaimable."""

    name: str
    count: int
    active: int
    size_bytes: int
    reclaimable_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals of a cache. `usage` counts this user's lookups, `recorded` sums the recorded events."""

    root: str
    states: tuple[EntryTotals, ...]
    layouts: tuple[EntryTotals, ...]
    compilers: tuple[EntryTotals, ...]
    total: EntryTotals
    skipped: int
    unread: int
    registry: int
    usage: UsageTotals
    recorded: RunStats


def collect_stats(
    found: Walk, in_use: Callable[[str], bool], on_read: Callable[[int, int], None] | None = None
) -> Stats:
    """Return the totals of a root.

    Args:
        found: the walk of the root.
        in_use: returns whether an entry (by path) is loaded by a process.
        on_read: called periodically with the number of entries read, and of all.
    """
    groups, lost = _groups(found, in_use, on_read)
    states = (_sum(state, (group for group in groups if group.state is state)) for state in State)
    layouts = (_sum(kind, (group for group in groups if group.layout is kind)) for kind in CacheLayout)
    compilers = (
        _sum(name or "unknown", (group for group in groups if group.compiler == name))
        for name in sorted({group.compiler for group in groups})
    )
    return Stats(
        root=found.root,
        states=tuple(group for group in states if group.count),
        layouts=tuple(group for group in layouts if group.count),
        compilers=tuple(compilers),
        total=_sum("total", groups),
        skipped=found.skipped,
        unread=len(found.unread) + lost,
        registry=len(found.registry),
        usage=Usage(found.root).totals(),
        recorded=sum_events(Events(found.root).read()),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The sizes of entries with the same state, layout and compiler."""

    state: State
    layout: CacheLayout
    compiler: str
    is_active: bool
    sizes: list[int]


def _groups(
    found: Walk, in_use: Callable[[str], bool], on_read: Callable[[int, int], None] | None
) -> tuple[list[_Group], int]:
    """Return the groups of a root's entries, and the number of unreadable entries."""
    sizes: defaultdict[tuple[State, CacheLayout, str, bool], list[int]] = defaultdict(list)
    inspector, lost = FilesInspector(found.tree), 0
    for place in with_progress(found.places, on_read):
        try:
            content = inspector.inspect(place)
        except OSError:
            lost += exists(found.tree, place.path)
            continue
        is_locked = content.lock is not None and content.lock.liveness is not Liveness.DEAD
        is_active = is_locked or in_use(place.path)
        sizes[content.state, place.layout, place.compiler, is_active].append(content.size_bytes)
    return [_Group(*key, sizes=group_sizes) for key, group_sizes in sizes.items()], lost


def _sum(name: str, groups: Iterable[_Group]) -> EntryTotals:
    members = list(groups)
    idle = [group.sizes for group in members if not group.is_active]
    count = sum(len(group.sizes) for group in members)
    return EntryTotals(
        name=name,
        count=count,
        active=count - sum(map(len, idle)),
        size_bytes=sum(sum(group.sizes) for group in members),
        reclaimable_bytes=sum(map(sum, idle)),
    )


@dataclass(slots=True)
class RunStats:
    """Totals of one run. `saved_s` is the recorded compile time of its hits."""

    name: str
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0
    hits: int = 0
    misses: int = 0
    waits: int = 0
    failures: int = 0
    replayed: int = 0
    damaged: int = 0
    saved_s: float = 0.0
    compiled_s: float = 0.0
    waited_s: float = 0.0

    def add(self, event: LookupEvent) -> None:
        """Count one event."""
        self.started_unix_s = self.started_unix_s or event.unix_s
        self.ended_unix_s = max(self.ended_unix_s, event.unix_s)
        match event.kind:
            case LookupEventKind.HIT:
                self.hits += 1
                self.saved_s += event.seconds
            case LookupEventKind.MISS:
                self.misses += 1
                self.compiled_s += event.seconds
            case LookupEventKind.WAIT:
                self.waits += 1
                self.waited_s += event.seconds
            case LookupEventKind.FAILURE:
                self.failures += 1
            case LookupEventKind.REPLAY:
                self.replayed += 1
            case LookupEventKind.DAMAGED:
                self.damaged += 1


def group_runs(events: Iterable[LookupEvent]) -> tuple[RunStats, ...]:
    """Return the runs of events, oldest first."""
    runs: dict[str, RunStats] = {}
    for event in events:
        runs.setdefault(event.run, RunStats(event.run)).add(event)
    return tuple(sorted(runs.values(), key=lambda run: run.started_unix_s))


def sum_events(events: Iterable[LookupEvent]) -> RunStats:
    """Return the sum over all events."""
    total = RunStats("all")
    for event in events:
        total.add(event)
    return total


def format_runs(runs: Iterable[RunStats], width: int | None = None) -> str:
    """Return the table of runs."""
    rows = [
        (
            format_time(run.started_unix_s),
            run.name,
            str(run.hits),
            str(run.misses),
            str(run.waits),
            str(run.failures),
            str(run.replayed),
            f"{run.saved_s:.3f} s",
            f"{run.compiled_s:.3f} s",
            f"{run.waited_s:.3f} s",
        )
        for run in runs
    ]
    head = ("STARTED", "RUN", "HITS", "MISSES", "WAITS", "FAILED", "REPLAYED", "SAVED", "COMPILED", "WAITED")
    lines = [table(head, rows, "><>>>>>>>>", width=width, optional=(9, 6, 5, 4, 8, 7, 0))] if rows else []
    lines.append(plural(len(rows), "run recorded", "runs recorded"))
    return "\n".join(lines)


def runs_json(runs: Iterable[RunStats]) -> list[dict[str, Any]]:
    """Return the JSON form of `format_runs`."""
    return [
        {"run": run.name, **{key: value for key, value in asdict(run).items() if key != "name"}}
        for run in runs
    ]


def format_stats(stats: Stats, width: int | None = None) -> str:
    """Return the totals and the counts of lookups."""
    return f"{format_totals(stats, width)}\n\n{wrap_field(_usage_text(stats), width)}"


def format_totals(stats: Stats, width: int | None = None) -> str:
    """Return the totals by state, by compiler and, if there are several, by layout."""
    head = ("STATE", "ENTRIES", "ACTIVE", "SIZE", "RECLAIMABLE")
    show = partial(table, align="<>>>>", width=width, optional=(2, 4))
    blocks = [show(head, [_sum_row(group) for group in (*stats.states, stats.total)])]
    for name, groups, fewest in (("COMPILER", stats.compilers, 1), ("LAYOUT", stats.layouts, 2)):
        if len(groups) >= fewest:
            blocks.append(show((name, *head[1:]), [_sum_row(group) for group in groups]))
    others = []
    if stats.registry:
        others.append(plural(stats.registry, "registry record of optimum", "registry records of optimum"))
    others += skipped_notes(stats.skipped, stats.unread)
    if others:
        blocks.append(wrap_field("; ".join(others), width))
    return "\n\n".join(blocks)


def stats_json(stats: Stats) -> dict[str, Any]:
    """Return the JSON form of `format_stats`."""
    usage, recorded = stats.usage, stats.recorded
    return {
        **totals_json(stats),
        "usage": {
            "hits": usage.hits,
            "misses": usage.misses,
            "failures": usage.failures,
            "damaged": usage.damaged,
            "hit_share": usage.hit_share,
            "since_unix_s": usage.since_unix_s or None,
            "waits": recorded.waits,
            "waited_s": recorded.waited_s,
            "saved_s": recorded.saved_s,
            "compiled_s": recorded.compiled_s,
            "recorded_since_unix_s": recorded.started_unix_s or None,
        },
    }


def totals_json(stats: Stats) -> dict[str, Any]:
    """Return the JSON form of `format_totals`."""
    return {
        "root": stats.root,
        "states": [asdict(group) for group in stats.states],
        "layouts": [asdict(group) for group in stats.layouts],
        "compilers": [asdict(group) for group in stats.compilers],
        "total": asdict(stats.total),
        "registry": stats.registry,
        "skipped": stats.skipped,
        "unread": stats.unread,
    }


def _usage_text(stats: Stats) -> str:
    usage = stats.usage
    share = usage.hit_share
    if share is None:
        return "no lookups yet"
    line = f"{plural(usage.hits, 'hit', 'hits')}, {plural(usage.misses, 'miss', 'misses')} ({share:.1%} hits)"
    if usage.failures:
        line += f", {plural(usage.failures, 'failed compile', 'failed compiles')}"
    if usage.damaged:
        line += f", {plural(usage.damaged, 'damaged neff', 'damaged neffs')}"
    recorded = stats.recorded
    seconds = f"{recorded.saved_s:.3g} s of compiling saved, {recorded.compiled_s:.3g} s compiled"
    if recorded.waits:
        seconds += f", {plural(recorded.waits, 'wait', 'waits')} of {recorded.waited_s:.3g} s"
    return f"{line} by this user since {format_time(usage.since_unix_s)[:-3]}; {seconds}"


def _sum_row(group: EntryTotals) -> tuple[str, ...]:
    share = group.reclaimable_bytes / group.size_bytes if group.size_bytes else 0.0
    return (
        group.name,
        str(group.count),
        str(group.active),
        format_size(group.size_bytes),
        f"{format_size(group.reclaimable_bytes)} ({share:.0%})",
    )
