"""A widget that shows lines and repaints only changed ones, cheap enough for hundreds of meters a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from neurontools.tui.widgets.lines import width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from neurontools.tui.widgets.lines import Line, Role, Span

# More than a screen has; curves and numbers rarely repeat.
_MOST_SEGMENTS = 2_000


class Segments(dict["Span", Segment]):
    """A cache of the segment of each span; spans repeat from line to line and frame to frame.

    Args:
        style_of: the style of every role, with background.
    """

    def __init__(self, style_of: Mapping[Role, Style]) -> None:
        self._style_of = style_of
        self._begins: tuple[ColorSystem, dict[Role, str]] | None = None

    def __missing__(self, span: Span) -> Segment:
        """Make the segment of a span."""
        if len(self) >= _MOST_SEGMENTS:
            self.clear()
        text, role = span
        segment = self[span] = Segment(text, self._style_of[role])
        return segment

    def begins(
        self, system: ColorSystem, render_ansi: Callable[[Style, ColorSystem], str]
    ) -> dict[Role, str]:
        """Return the escape sequence that starts a span of each role.

        Args:
            system: the terminal's colours.
            render_ansi: returns the SGR parameters of a style.
        """
        if self._begins is None or self._begins[0] is not system:
            begins = {role: f"\x1b[0;{render_ansi(style, system)}m" for role, style in self._style_of.items()}
            self._begins = (system, begins)
        return self._begins[1]


class LineStrip(Strip):
    """A line as a strip that sets the style once for adjacent spans of the same role.

    Args:
        line: the spans.
        segments: of spans.
        width: cells of the line.
    """

    __slots__ = ("_line", "_segments_of")

    def __init__(self, line: Line, segments: Segments, width: int) -> None:
        super().__init__([segments[span] for span in line], width)
        self._line = line
        self._segments_of = segments

    def render(self, console: Console) -> str:
        """Return the terminal sequences."""
        if self._render_cache is None:
            system = console._color_system or ColorSystem.TRUECOLOR  # noqa: SLF001  as Strip.render
            self._render_cache = _rendered(self._line, self._segments_of.begins(system, self.render_ansi))
        return self._render_cache


def _rendered(line: Line, begins: Mapping[Role, str]) -> str:
    pieces: list[str] = []
    before: Role | None = None
    for text, role in line:
        if role is not before:
            before = role
            pieces.append(begins[role])
        pieces.append(text)
    pieces.append("\x1b[0m")
    return "".join(pieces)


class LinePane(Widget):
    """A pane of full-width lines, as high as it has lines.

    Args:
        styles_by_role: the style of every role.
        id: the widget's id.
    """

    DEFAULT_CSS = "LinePane { width: 1fr; height: 0; }"

    def __init__(self, styles_by_role: Mapping[Role, Style], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._style_of = styles_by_role
        self._lines: tuple[Line, ...] = ()
        self._segments: Segments | None = None
        self._strips: dict[int, Strip] = {}
        self._strips_width = -1
        self._blank = Style.null()

    @property
    def lines(self) -> tuple[Line, ...]:
        """What the pane shows."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines; only changed rows are painted."""
        before, self._lines = self._lines, tuple(lines)
        if before == self._lines:
            return
        if len(before) != len(self._lines):
            self._strips.clear()
            self.styles.height = len(self._lines)
            self.refresh()
            return
        width = self.size.width
        changed = [y for y, (old, new) in enumerate(zip(before, self._lines, strict=True)) if old != new]
        for y in changed:
            self._strips.pop(y, None)
        self.refresh(*[Region(0, y, width, 1) for y in changed])

    def restyle(self, styles_by_role: Mapping[Role, Style]) -> None:
        """Apply other styles."""
        self._style_of = styles_by_role
        self._segments = None
        self.refresh()

    def notify_style_update(self) -> None:
        """Drop cached styles after a change of theme or background."""
        super().notify_style_update()
        self._segments = None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return rows for the compositor unchanged: a pane has no border or padding and paints its own background."""
        width = self.size.width
        if self._segments is None or self._strips_width != width:
            self._segments = Segments(self._role_styles())
            self._strips.clear()
            self._strips_width = width
        known = self._strips
        rows = [known[y] if y in known else self._strip(y, width) for y in crop.line_range]
        if crop.x == 0 and crop.width == width:
            return rows
        return [row.crop(crop.x, crop.right) for row in rows]

    def render_line(self, y: int) -> Strip:
        """Return one row."""
        return self.render_lines(Region(0, y, self.size.width, 1))[0]

    def _strip(self, y: int, width: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(width, self._blank)
        strip = self._strips.get(y)
        if strip is None:
            assert self._segments is not None
            line = self._lines[y]
            strip = LineStrip(line, self._segments, width)
            if width_of("".join([text for text, _ in line])) != width:
                strip = Strip(list(strip)).adjust_cell_length(width, self._blank)
            self._strips[y] = strip
        return strip

    def _role_styles(self) -> dict[Role, Style]:
        background = self.rich_style
        self._blank = self._filtered(background)
        return {role: self._filtered(background + own) for role, own in self._style_of.items()}

    def _filtered(self, style: Style) -> Style:
        # Filters change a style in the same way in every line.
        strip = Strip([Segment(" ", style)], 1)
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, self.background_colors[1])
        return next(iter(strip)).style or style
