"""A canvas of braille dots: two across and four down in a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.widgets.lines import Role

if TYPE_CHECKING:
    from neurontools.tui.widgets.lines import Line, Span

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
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
            self._dots[line][column] |= _DOTS[y % DOWN][x % ACROSS]
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
