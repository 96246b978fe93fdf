"""Filtering processes by the expressions of `neuron-ls --filter`, several at once, or by a plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.listing.filters import Filter, FilterError, looks_like_filter, parse_filter
from neurontools.machine.listing.selection import select
from neurontools.machine.view import process_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.snapshot import Snapshot


class ProcessFilter:
    """What a line of text asks for.

    Words such as `owner=me` or `memory-used>1G` are filters, all of which must hold; a word that is none belongs to the
    value before it, or, at the beginning, is looked for in pid, tag and command. With a filter about devices, processes
    are left that hold a core of one of them.

    Args:
        text: the line; empty leaves everything.

    Raises:
        FilterError: a filter has an operator that its key does not know, or a value that makes no sense.
    """

    def __init__(self, text: str = "") -> None:
        plain: list[str] = []
        expressions: list[str] = []
        for word in text.split():
            if looks_like_filter(word):
                expressions.append(word)
            elif expressions:
                expressions[-1] += f" {word}"
            elif any(mark in word for mark in "=<>~"):
                parse_filter(word)
            else:
                plain.append(word)
        self._plain = " ".join(plain).casefold()
        self._filters: tuple[Filter, ...] = tuple(parse_filter(expression) for expression in expressions)

    def __call__(self, snapshot: Snapshot, rows: Sequence[ProcessRow]) -> tuple[ProcessRow, ...]:
        """Return the rows that are left."""
        if self._filters:
            processes, devices = select(snapshot, list(snapshot.devices), self._filters, show_all=False)
            left = {process_key(process) for process in processes}
            rows = [row for row in rows if process_key(row.process) in left]
            if any(not one.of_process for one in self._filters):
                cores = {core for device in devices for core in device.core_ids}
                rows = [row for row in rows if any(use.core in cores for use in row.process.cores)]
        if self._plain:
            rows = [row for row in rows if self._plain in _text(row)]
        return tuple(rows)


def problem_of(text: str) -> str:
    """Return what is wrong with a line of filters, "" when it can be obeyed."""
    try:
        ProcessFilter(text)
    except FilterError as error:
        return str(error)
    return ""


def _text(row: ProcessRow) -> str:
    process = row.process
    return f"{process.pid} {process.tag} {process.command}".casefold()
