"""The entries of a cache as a tree of groups: by compiler and network, or by what else one chooses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache.listing import select

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.cache.entry_reader import Entry
    from neurontools.cache.listing import Order

Key = tuple[str, ...]


class Grouping(StrEnum):
    """What the entries of a group have in common."""

    COMPILER = "compiler"
    NAME = "network"
    STATE = "state"
    FLAGS = "flags"
    LAYOUT = "layout"


LEVELS: tuple[tuple[Grouping, ...], ...] = (
    (Grouping.COMPILER, Grouping.NAME),
    (Grouping.NAME,),
    (Grouping.STATE, Grouping.COMPILER),
    (Grouping.FLAGS,),
    (Grouping.LAYOUT, Grouping.COMPILER),
    (),
)
"""The ways to group that a browser offers, the first one first; the last one is a plain list."""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries with something in common. `key` is unique in the tree; a group of the last level has no groups."""

    key: Key
    title: str
    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """A visible line of the tree: a group or an entry. `share` (0..1) is its part of all that is shown."""

    key: Key
    depth: int
    title: str
    size_bytes: int
    share: float
    entry: Entry | None = None
    group: Group | None = None
    is_open: bool = False


def make_groups(
    entries: Sequence[Entry], levels: Sequence[Grouping], order: Order, above: Key = ()
) -> tuple[Group, ...]:
    """Return the groups of entries: the largest first where entries are sorted by size, else by title.

    Args:
        entries: of one group, or all.
        levels: by what to group, from the outside in; none makes no groups.
        order: of the entries inside of the last level.
        above: key of the group they are in.
    """
    if not levels:
        return ()
    gathered: dict[str, list[Entry]] = {}
    for entry in entries:
        gathered.setdefault(title_of(entry, levels[0]), []).append(entry)
    groups = [
        Group(
            key=(*above, title),
            title=title,
            entries=select(own, order),
            groups=make_groups(own, levels[1:], order, (*above, title)),
            size_bytes=sum(entry.size_bytes for entry in own),
        )
        for title, own in gathered.items()
    ]
    groups.sort(key=lambda group: group.title)
    if order.key == "size":
        groups.sort(key=lambda group: group.size_bytes, reverse=order.descending)
    return tuple(groups)


def title_of(entry: Entry, grouping: Grouping) -> str:
    """Return what a group calls itself that an entry belongs to."""
    match grouping:
        case Grouping.COMPILER:
            return entry.compiler or "(unknown compiler)"
        case Grouping.NAME:
            return entry.name or "(no name)"
        case Grouping.STATE:
            return entry.state.value
        case Grouping.FLAGS:
            return " ".join(entry.flags) or "(no flags)"
        case Grouping.LAYOUT:
            return entry.generation.value


def visible_rows(groups: Iterable[Group], closed: frozenset[Key], total_bytes: int) -> tuple[Row, ...]:
    """Return the lines of a tree, top down; groups start open.

    Args:
        groups: of the outermost level.
        closed: keys of groups whose inside is hidden.
        total_bytes: what shares are parts of.
    """
    rows: list[Row] = []
    for group in groups:
        is_open = group.key not in closed
        share = group.size_bytes / total_bytes if total_bytes else 0.0
        depth = len(group.key) - 1
        rows.append(Row(group.key, depth, group.title, group.size_bytes, share, group=group, is_open=is_open))
        if is_open and group.groups:
            rows += visible_rows(group.groups, closed, total_bytes)
        elif is_open:
            rows += entry_rows(group.entries, group.key, total_bytes)
    return tuple(rows)


def entry_rows(entries: Iterable[Entry], above: Key, total_bytes: int) -> tuple[Row, ...]:
    """Return the lines of entries that are in no further group."""
    return tuple(
        Row(
            key=(*above, entry.path),
            depth=len(above),
            title=entry.module,
            size_bytes=entry.size_bytes,
            share=entry.size_bytes / total_bytes if total_bytes else 0.0,
            entry=entry,
        )
        for entry in entries
    )
