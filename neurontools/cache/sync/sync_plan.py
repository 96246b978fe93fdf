"""What `neuron-cache sync` would move from one root to another: a pure plan from two scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.archives.archive import travels
from neurontools.cache.generations import SENTINEL, Generation
from neurontools.cache.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry, Scan

_RESULTS = frozenset({layout.NEFF, layout.DONE})
_LAST = _RESULTS | {layout.LOG}
_MARKERS = frozenset({layout.DONE, SENTINEL})
_MOVED = frozenset({Generation.CURRENT, Generation.TORCHNEURON, Generation.VLLM})
"""Layouts whose entries are finished by one rename or by a marker; of 2022's, nothing says what is finished."""
_NEVER = {State.LOCKED: "it is being compiled", State.INTERRUPTED: "a compile was interrupted"}


@dataclass(frozen=True, slots=True)
class Unmoved:
    """An entry that is not moved, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync would do. `extra` are the target's entries that the source does not have in any state."""

    source: str
    target: str
    move: tuple[Entry, ...]
    present: tuple[Entry, ...]
    left_out: tuple[Unmoved, ...]
    extra: tuple[Entry, ...]

    @property
    def move_bytes(self) -> int:
        """The size of what would be moved."""
        return sum(entry.size_bytes for entry in self.move)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which entries are meant.

    Args:
        matches: says whether an entry is chosen by the filter.
        only_done: leave graphs alone that were never compiled.
        with_failed: move cached failures, too.
    """

    matches: Callable[[Entry], bool]
    only_done: bool = False
    with_failed: bool = False


def make_sync_plan(source: Scan, target: Scan, choice: Choice) -> SyncPlan:
    """Return what would be moved.

    What is finished in the target stays as it is. A failure replaces nothing but a graph that was never compiled, and
    such a graph replaces nothing.
    """
    there = {relative_path(target.root, entry): entry for entry in target.entries}
    move: list[Entry] = []
    present: list[Entry] = []
    left_out: list[Unmoved] = []
    for entry in source.entries:
        if not choice.matches(entry):
            continue
        reason = _reason_against(entry, choice)
        other = there.get(relative_path(source.root, entry))
        if reason:
            left_out.append(Unmoved(entry.path, reason))
        elif _is_wanted(entry, other):
            move.append(entry)
        else:
            present.append(entry)
    names = {relative_path(source.root, entry) for entry in source.entries}
    extra = (
        entry
        for name, entry in there.items()
        if name not in names and entry.generation is Generation.CURRENT and choice.matches(entry)
    )
    return SyncPlan(source.root, target.root, tuple(move), tuple(present), tuple(left_out), tuple(extra))


def relative_path(root: str, entry: Entry) -> str:
    """Return an entry's path below its root."""
    return entry.path.removeprefix(root.rstrip("/") + "/")


def carries(state: State) -> Callable[[str], bool]:
    """Return what says which files of an entry in some state are moved: what was compiled and tags.

    Nothing of one host or user is: no pins, locks, hits, stamps.
    """
    if state is State.DONE:
        return travels
    if state is State.FAILED:
        return lambda name: name == layout.LOG or (travels(name) and name not in _RESULTS)
    return lambda name: travels(name) and name not in _RESULTS


def carries_of(entry: Entry) -> Callable[[str], bool]:
    """Return what says which files of an entry are moved; of other stacks' entries all but our pins."""
    if entry.generation is Generation.CURRENT:
        return carries(entry.state)
    return lambda name: name != layout.PIN


def in_writing_order(names: list[str]) -> list[str]:
    """Return an entry's files so that what says that it is finished comes last."""
    return sorted(names, key=lambda name: (name in _LAST, name in _MARKERS, name))


def _reason_against(entry: Entry, choice: Choice) -> str:
    if entry.generation not in _MOVED:
        return f"its layout ({entry.generation.value}) is not moved: nothing in it says what is finished; use cp or rsync"
    if entry.state is State.FAILED and not choice.with_failed:
        return "a cached failure; --with-failed moves it"
    if entry.state is State.TODO and choice.only_done:
        return "never compiled"
    return _NEVER.get(entry.state, "")


def _is_wanted(entry: Entry, other: Entry | None) -> bool:
    if other is None:
        return True
    if entry.state is State.DONE:
        return other.state is not State.DONE
    return entry.state is State.FAILED and other.state is State.TODO
