"""A widget that shows lines and repaints only those that changed: cheap enough for hundreds of meters a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.style import Style

    from neurontools.tui.lines import Line, Role


class LinePane(Widget):
    """A pane of full-width lines, as high as it has lines.

    Args:
        styles_by_role: the look of every role.
        id: the widget's id.
    """

    DEFAULT_CSS = "LinePane { width: 1fr; height: 0; }"

    def __init__(self, styles_by_role: Mapping[Role, Style], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._style_of = styles_by_role
        self._lines: tuple[Line, ...] = ()
        self._composed: tuple[Style | None, dict[Role, Style]] = (None, {})

    @property
    def lines(self) -> tuple[Line, ...]:
        """What the pane shows."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines; only the rows that differ from what is there are painted."""
        before, self._lines = self._lines, tuple(lines)
        if len(before) != len(self._lines):
            self.styles.height = len(self._lines)
            self.refresh()
            return
        width = self.size.width
        changed = [
            Region(0, y, width, 1)
            for y, (old, new) in enumerate(zip(before, self._lines, strict=True))
            if old != new
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Return one row for the compositor."""
        width, background = self.size.width, self.rich_style
        if y >= len(self._lines):
            return Strip.blank(width, background)
        if self._composed[0] != background:
            self._composed = (background, {role: background + own for role, own in self._style_of.items()})
        style_of = self._composed[1]
        strip = Strip([Segment(text, style_of[role]) for text, role in self._lines[y]])
        return strip.adjust_cell_length(width, background)
