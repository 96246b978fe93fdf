"""Sums over a cache: by state and by compiler, what could be freed, and hits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.events import Events
from neurontools.cache.generations import Generation
from neurontools.cache.owner import Liveness
from neurontools.cache.runs import Run, total_of
from neurontools.cache.states import State
from neurontools.cache.usage import Totals, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.entries import Entry, Scan


@dataclass(frozen=True, slots=True)
class Sum:
    """A group of entries. `active` are locked or loaded now; the others' bytes are reclaimable."""

    name: str
    count: int
    active: int
    size_bytes: int
    reclaimable_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What `neuron-cache stats` shows. `usage` counts this user's lookups, `recorded` sums those that are kept by run."""

    root: str
    states: tuple[Sum, ...]
    layouts: tuple[Sum, ...]
    compilers: tuple[Sum, ...]
    total: Sum
    skipped: int
    registry: int
    usage: Totals
    recorded: Run


def collect(scan: Scan, in_use: Callable[[Entry], bool]) -> Stats:
    """Return the sums over a scan; `in_use` says whether an entry is loaded by a process."""
    active = {entry.path for entry in scan.entries if _is_locked(entry) or in_use(entry)}
    states = (_sum(state, (e for e in scan.entries if e.state is state), active) for state in State)
    names = sorted({entry.compiler for entry in scan.entries})
    layouts = (_sum(kind, (e for e in scan.entries if e.generation is kind), active) for kind in Generation)
    compilers = (
        _sum(name or "unknown", (e for e in scan.entries if e.compiler == name), active) for name in names
    )
    return Stats(
        root=scan.root,
        states=tuple(group for group in states if group.count),
        layouts=tuple(group for group in layouts if group.count),
        compilers=tuple(compilers),
        total=_sum("total", scan.entries, active),
        skipped=scan.skipped,
        registry=len(scan.registry),
        usage=Usage(scan.root).totals(),
        recorded=total_of(Events(scan.root).read()),
    )


def _is_locked(entry: Entry) -> bool:
    return entry.lock is not None and entry.lock.liveness is not Liveness.DEAD


def _sum(name: str, entries: Iterable[Entry], active: set[str]) -> Sum:
    members = list(entries)
    return Sum(
        name=name,
        count=len(members),
        active=sum(entry.path in active for entry in members),
        size_bytes=sum(entry.size_bytes for entry in members),
        reclaimable_bytes=sum(entry.size_bytes for entry in members if entry.path not in active),
    )
