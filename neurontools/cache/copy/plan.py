"""Which entries and files `neuron-cache copy` copies from one root to another: a pure plan from two scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import SENTINEL, CacheLayout
from neurontools.cache.pins_and_tags import is_tag_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry, Scan

_PORTABLE = frozenset({*layouts.GRAPH_NAMES, layouts.FLAGS, layouts.NEFF, layouts.DONE})
_RESULTS = frozenset({layouts.NEFF, layouts.DONE})
_MARKERS = frozenset({layouts.DONE, SENTINEL})
_LAST = frozenset({*_RESULTS, layouts.LOG, SENTINEL})
_COPIED = frozenset({CacheLayout.CURRENT, CacheLayout.TORCHNEURON, CacheLayout.VLLM})
"""Layouts whose entries are finished by one rename or by a marker; those of 2022 do not show which are finished."""
_NEVER = {State.LOCKED: "it is being compiled", State.INTERRUPTED: "its compile was interrupted"}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A selected entry that is not copied, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A planned copy. `extra` are the target's entries that the source does not have in any state.

    `source` and `target` are places as the user knows them, `root` is the directory or bucket that holds the entries.
    `staging` is the private directory in which `root`, the content of an archive, lies; "" without an archive.
    """

    source: str
    root: str
    target: str
    copy: tuple[Entry, ...]
    present: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]
    extra: tuple[Entry, ...]
    staging: str = ""

    @property
    def copy_bytes(self) -> int:
        """The size of the entries to copy."""
        return sum(entry.size_bytes for entry in self.copy)


@dataclass(frozen=True, slots=True)
class CopyFilter:
    """The entries to copy.

    Args:
        matches: whether the user's filters select an entry.
        rejection: returns why a selected entry is not wanted, "" if it is.
        only_done: leave out graphs that were never compiled.
        with_failed: include cached failures.
        archive: leave out all that an archive does not hold.
    """

    matches: Callable[[Entry], bool]
    rejection: Callable[[Entry], str] = lambda _: ""
    only_done: bool = False
    with_failed: bool = False
    archive: bool = False


def make_plan(source: Scan, target: Scan, selection: CopyFilter) -> CopyPlan:
    """Return the plan of a copy.

    Finished entries of the target stay as they are. A failure replaces only a graph that was never compiled, and such a
    graph replaces nothing.
    """
    existing = {relative_path(target.root, entry): entry for entry in target.entries}
    copy: list[Entry] = []
    present: list[Entry] = []
    left_out: list[LeftOut] = []
    for entry in source.entries:
        if not selection.matches(entry):
            continue
        reason = _rejection_reason(entry, selection) or selection.rejection(entry)
        if reason:
            left_out.append(LeftOut(entry.path, reason))
        elif _is_better(entry, existing.get(relative_path(source.root, entry))):
            copy.append(entry)
        else:
            present.append(entry)
    names = {relative_path(source.root, entry) for entry in source.entries}
    extra = (
        entry
        for name, entry in existing.items()
        if name not in names and entry.layout is CacheLayout.CURRENT and selection.matches(entry)
    )
    return CopyPlan(
        source.root, source.root, target.root, tuple(copy), tuple(present), tuple(left_out), tuple(extra)
    )


def relative_path(root: str, entry: Entry) -> str:
    """Return an entry's path below its root."""
    return entry.path.removeprefix(root.rstrip("/") + "/")


def is_portable(name: str) -> bool:
    """Return whether a file of an entry belongs to its result or tags, and says nothing about this host or user."""
    return name in _PORTABLE or is_tag_file(name)


def in_writing_order(names: list[str]) -> list[str]:
    """Return the names of an entry's files in writing order: the done marker comes last."""
    return sorted(names, key=lambda name: (name in _LAST, name in _MARKERS, name))


def is_copied(name: str, state: State) -> bool:
    """Return whether a file of an entry in this state is copied: results and tags, no pins, locks, hits or stamps."""
    if state is State.DONE:
        return is_portable(name)
    return (name == layouts.LOG and state is State.FAILED) or (is_portable(name) and name not in _RESULTS)


def is_file_copied(name: str, entry: Entry) -> bool:
    """Return whether a file of an entry is copied; of other stacks' entries all but our pins."""
    return is_copied(name, entry.state) if entry.layout is CacheLayout.CURRENT else name != layouts.PIN


def _rejection_reason(entry: Entry, selection: CopyFilter) -> str:
    if selection.archive and entry.layout is not CacheLayout.CURRENT:
        return f"archives do not hold its layout ({entry.layout.value})"
    if entry.layout not in _COPIED:
        layout_name = entry.layout.value
        return f"its layout ({layout_name}) does not mark finished entries; copy it with cp or rsync"
    if selection.archive and entry.state in {State.FAILED, State.TODO}:
        return entry.state.value
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
