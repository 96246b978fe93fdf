"""A widget that shows lines and repaints only changed ones, cheap enough for hundreds of meters a second.

`write_rows` writes changed rows straight to the terminal: to change one row, Textual's compositor renders every widget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.segment import Segment
from textual._ansi_sequences import SYNC_END, SYNC_START
from textual.css.query import NoMatches
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets._toast import ToastRack

from neurontools.tui.widgets.lines import Line, Role, Span, line_sequences, style_sequences, width_of
from neurontools.tui.widgets.terminal_driver import TerminalDriver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.style import Style
    from textual.app import App


# More than a screen has; curves and numbers rarely repeat.
_MOST_SEGMENTS = 2_000
_MOST_KEPT = 4
_kept_segments: list[tuple[tuple[object, ...], Segments]] = []


class Segments(dict["Span", Segment]):
    """A cache of the segment of each span; spans repeat from line to line and frame to frame.

    Args:
        style_of: the style of every role, with background.
        blank: the style of cells without text.
    """

    def __init__(self, style_of: Mapping[Role, Style], blank: Style) -> None:
        self.blank = blank
        self._style_of = style_of
        self._begins: tuple[ColorSystem, dict[Role, str]] | None = None

    def __missing__(self, span: Span) -> Segment:
        """Make the segment of a span."""
        if len(self) >= _MOST_SEGMENTS:
            self.clear()
        text, role = span
        segment = self[span] = Segment(text, self._style_of[role])
        return segment

    def begins(self, system: ColorSystem) -> dict[Role, str]:
        """Return the escape sequence that starts a span of each role with the terminal's colours."""
        if self._begins is None or self._begins[0] is not system:
            self._begins = (system, style_sequences(self._style_of, system))
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
            self._render_cache = line_sequences(self._line, _begins(self._segments_of, console))
        return self._render_cache


def _begins(segments: Segments, console: Console) -> Mapping[Role, str]:
    system = console._color_system or ColorSystem.TRUECOLOR  # noqa: SLF001  as Strip.render
    return segments.begins(system)


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
        self._full: set[int] = set()
        """Rows whose lines are exactly as wide as the pane, as far as known."""

    @property
    def lines(self) -> tuple[Line, ...]:
        """What the pane shows."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines; only changed rows are painted."""
        before, self._lines = self._lines, tuple(lines)
        if before == self._lines:
            return
        self._full.clear()
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

    def take(self, lines: tuple[Line, ...], console: Console) -> str:
        """Show as many lines as before, and return the terminal sequences that draw what changed.

        Args:
            lines: as wide as the pane.
            console: of the app.
        """
        before, self._lines = self._lines, lines
        left, top = self.region.offset
        width = self.size.width
        begins = _begins(self._styled(width), console)
        pieces = []
        for y, (old, new) in enumerate(zip(before, lines, strict=True)):
            if old == new:
                continue
            self._strips.pop(y, None)
            was_full = y in self._full or _cells(old) == width
            if _cells(new) == width:
                self._full.add(y)
            else:
                self._full.discard(y)
            if was_full and y in self._full:
                x, spans = _changed_part(old, new)
                drawn = line_sequences(spans, begins)
            else:
                x, drawn = 0, self._strip(y, width).render(console)
            pieces.append(f"\x1b[{top + y + 1};{left + x + 1}H{drawn}")
        return "".join(pieces)

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
        self._styled(width)
        known = self._strips
        rows = [known[y] if y in known else self._strip(y, width) for y in crop.line_range]
        if crop.x == 0 and crop.width == width:
            return rows
        return [row.crop(crop.x, crop.right) for row in rows]

    def render_line(self, y: int) -> Strip:
        """Return one row."""
        return self.render_lines(Region(0, y, self.size.width, 1))[0]

    def _strip(self, y: int, width: int) -> Strip:
        segments = self._styled(width)
        if y >= len(self._lines):
            return Strip.blank(width, segments.blank)
        strip = self._strips.get(y)
        if strip is None:
            line = self._lines[y]
            strip = LineStrip(line, segments, width)
            if _cells(line) != width:
                strip = Strip(list(strip)).adjust_cell_length(width, segments.blank)
            self._strips[y] = strip
        return strip

    def _styled(self, width: int) -> Segments:
        if self._segments is None or self._strips_width != width:
            self._segments = self._shared_segments()
            self._strips.clear()
            self._full.clear()
            self._strips_width = width
        return self._segments

    def _shared_segments(self) -> Segments:
        # Panes with the same theme and background look the same, and styles take long to compute.
        background = self.rich_style
        filters, behind = tuple(self.get_line_filters()), self.background_colors[1]
        look = (self._style_of, background, behind, filters)
        for known, segments in _kept_segments:
            if known[0] is self._style_of and known[1:] == look[1:]:
                return segments

        def filtered(style: Style) -> Style:
            # Filters change a style in the same way in every line.
            strip = Strip([Segment(" ", style)], 1)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, behind)
            return next(iter(strip)).style or style

        styles = {role: filtered(background + own) for role, own in self._style_of.items()}
        segments = Segments(styles, filtered(background))
        _kept_segments[:] = [(look, segments), *_kept_segments[: _MOST_KEPT - 1]]
        return segments


def _changed_part(old: Line, new: Line) -> tuple[int, Line]:
    """Return the changed spans with those between them, and the column of the first.

    Both lines are equally wide, so the spans at their ends are in the same columns.
    """
    first, end, shift = 0, len(new), len(old) - len(new)
    while first < end and first < end + shift and old[first] == new[first]:
        first += 1
    while end > first and end + shift > first and old[end + shift - 1] == new[end - 1]:
        end -= 1
    return _cells(new[:first]), new[first:end]


def _cells(line: Line) -> int:
    return width_of("".join([text for text, _ in line]))


def write_rows(app: App[int], changed: Sequence[tuple[LinePane, tuple[Line, ...]]]) -> bool:
    """Write changed rows to the terminal if nothing covers them and no pane changes its size.

    Args:
        app: on a terminal.
        changed: panes and what they will show.

    Returns:
        Whether it was done; if not, `LinePane.show` does it.
    """
    driver, screens = app._driver, app.screen_stack  # noqa: SLF001  as App._display
    if not isinstance(driver, TerminalDriver) or not driver.is_started or len(screens) > 1:
        return False
    if screens[0]._layout_required or app._batch_count or _has_notices(app):  # noqa: SLF001  what is drawn later
        return False
    width = app.size.width
    if any(len(lines) != len(pane.lines) or pane.size != (width, len(lines)) for pane, lines in changed):
        return False
    drawn = "".join([pane.take(lines, app.console) for pane, lines in changed])
    x, y = app.cursor_position
    drawn += f"\x1b[{y + 1};{x + 1}H"
    driver.write(f"{SYNC_START}{drawn}{SYNC_END}" if app._sync_available else drawn)  # noqa: SLF001
    return True


def _has_notices(app: App[int]) -> bool:
    try:
        return bool(app.screen.get_child_by_type(ToastRack).children)
    except NoMatches:
        return False
