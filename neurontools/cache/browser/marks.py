"""Which entries are marked to be deleted; what must stay cannot be marked and says why."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.entries import is_in_use
from neurontools.cache.pruning.preparing import only, prepare
from neurontools.cache.pruning.rules import Rules, reason_to_spare
from neurontools.cache.walk import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.cache.entry_reader import Entry
    from neurontools.cache.pruning.preparing import Pruning


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entry that cannot be marked, and why."""

    entry: Entry
    reason: str


class Marks:
    """The marked entries of a root.

    Args:
        root: of the cache.
        network: it lies on a network file system, where use cannot be seen.
    """

    def __init__(self, root: str, *, network: bool = False) -> None:
        self._root = root
        self._network = network
        self._marked: dict[str, Entry] = {}

    @property
    def paths(self) -> frozenset[str]:
        """The marked entries."""
        return frozenset(self._marked)

    @property
    def size_bytes(self) -> int:
        """What the marked entries take on disk."""
        return sum(entry.size_bytes for entry in self._marked.values())

    def __len__(self) -> int:
        """Return how many entries are marked."""
        return len(self._marked)

    def mark(self, entries: Iterable[Entry]) -> tuple[Refusal, ...]:
        """Mark entries; return those that must stay."""
        refused = []
        for entry in entries:
            reason = self.reason_against(entry)
            if reason:
                refused.append(Refusal(entry, reason))
            else:
                self._marked[entry.path] = entry
        return tuple(refused)

    def unmark(self, entries: Iterable[Entry]) -> None:
        """Take marks away."""
        for entry in entries:
            self._marked.pop(entry.path, None)

    def clear(self) -> None:
        """Take all marks away."""
        self._marked.clear()

    def follow(self, entries: Iterable[Entry]) -> None:
        """Adopt what the entries are now: marks of those that are gone or must stay now go."""
        present = {entry.path: entry for entry in entries}
        kept = (present[path] for path in self._marked if path in present)
        self._marked = {entry.path: entry for entry in kept if not self.reason_against(entry)}

    def reason_against(self, entry: Entry) -> str:
        """Return why an entry must stay, "" where it may go."""
        reason = reason_to_spare(entry, Rules(), time.time(), network=self._network)
        return reason or ("in use" if is_in_use(entry.path) else "")

    def removal(self) -> Pruning:
        """Return what deletes the marked entries, with every check of a removal at the last moment."""
        entries = self._marked.values()
        places = [Place(entry.path, entry.generation, entry.compiler, entry.module) for entry in entries]
        return prepare(only(self._root, places), Rules(named=self.paths))
