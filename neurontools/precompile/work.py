"""Which entries of a cache are to be compiled, in what order, and by which node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout
from neurontools.compiler.version import COMPILER_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.cache.entries import Entry

MOST_NEIGHBOURS = 8
_WAITING = frozenset({State.TODO, State.INTERRUPTED})


@dataclass(frozen=True, slots=True)
class Groups:
    """The entries of a root as the real wrapper groups them (compile-runtime.md section 1.4)."""

    todo: tuple[Entry, ...]
    locked: tuple[Entry, ...]
    done: tuple[Entry, ...]
    failed: tuple[Entry, ...]

    @property
    def total(self) -> int:
        """The number of entries."""
        return len(self.todo) + len(self.locked) + len(self.done) + len(self.failed)


def groups_of(root: str) -> Groups:
    """Return what today's compiler has done, does and has to do in a root; interrupted compiles are to do.

    Raises:
        NotACacheError: the root is no cache.
    """
    found = [
        entry
        for entry in scan(root, details=False).entries
        if entry.layout is CacheLayout.CURRENT and entry.compiler == COMPILER_VERSION
    ]
    return Groups(
        todo=tuple(entry for entry in found if entry.state in _WAITING),
        locked=tuple(entry for entry in found if entry.state is State.LOCKED),
        done=tuple(entry for entry in found if entry.state is State.DONE),
        failed=tuple(entry for entry in found if entry.state is State.FAILED),
    )


def groups_text(groups: Groups, *, with_failed: bool) -> str:
    """Return how many entries are in each state, and which failed where that is asked."""
    lines = [f"{name}[{len(entries)}]" for name, entries in _named(groups)]
    if with_failed:
        lines += [f"  {entry.path}: {entry.note}" for entry in groups.failed]
    return "\n".join(lines)


def groups_json(groups: Groups) -> dict[str, list[str]]:
    """Return the directories of the entries in each state."""
    return {name: [entry.path for entry in entries] for name, entries in _named(groups)}


def _named(groups: Groups) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
    return (
        ("todo", groups.todo),
        ("locked", groups.locked),
        ("done", groups.done),
        ("failed", groups.failed),
    )


def to_compile(groups: Groups, *, retry_failed: bool) -> tuple[str, ...]:
    """Return the directories of the entries to compile; cached failures only where they are to be tried again."""
    chosen = (*groups.todo, *groups.failed) if retry_failed else groups.todo
    return tuple(entry.path for entry in chosen)


def schedule(paths: Iterable[str], node: int, nodes: int) -> tuple[str, ...]:
    """Return the work of one node of several: its own share first, then those of its next neighbours.

    What a neighbour has compiled meanwhile is found done. At most 8 neighbours are helped (compile-runtime.md 1.6).

    Args:
        paths: the entries, the same set on every node.
        node: this node, from 0.
        nodes: how many there are.
    """
    ordered = sorted(paths)
    helped = min(MOST_NEIGHBOURS, nodes - 1)
    return tuple(path for step in range(helped + 1) for path in _share(ordered, (node + step) % nodes, nodes))


def _share(ordered: Sequence[str], node: int, nodes: int) -> Sequence[str]:
    return ordered[node::nodes]
