"""Charts: shares over time as blocks or braille dots, brighter towards the top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.widgets.bars import SHADES
from neurontools.tui.widgets.lines import Role, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

_BRAILLE = 0x2800
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
_DOTS = len(_LEFT_DOTS)
_CELLS = tuple(
    tuple(chr(_BRAILLE + sum(_LEFT_DOTS[:left]) + sum(_RIGHT_DOTS[:right])) for right in range(_DOTS + 1))
    for left in range(_DOTS + 1)
)


def braille(values: Sequence[float | None]) -> str:
    """Draw shares (0..1) as dots, two values a cell; a gap is a blank, zero still has a dot."""
    return chart(values, 1)[0]


def chart(values: Sequence[float | None], lines: int, stretch: int = 1) -> tuple[str, ...]:
    """Draw shares (0..1) as columns of braille dots.

    Args:
        values: oldest first.
        lines: how high; each has four dots.
        stretch: how many columns of dots a value takes.

    Returns:
        The lines from top to bottom, each with a cell for two columns.
    """
    heights = [_height(value, lines * _DOTS) for value in values for _ in range(stretch)]
    return _drawn(heights, lines)


def wide_chart(values: Sequence[float | None], width: int, lines: int) -> tuple[tuple[Span, ...], ...]:
    """Draw shares (0..1) over exactly `width` cells, in the shade of their height; return the spans of each line."""
    if not values or width <= 0:
        return (((" " * width, Role.GRAPH),),) * lines
    columns, count = 2 * width, len(values)
    known = [_height(value, lines * _DOTS) for value in values]
    heights = [known[column * count // columns] for column in range(columns)]
    steps = len(SHADES)
    return tuple(
        ((text, SHADES[steps - 1 - number * steps // lines] if lines > 1 else Role.GRAPH),)
        for number, text in enumerate(_drawn(heights, lines))
    )


def _drawn(heights: list[int], lines: int) -> tuple[str, ...]:
    if len(heights) % 2:
        heights = [0, *heights]
    rows = []
    for line in range(lines):
        floor = (lines - 1 - line) * _DOTS
        rows.append(
            "".join(
                [
                    " "
                    if left <= floor and right <= floor
                    else _CELLS[max(0, min(left - floor, _DOTS))][max(0, min(right - floor, _DOTS))]
                    for left, right in zip(heights[::2], heights[1::2], strict=True)
                ]
            )
        )
    return tuple(rows)


def _height(value: float | None, most: int) -> int:
    return 0 if value is None else max(1, min(most, round(max(0.0, value) * most)))
