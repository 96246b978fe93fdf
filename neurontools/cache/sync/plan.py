"""What `neuron-cache copy` would move from one root to another: a pure plan from two scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.archives.archive import LeftOut, is_portable
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry, Scan

_RESULTS = frozenset({layouts.NEFF, layouts.DONE})
_MOVED = frozenset({CacheLayout.CURRENT, CacheLayout.TORCHNEURON, CacheLayout.VLLM})
"""Layouts whose entries are finished by one rename or by a marker; those of 2022 do not show what is finished."""
_NEVER = {State.LOCKED: "it is being compiled", State.INTERRUPTED: "its compile was interrupted"}


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync would do. `extra` are the target's entries that the source does not have in any state."""

    source: str
    target: str
    move: tuple[Entry, ...]
    present: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]
    extra: tuple[Entry, ...]

    @property
    def move_bytes(self) -> int:
        """The size of the entries to move."""
        return sum(entry.size_bytes for entry in self.move)


@dataclass(frozen=True, slots=True)
class SyncFilter:
    """Which entries to sync.

    Args:
        matches: whether the user's filters select an entry.
        only_done: leave out graphs that were never compiled.
        with_failed: include cached failures.
    """

    matches: Callable[[Entry], bool]
    only_done: bool = False
    with_failed: bool = False


def make_plan(source: Scan, target: Scan, selection: SyncFilter) -> SyncPlan:
    """Return what a sync would move.

    Finished entries of the target stay as they are. A failure replaces only a graph that was never compiled, and such a
    graph replaces nothing.
    """
    existing = {relative_path(target.root, entry): entry for entry in target.entries}
    move: list[Entry] = []
    present: list[Entry] = []
    left_out: list[LeftOut] = []
    for entry in source.entries:
        if not selection.matches(entry):
            continue
        reason = _rejection_reason(entry, selection)
        if reason:
            left_out.append(LeftOut(entry.path, reason))
        elif _is_better(entry, existing.get(relative_path(source.root, entry))):
            move.append(entry)
        else:
            present.append(entry)
    names = {relative_path(source.root, entry) for entry in source.entries}
    extra = (
        entry
        for name, entry in existing.items()
        if name not in names and entry.layout is CacheLayout.CURRENT and selection.matches(entry)
    )
    return SyncPlan(source.root, target.root, tuple(move), tuple(present), tuple(left_out), tuple(extra))


def relative_path(root: str, entry: Entry) -> str:
    """Return an entry's path below its root."""
    return entry.path.removeprefix(root.rstrip("/") + "/")


def is_moved(name: str, state: State) -> bool:
    """Return whether a file of an entry in this state is moved: results and tags, no pins, locks, hits or stamps."""
    if state is State.DONE:
        return is_portable(name)
    return (name == layouts.LOG and state is State.FAILED) or (is_portable(name) and name not in _RESULTS)


def is_file_moved(name: str, entry: Entry) -> bool:
    """Return whether a file of an entry is moved; of other stacks' entries all but our pins."""
    if entry.layout is CacheLayout.CURRENT:
        return is_moved(name, entry.state)
    return name != layouts.PIN


def _rejection_reason(entry: Entry, selection: SyncFilter) -> str:
    if entry.layout not in _MOVED:
        layout_name = entry.layout.value
        return f"its layout ({layout_name}) does not mark finished entries; copy it with cp or rsync"
    if entry.state is State.FAILED and not selection.with_failed:
        return "a cached failure; --with-failed copies it"
    if entry.state is State.TODO and selection.only_done:
        return "never compiled"
    return _NEVER.get(entry.state, "")


def _is_better(entry: Entry, existing: Entry | None) -> bool:
    if existing is None:
        return True
    if entry.state is State.DONE:
        return existing.state is not State.DONE
    return entry.state is State.FAILED and existing.state is State.TODO
