"""Histories as text: one line of braille dots or blocks, and charts of several lines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.history import Slot

_BLOCKS = "▁▂▃▄▅▆▇█"
_BRAILLE = 0x2800
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
_DOTS = len(_LEFT_DOTS)


def values_of(slots: Sequence[Slot | None], *, peaks: bool = False) -> tuple[float | None, ...]:
    """Return the means (or peaks) of slots, None where there was no sample."""
    return tuple(None if slot is None else slot.peak if peaks else slot.mean for slot in slots)


def blocks(values: Sequence[float | None]) -> str:
    """Draw shares (0..1) as blocks, one a cell; a gap is a blank."""
    last = len(_BLOCKS) - 1
    return "".join(
        " " if value is None else _BLOCKS[min(last, int(max(0.0, value) * len(_BLOCKS)))] for value in values
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
    if len(heights) % 2:
        heights.insert(0, 0)
    rows = []
    for line in range(lines):
        floor = (lines - 1 - line) * _DOTS
        rows.append(
            "".join(
                _cell(left - floor, right - floor)
                for left, right in zip(heights[::2], heights[1::2], strict=True)
            )
        )
    return tuple(rows)


def _height(value: float | None, most: int) -> int:
    return 0 if value is None else max(1, min(most, round(max(0.0, value) * most)))


def _cell(left: int, right: int) -> str:
    if left <= 0 and right <= 0:
        return " "
    dots = sum(_LEFT_DOTS[: max(0, min(left, _DOTS))]) + sum(_RIGHT_DOTS[: max(0, min(right, _DOTS))])
    return chr(_BRAILLE + dots)
