"""Sums over a cache: by state and by compiler, what could be freed, and hits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.collector import collector_paused
from neurontools.cache.events import Events
from neurontools.cache.generations import Generation
from neurontools.cache.looks import Looker
from neurontools.cache.owner import Liveness
from neurontools.cache.runs import Run, total_of
from neurontools.cache.states import State
from neurontools.cache.tree import exists
from neurontools.cache.usage import Totals, Usage
from neurontools.cache.walk import looking_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.looks import Look
    from neurontools.cache.walk import Walk


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
    unread: int
    registry: int
    usage: Totals
    recorded: Run


def collect(
    found: Walk, in_use: Callable[[str], bool], looked: Callable[[int, int], None] | None = None
) -> Stats:
    """Return the sums over a root.

    Args:
        found: where its entries are.
        in_use: says of an entry's path whether it is loaded by a process.
        looked: is told now and then at how many of how many entries was looked.
    """
    groups, lost = _groups(found, in_use, looked)
    states = (_sum(state, (group for group in groups if group.state is state)) for state in State)
    layouts = (_sum(kind, (group for group in groups if group.layout is kind)) for kind in Generation)
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
        recorded=total_of(Events(found.root).read()),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The sizes of entries that are alike in all that is told apart."""

    state: State
    layout: Generation
    compiler: str
    is_active: bool
    sizes: list[int]


@collector_paused()
def _groups(
    found: Walk, in_use: Callable[[str], bool], looked: Callable[[int, int], None] | None
) -> tuple[list[_Group], int]:
    """Return the groups of a root's entries, and how many entries are there and cannot be looked at."""
    sizes: defaultdict[tuple[State, Generation, str, bool], list[int]] = defaultdict(list)
    looker, lost = Looker(found.tree), 0
    for place in looking_at(found.places, looked):
        try:
            look = looker.look(place)
        except OSError:
            lost += exists(found.tree, place.path)
            continue
        is_active = _is_locked(look) or in_use(place.path)
        sizes[look.state, place.generation, place.compiler, is_active].append(look.size_bytes)
    return [_Group(*key, sizes=each) for key, each in sizes.items()], lost


def _is_locked(look: Look) -> bool:
    return look.lock is not None and look.lock.liveness is not Liveness.DEAD


def _sum(name: str, groups: Iterable[_Group]) -> Sum:
    members = list(groups)
    idle = [group.sizes for group in members if not group.is_active]
    count = sum(len(group.sizes) for group in members)
    return Sum(
        name=name,
        count=count,
        active=count - sum(map(len, idle)),
        size_bytes=sum(sum(group.sizes) for group in members),
        reclaimable_bytes=sum(map(sum, idle)),
    )
