"""Filter of the process table, and its tree by parent."""

from __future__ import annotations

import pwd
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from neurontools.base.filters import FilterError, looks_like_condition
from neurontools.machine.listing.flags import DEVICE_KEYS, parse_filter, select
from neurontools.machine.machine_view import process_key
from neurontools.machine.snapshot import UNKNOWN_UID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.snapshot import Snapshot


@cache
def user_name(uid: int) -> str:
    """Return the name of a user, the number if it has no name, `-` if unknown."""
    if uid == UNKNOWN_UID:
        return "-"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class TreeLine(NamedTuple):
    """A line of the tree: a process of the table, or, without a row, a parent that uses no device."""

    pid: int
    depth: int
    row: ProcessRow | None


def tree(rows: Sequence[ProcessRow], parents: Mapping[int, int]) -> tuple[TreeLine, ...]:
    """Return rows under their parents, siblings in the order of the rows.

    A parent outside the table gets its own line if it has two or more children.

    Args:
        rows: the table, in order.
        parents: pid of each row's parent, where that is known.
    """
    by_pid = {row.process.pid: row for row in rows}
    children: dict[int, list[int]] = {}
    for row in rows:
        parent = parents.get(row.process.pid)
        if parent is not None and parent > 1:
            children.setdefault(parent, []).append(row.process.pid)
    shown = {pid for pid, below in children.items() if pid not in by_pid and len(below) > 1}
    lines: list[TreeLine] = []
    done: set[int] = set()

    def add(pid: int, depth: int) -> None:
        if pid in done:
            return
        done.add(pid)
        lines.append(TreeLine(pid, depth, by_pid.get(pid)))
        for child in children.get(pid, ()):
            add(child, depth + 1)

    for row in rows:
        top, seen = row.process.pid, set[int]()
        while (
            (parent := parents.get(top)) is not None
            and (parent in by_pid or parent in shown)
            and top not in seen
        ):
            seen.add(top)
            top = parent
        add(top, 0)
    return tuple(lines)


class ProcessFilter:
    """The filter in a line of text.

    Words such as `owner=me` or `memory-used>1G` are filters, which must all match; another word belongs to the
    value before it, or, at the start, is searched in pid, tag and command. Filters about devices keep processes
    that hold a core of a matching device.

    Args:
        text: the line; empty matches everything.

    Raises:
        FilterError: a filter is invalid.
    """

    def __init__(self, text: str = "") -> None:
        plain: list[str] = []
        expressions: list[str] = []
        for word in text.split():
            if looks_like_condition(word):
                expressions.append(word)
            elif expressions:
                expressions[-1] += f" {word}"
            else:
                plain.append(word)
        self._plain = " ".join(plain).casefold()
        self._filters = tuple(parse_filter(expression) for expression in expressions)

    def __call__(self, snapshot: Snapshot, rows: Sequence[ProcessRow]) -> tuple[ProcessRow, ...]:
        """Return the matching rows."""
        if self._filters:
            processes, devices = select(snapshot, list(snapshot.devices), self._filters, show_all=False)
            left = {process_key(process) for process in processes}
            rows = [row for row in rows if process_key(row.process) in left]
            if any(condition.field in DEVICE_KEYS for condition in self._filters):
                cores = {core for device in devices for core in device.core_ids}
                rows = [row for row in rows if any(use.core in cores for use in row.process.cores)]
        if self._plain:
            rows = [row for row in rows if self._plain in _text(row)]
        return tuple(rows)


def problem_of(text: str) -> str:
    """Return the error in a line of filters, "" if it is valid."""
    try:
        ProcessFilter(text)
    except FilterError as error:
        return str(error)
    return ""


def _text(row: ProcessRow) -> str:
    process = row.process
    return f"{process.pid} {process.tag} {process.command}".casefold()
