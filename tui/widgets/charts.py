"""Charts: shares over time as blocks or braille dots, brighter towards the top, several lines in one, and a canvas of dots."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.tui.widgets.bars import SHADES
from neurontools.tui.widgets.lines import Line, Role, Span

if TYPE_CHECKING:
    from collections.abc import Sequence


_BRAILLE = 0x2800
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
_DOTS = len(_LEFT_DOTS)
_LABEL_GAP = 1
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


class ChartLine(NamedTuple):
    """A line of a chart: its label, its shares (0..1), oldest first, and its role."""

    label: str
    values: Sequence[float | None]
    role: Role


def line_chart(curves: Sequence[ChartLine], width: int, lines: int, label: int = 0) -> list[list[Span]]:
    """Draw curves as lines of dots over exactly `width` cells, each labelled at its end; return the spans of each line.

    Args:
        curves: where two meet, the later one is on top.
        width: cells, with the labels.
        lines: how high; each has four dots.
        label: cells for the labels on the right, 0 for none.
    """
    cells = max(1, width - label)
    dots: dict[tuple[int, int], tuple[int, Role]] = {}
    ends: list[tuple[int, ChartLine]] = []
    for curve in curves:
        places = _places(curve.values, 2 * cells, lines * _DOTS)
        for column, (low, high) in places.items():
            for place in range(low, high + 1):
                key = (lines - 1 - place // _DOTS, column // 2)
                bits = (_RIGHT_DOTS if column % 2 else _LEFT_DOTS)[place % _DOTS]
                dots[key] = (dots.get(key, (0, curve.role))[0] | bits, curve.role)
        if places and label:
            ends.append((places[max(places)][0], curve))
    texts = _label_rows(ends, lines)
    drawn = []
    for line in range(lines):
        spans = _dot_spans(dots, line, cells)
        if label:
            text, role = texts.get(line, ("", Role.PLAIN))
            spans.append((f"{' ' * _LABEL_GAP}{text}"[:label].ljust(label), role))
        drawn.append(spans)
    return drawn


def _places(values: Sequence[float | None], columns: int, dots: int) -> dict[int, tuple[int, int]]:
    """Return for each column the lowest and the highest dot of a line; steps are joined."""
    places: dict[int, tuple[int, int]] = {}
    before: int | None = None
    count = len(values)
    for column in range(columns if count else 0):
        value = values[column * count // columns]
        if value is None:
            before = None
            continue
        place = round(max(0.0, min(1.0, value)) * (dots - 1))
        if before is None or abs(place - before) < 2:
            places[column] = place, place
        else:
            places[column] = (before + 1, place) if place > before else (place, before - 1)
        before = place
    return places


def _dot_spans(dots: dict[tuple[int, int], tuple[int, Role]], line: int, cells: int) -> list[Span]:
    spans: list[Span] = []
    for cell in range(cells):
        bits, role = dots.get((line, cell), (0, Role.GRAPH))
        text = chr(_BRAILLE + bits) if bits else " "
        if spans and (not bits or spans[-1][1] is role):
            spans[-1] = (spans[-1][0] + text, spans[-1][1])
        else:
            spans.append((text, role))
    return spans


def _label_rows(ends: list[tuple[int, ChartLine]], lines: int) -> dict[int, Span]:
    """Return the labels by line, in the order of the ends of their curves, each as near to its end as there is room."""
    ends = sorted(ends, key=lambda end: -end[0])[:lines]
    found: dict[int, Span] = {}
    above = -1
    for number, (place, curve) in enumerate(ends):
        lowest = lines - (len(ends) - number)
        above = min(lowest, max(above + 1, lines - 1 - place // _DOTS))
        found[above] = (curve.label, curve.role)
    return found


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


_CELL_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
ACROSS, DOWN = 2, 4


class Canvas:
    """Dots and texts on `width` by `height` cells; a later role of a cell wins, texts hide dots."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._dots = [[0] * width for _ in range(height)]
        self._roles = [[Role.PLAIN] * width for _ in range(height)]
        self._texts: list[dict[int, Span]] = [{} for _ in range(height)]

    def dot(self, x: int, y: int, role: Role) -> None:
        """Set a dot, counted from the left upper corner in dots; outside of the canvas nothing happens."""
        column, line = x // ACROSS, y // DOWN
        if 0 <= column < self.width and 0 <= line < self.height:
            self._dots[line][column] |= _CELL_DOTS[y % DOWN][x % ACROSS]
            self._roles[line][column] = role

    def text(self, column: int, line: int, text: str, role: Role) -> None:
        """Write narrow characters over cells."""
        if 0 <= line < self.height:
            for at, letter in enumerate(text, column):
                if 0 <= at < self.width:
                    self._texts[line][at] = letter, role

    def lines(self) -> list[Line]:
        """Return the lines."""
        found = []
        for dots, roles, texts in zip(self._dots, self._roles, self._texts, strict=True):
            spans: list[Span] = []
            for column, (cell, role) in enumerate(zip(dots, roles, strict=True)):
                own = chr(_BRAILLE + cell) if cell else " "
                letter, shade = texts.get(column, (own, role))
                if spans and spans[-1][1] is shade:
                    spans[-1] = spans[-1][0] + letter, shade
                else:
                    spans.append((letter, shade))
            found.append(tuple(spans))
        return found
