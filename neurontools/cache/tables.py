"""Tables and counted words of `neuron-cache`: values to text, safe for a terminal, and as narrow as it is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = 2
_LEAST = 16
"""A column of text is not made narrower than this, so that a name in it can still be told from others."""
_CUT = ".."
_INDENT = 14


def table(
    head: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    width: int | None = None,
    spare: Sequence[int] = (),
) -> str:
    """Return rows below a head in columns.

    Args:
        head: the columns' names.
        rows: the cells.
        align: `<` (text, which may be shortened in the middle) or `>` for each column.
        width: the terminal's columns; None where lines may have any length.
        spare: the columns that may be left out where the width is too small for all, the first one first. A last line
            names them.
    """
    printed = [[plain(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    natural = [max(len(row[column]) for row in printed) for column in range(len(align))]
    widths = dict(enumerate(natural)) if width is None else _fitted(natural, align, width, spare)
    lines = []
    for row in printed:
        cells = [f"{middle(row[column], most):{align[column]}{most}}" for column, most in widths.items()]
        lines.append((" " * _GAP).join(cells).rstrip())
    if head and len(widths) < len(align):
        left_out = ", ".join(name.lower() for column, name in enumerate(head) if column not in widths)
        lines.append(f"(too narrow for {left_out})")
    return "\n".join(lines)


def _fitted(natural: Sequence[int], align: str, width: int, spare: Sequence[int]) -> dict[int, int]:
    """Return the width of each column that is shown: text gives room first, then spare columns go."""
    widths = dict(enumerate(natural))
    left = list(spare)
    while _least(widths, align) > width and left:
        del widths[left.pop(0)]
    texts = [column for column in widths if align[column] == "<"]
    while _taken(widths) > width:
        widest = max(texts, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


def _least(widths: dict[int, int], align: str) -> int:
    least = {c: min(width, _LEAST) if align[c] == "<" else width for c, width in widths.items()}
    return _taken(least)


def _taken(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def middle(text: str, width: int) -> str:
    """Return a text of at most `width` characters: the middle of a longer one is left out."""
    if len(text) <= width:
        return text
    head = (width - len(_CUT)) // 2
    return text[:head] + _CUT + text[len(text) - (width - len(_CUT) - head) :]


def wrapped(line: str, width: int | None) -> str:
    """Return a line of a label and its value in as many as the width needs; paths and hashes stay in one piece."""
    if width is None or len(line) <= width or " " not in line[_INDENT:]:
        return line
    indent = " " * _INDENT
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def below(path: str, root: str, width: int | None) -> str:
    """Return a path as a table of a terminal shows it: without the root, which another line names."""
    return path if width is None else path.removeprefix(f"{root}/")


def counted(number: int, one: str, many: str) -> str:
    """Return a number with the word for one or for many."""
    return f"{number} {one if number == 1 else many}"


def plain(text: str) -> str:
    """Return a text that cannot steer a terminal: flags, names and logs come from files that others may write."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def moment(unix_s: float) -> str:
    """Return a time of day in the user's time zone, to the second; one that no calendar has as its seconds."""
    from time import localtime, strftime

    try:
        return strftime("%Y-%m-%d %H:%M:%S", localtime(unix_s))
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.0f} s"
