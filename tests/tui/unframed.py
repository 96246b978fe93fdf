"""The text inside frames, for tests that read what a pane shows and not how it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.widgets.lines import Line, Role, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CORNERS = str.maketrans(dict.fromkeys("╭╮╰╯─", " "))


def unframed(lines: Iterable[Line]) -> list[str]:
    """Return the lines without sides and the marker of the selection; of an edge only the words stay."""
    return [_text(line) for line in lines]


def selected(lines: Sequence[Line]) -> str:
    """Return the text of the selected row."""
    line = next(line for line in lines if any(role is Role.CURSOR for _, role in line))
    return _text(line).strip()


def _text(line: Line) -> str:
    text = text_of(line)
    if text.startswith("│"):
        return text[1:-1].replace("▌", " ").rstrip()
    if line and line[0][1] is Role.FRAME:
        return " " + text.translate(_CORNERS).strip()
    return text.replace("▌", " ").rstrip()
