"""Spans as a strip for Textual's compositor, with what a style becomes looked up instead of made again for each span."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.segment import Segment
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console
    from rich.style import Style

    from neurontools.tui.widgets.lines import Line, Role, Span

# More than a screen has; curves and figures are hardly ever the same again.
_MOST_SEGMENTS = 2_000


class Segments(dict["Span", Segment]):
    """The segment of each span, made when it is first asked for; spans repeat from line to line and frame to frame.

    Args:
        style_of: the look of every role, background included.
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
        """Return what the terminal is told before a span of each role.

        Args:
            system: the terminal's colours.
            render_ansi: returns the numbers of a style.
        """
        if self._begins is None or self._begins[0] is not system:
            told = {role: f"\x1b[0;{render_ansi(style, system)}m" for role, style in self._style_of.items()}
            self._begins = (system, told)
        return self._begins[1]


class LineStrip(Strip):
    """A line as a strip that names a role's style once for all neighbours that share it.

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
