"""Tables and counted words of `neuron-cache`: values to text, safe for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def table(head: Sequence[str] | None, rows: Sequence[Sequence[str]], align: str) -> str:
    """Return rows below a head in columns; `align` has `<` or `>` for each column."""
    printed = [[plain(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    widths = [max(len(row[column]) for row in printed) for column in range(len(align))]
    lines = []
    for row in printed:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def counted(number: int, one: str, many: str) -> str:
    """Return a number with the word for one or for many."""
    return f"{number} {one if number == 1 else many}"


def plain(text: str) -> str:
    """Return a text that cannot steer a terminal: flags, names and logs come from files that others may write."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def moment(unix_s: float) -> str:
    """Return a time of day in the user's time zone, to the second."""
    from time import localtime, strftime

    return strftime("%Y-%m-%d %H:%M:%S", localtime(unix_s))
