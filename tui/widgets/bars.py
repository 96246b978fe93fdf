"""Bars, rows of blocks and heat-map cells: one neutral hue that becomes brighter, drawn in eighths of a cell."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from neurontools.tui.widgets.lines import BLOCKS, Role, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = "▇"
"""A full cell of a bar: an eighth lower than the cell, so that bars in rows below each other stay apart."""
_PARTS = " ▏▎▍▌▋▊▉"
_GRADIENT = (Role.USE_1, Role.USE_2, Role.USE_3, Role.USE_4, Role.USE_5)
SHADES = (Role.SHADE_1, Role.SHADE_2, Role.SHADE_3, Role.SHADE_4, Role.SHADE_5)
"""The gradient without a track behind it, darkest first."""
CELLS = (Role.CELL_0, Role.CELL_1, Role.CELL_2, Role.CELL_3, Role.CELL_4, Role.CELL_5)
"""Cells of a heat map by their share: nothing, then five equal parts."""
_CAPACITY_WARNING = 0.95
_NARROW_CELL = 2


def bar(share: float, width: int, *, capacity: bool = False) -> tuple[Span, ...]:
    """Draw a share (0..1) as a bar with a gradient on a dim track; anything above zero shows at least an eighth.

    Args:
        share: how much of the bar is filled.
        width: cells.
        capacity: of something that runs out; it is drawn in the colour of warnings when it is nearly full.
    """
    if share <= 0:
        return _bar(0, width, False)
    eighths = max(1, min(8 * width, round(share * 8 * width)))
    return _bar(eighths, width, capacity and share >= _CAPACITY_WARNING)


@lru_cache(maxsize=4096)
def _bar(eighths: int, width: int, is_warning: bool) -> tuple[Span, ...]:
    whole, rest = divmod(eighths, 8)
    text = FULL * whole + (_PARTS[rest] if rest else "")
    spans: list[Span] = []
    steps = len(_GRADIENT)
    for step, role in enumerate(_GRADIENT):
        piece = text[step * width // steps : (step + 1) * width // steps]
        if piece:
            spans.append((piece, Role.USE_FULL if is_warning else role))
    if len(text) < width:
        spans.append((" " * (width - len(text)), Role.TRACK))
    return tuple(spans)


def stacked_bar(shares: Sequence[float], width: int) -> tuple[Span, ...]:
    """Draw shares (0..1) one after the other, each in its own shade, brightest first, on one track."""
    spans: list[Span] = []
    drawn, total = 0, 0.0
    for number, share in enumerate(shares):
        total += max(0.0, share)
        end = min(width, round(total * width))
        if share > 0 and end == drawn < width and number == 0:
            end = drawn + 1
        if end > drawn:
            spans.append((FULL * (end - drawn), stack_role(number)))
            drawn = end
    if drawn < width:
        spans.append((" " * (width - drawn), Role.TRACK))
    return tuple(spans)


def stack_role(number: int) -> Role:
    """Return the role of the n-th part of a stacked bar."""
    return _GRADIENT[max(0, len(_GRADIENT) - 1 - number)]


def blocks(values: Sequence[float | None], *, headroom: bool = False) -> str:
    """Draw shares (0..1) as blocks, one a cell; a gap is a blank.

    Args:
        values: the shares.
        headroom: leave the upper eighth empty, so that rows below each other stay apart.
    """
    last = len(BLOCKS) - (2 if headroom else 1)
    steps = last + 1
    return "".join(
        [
            " " if value is None else BLOCKS[0 if value <= 0 else last if value >= 1 else int(value * steps)]
            for value in values
        ]
    )


def heat_cell(share: float, width: int) -> Span:
    """Return a cell of a heat map with its number, in percent, where it fits."""
    if share <= 0:
        return ("·" * width if width < _NARROW_CELL else "·".center(width)), CELLS[0]
    return _heat_cell(round(100 * share), width)


@lru_cache(maxsize=2048)
def _heat_cell(percent: int, width: int) -> Span:
    role = CELLS[1 + min(4, percent // 20)]
    if width < _NARROW_CELL:
        return BLOCKS[min(7, percent * 8 // 100)] * width, role
    text = str(percent)
    if width < len(text):
        return "█" * width, role
    return text.center(width), role
