"""The pages of operators: a table of groups that is sorted and filtered, and the roofline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.profiler.analysis.operators import By, GroupParts, GroupTotal, group_totals
from neurontools.profiler.analysis.roofline import Roofline, RooflinePoint, roofline
from neurontools.tui.profile.page import (
    PARTS_NOTE,
    ProfileGroupsPage,
    PromptRequested,
    part_lines,
    short_name,
)
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.charts import ACROSS, DOWN, Canvas
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Line, Role, Span
from neurontools.tui.widgets.requests import Prompt
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from textual import events

    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.theme import Theme


_BAR = 12


def _rate(value: float) -> Span:
    return (units.format_count(value), Role.PLAIN) if value else ("-", Role.DIM)


# fmt: off
_COLUMNS = (
    TableColumn("name", right=False, cell=lambda group: (short_name(group.name), Role.PLAIN), order=lambda group: group.name),
    TableColumn("count", 8, cell=lambda group: (str(group.count), Role.DIM), order=lambda group: -group.count),
    TableColumn("time", 10, cell=lambda group: (units.format_ns(group.total_ns), Role.VALUE), order=lambda group: -group.total_ns),
    TableColumn("share", 6, cell=lambda group: (f"{100 * group.share:.1f}%", Role.PLAIN)),
    TableColumn("", _BAR, right=False, rank=3, cell=lambda group: bar(group.share, _BAR)),
    TableColumn("median", 10, rank=2, cell=lambda group: (units.format_ns(group.median_ns), Role.PLAIN), order=lambda group: -group.median_ns),
    TableColumn("max", 10, rank=4, cell=lambda group: (units.format_ns(group.max_ns), Role.PLAIN), order=lambda group: -group.max_ns),
    TableColumn("flop/s", 8, rank=1, cell=lambda group: _rate(group.flops_s), order=lambda group: -group.flops_s),
    TableColumn("B/s", 8, rank=5, cell=lambda group: _rate(group.bytes_s), order=lambda group: -group.bytes_s),
    TableColumn("flop/B", 8, rank=6, cell=lambda group: (f"{group.intensity:.1f}", Role.PLAIN) if group.intensity else ("-", Role.DIM), order=lambda group: -group.intensity),
)
# fmt: on
_ORDERS = {number: column.order for number, column in enumerate(_COLUMNS) if column.order}
_TIME = 2
_PARTS = (By.SHAPE, By.LAYER, By.SOURCE, By.OPERATOR)
_LEAST_BELOW = 10
_LEAST_FOR_THREE = 160


class OperatorsPage(ProfileGroupsPage):
    """Totals by operator, shape, layer, line, engine or opcode."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "next sort key", show=False),
        Binding("slash", "filter", "filter", key_display="/", show=False),
    ]
    title = "Operators"
    groupings = (By.OPERATOR, By.SHAPE, By.LAYER, By.SOURCE, By.ENGINE, By.OPCODE)

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._order = _TIME
        self._filter = ""
        self._groups: dict[By, tuple[GroupTotal, ...]] = {}
        self._shown: tuple[By, str, int] | None = None
        self._rows: list[GroupTotal] = []
        self._layout = TableLayout(_COLUMNS, 80)
        self._parts: GroupParts | None = None

    @property
    def rows(self) -> list[GroupTotal]:
        """The groups in view."""
        if self.by not in self._groups:
            self._groups[self.by] = group_totals(self._trace, self.by)
        wanted = self.by, self._filter.casefold(), self._order
        if self._shown != wanted:
            matching = [group for group in self._groups[self.by] if wanted[1] in group.name.casefold()]
            self._shown, self._rows = wanted, sorted(matching, key=_ORDERS[self._order])
        return self._rows

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def action_sort(self) -> None:
        """Sort by the next column."""
        orders = list(_ORDERS)
        self._sort_by(orders[(orders.index(self._order) + 1) % len(orders)])

    def action_filter(self) -> None:
        """Ask for a text that names contain."""
        self.post_message(
            PromptRequested(Prompt("Filter: text that names contain", self._filter, self.filter_by))
        )

    def filter_by(self, text: str) -> str:
        """Show the groups whose names contain a text."""
        self._filter = text
        self.cursor.row = 0
        self.draw()
        return ""

    def action_open(self) -> None:
        """Show the slowest event of the group in the timeline."""
        rows = self.rows
        if rows:
            self.show_slowest(rows[self.cursor.row].name)

    def on_click(self, event: events.Click) -> None:
        """Sort by the head that is clicked, or select a row."""
        if event.y == self._top - 1:
            column = self._layout.column_at(event.x - (1 if is_boxed(*self.size) else 0))
            if column in _ORDERS:
                self._sort_by(column)
            return
        super().on_click(event)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the table."""
        rows = self.rows
        if not rows and not self._filter:
            reason = "The profile has no device records, so no operators."
            return self.no_data(reason)
        boxed = is_boxed(width, height)
        below = height - len(rows) - chrome_lines(boxed=True) - 1 if boxed and rows else 0
        if below < _LEAST_BELOW:
            return self._table(width, height)
        return [*self._table(width, height - below), *self._parts_of_group(width, below)]

    def _parts_of_group(self, width: int, height: int) -> list[Line]:
        """Return panes about the selected group: what its events have in common beside it."""
        if self._parts is None:
            self._parts = GroupParts(self._trace)
        name = self.rows[self.cursor.row].name
        left = width // 2
        widths = [left, width - left]
        if width >= _LEAST_FOR_THREE:
            widths[1:] = [widths[1] // 2, widths[1] - widths[1] // 2]
        drawn: list[Line] = []
        for cells, over in zip(widths, (by for by in _PARTS if by is not self.by), strict=False):
            parts = self._parts.of(self.by, name, over)
            body = list(part_lines(parts, f"{name} ", cells - 2, height - 2))
            title = f"by {over}" if drawn else f"{short_name(name)} by {over}"
            pane = framed(title, body, (cells, height), note=PARTS_NOTE)
            drawn = beside(drawn, pane) if drawn else pane
        return drawn

    def _table(self, width: int, height: int) -> list[Line]:
        rows, boxed = self.rows, is_boxed(width, self.size.height)
        inner = inner_width(width, boxed=boxed)
        self._layout = layout = TableLayout(_COLUMNS, inner)
        self._top = 2
        room = height - chrome_lines(boxed=boxed) - 1
        body = self.table(layout, room, rows)
        body[0] = layout.head(self._order)
        clock = "measured" if self._trace.measured_by else "modelled"
        filtered = f" with {self._filter!r}" if self._filter else ""
        note = f"{plural(len(rows), 'group')}{filtered}, {clock}"
        foot = "s sort  g group  / filter  ⏎ slowest in the timeline"
        title = f"{self.title} by {self.by}"
        return framed(title, body, (width, height), note=note, foot=foot, boxed=boxed)

    def _sort_by(self, column: int) -> None:
        self._order = column
        self.cursor.row = 0
        self.draw()


# fmt: off
_ROOFLINE_COLUMNS = (
    TableColumn("name", right=False, least=23, cell=lambda point: (short_name(point.name), Role.PLAIN)),
    TableColumn("time", 10, cell=lambda point: (units.format_ns(point.total_ns), Role.VALUE)),
    TableColumn("flop/B", 8, rank=3, cell=lambda point: (f"{point.intensity:.1f}" if math.isfinite(point.intensity) else "-", Role.PLAIN)),
    TableColumn("flop/s", 8, rank=2, cell=lambda point: (units.format_count(point.flops_s) if point.flops else "-", Role.PLAIN)),
    TableColumn("of roof", 7, cell=lambda point: (f"{100 * point.roof_share:.1f}%" if point.bound else "-", Role.PLAIN)),
    TableColumn("bound by", 8, right=False, rank=1, cell=lambda point: (point.bound or "-", Role.DIM)),
    TableColumn("to gain", 10, rank=4, cell=lambda point: (units.format_ns(point.gap_ns), Role.PLAIN)),
)
# fmt: on
_SIDE = 110
_LIST_LEAST, _LIST_MOST = 59, 94
_TICK = 11
_DECADES = 2
_UNIT = " flop/B "


class RooflinePage(ProfileGroupsPage):
    """Roofs, dots and the list of points."""

    title = "Roofline"
    groupings = (By.OPERATOR, By.LAYER, By.SOURCE)

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._known: dict[By, Roofline] = {}

    @property
    def roofline(self) -> Roofline:
        """The points and peaks."""
        if self.by not in self._known:
            self._known[self.by] = roofline(self._trace, self.by)
        return self._known[self.by]

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.roofline.points)

    def action_open(self) -> None:
        """Show the slowest event of the point in the timeline."""
        if self.count:
            self.show_slowest(self.roofline.points[self.cursor.row].name)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the plot with the list beside or below it."""
        found = self.roofline
        if not found.points:
            reason = "The profile has no device records, so no roofline."
            return self.no_data(reason)
        if not found.ridge:
            reason = "The peaks of this device are unknown, so there is no roof."
            return self.no_data(reason, "capture on an instance type of the catalogue")
        boxed = is_boxed(width, height)
        edges = chrome_lines(boxed=boxed)
        is_beside = width >= _SIDE
        across = width - max(_LIST_LEAST, min(_LIST_MOST, width * 47 // 100)) if is_beside else width
        down = height if is_beside else max(height - min(self.count + 1 + edges, height // 2), edges + 1)
        plot = self._plot(found, inner_width(across, boxed=boxed), down - edges)
        note = f"ridge at {found.ridge:.0f} flop/B, modelled"
        left = framed(f"Roofline by {self.by}", plot, (across, down), note=note, boxed=boxed)
        rest = (width - across, height) if is_beside else (width, height - down)
        right = self._list(found, rest, boxed=boxed)
        self._top = (2 if rest[1] else 0) + (0 if is_beside else down)
        return beside(left, right) if is_beside else [*left, *right]

    def _list(self, found: Roofline, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        inner = inner_width(size[0], boxed=boxed)
        layout = TableLayout(_ROOFLINE_COLUMNS, inner)
        room = size[1] - chrome_lines(boxed=boxed) - 1
        body = self.table(layout, max(room, 1), found.points)
        return framed("Points", body, size, foot="g group  ⏎ slowest in the timeline", boxed=boxed)

    def _plot(self, found: Roofline, width: int, height: int) -> list[Line]:
        canvas = Canvas(width, max(height, 1))
        axes = _Axes(found, (ACROSS * width, DOWN * max(height - 1, 1)))
        for x in range(ACROSS * width):
            intensity = axes.intensity(x)
            roof = min(found.peak_flops_s, intensity * found.peak_bytes_s)
            canvas.dot(x, axes.y(roof), Role.FRAME_NOTE)
        for power in range(math.ceil(axes.left), math.floor(axes.right) + 1):
            label = f"{10.0**power:g}"
            column = axes.x(10.0**power) // ACROSS
            if column + len(label) < width - len(_UNIT):
                canvas.text(column, canvas.height - 1, label, Role.DIM)
        highest = math.floor(axes.top)
        for power in range(math.ceil(axes.bottom), highest + 1):
            number, _, prefix = units.format_count(10.0**power).partition(" ")
            unit = "flop/s" if power == highest else ""
            canvas.text(0, axes.y(10.0**power) // DOWN, f"{float(number):g} {prefix}{unit}", Role.DIM)
        peak = f"{units.format_count(found.peak_flops_s)}flop/s"
        canvas.text(max(width - len(peak) - 1, 0), axes.y(found.peak_flops_s) // DOWN + 1, peak, Role.DIM)
        hbm = f"HBM {units.format_count(found.peak_bytes_s)}B/s"
        middle = ACROSS * width // 4
        column, line = middle // ACROSS, axes.y(axes.intensity(middle) * found.peak_bytes_s) // DOWN
        left = column - len(hbm) - 1
        canvas.text(left if left >= _TICK else column + 2, line if left >= _TICK else line + 1, hbm, Role.DIM)
        canvas.text(max(width - len(_UNIT), 0), canvas.height - 1, _UNIT, Role.DIM)
        chosen = found.points[min(self.cursor.row, self.count - 1)]
        for point in (*reversed(found.points), chosen):
            dot = axes.place(point)
            if dot is not None:
                _mark(canvas, dot, point, is_chosen=point is chosen)
        return canvas.lines()


class _Axes:
    """Logarithmic axes: operations a byte across, operations a second up."""

    def __init__(self, found: Roofline, dots: tuple[int, int]) -> None:
        self._width, self._height = dots
        drawn = [point for point in found.points if point.flops and math.isfinite(point.intensity)]
        ridge = math.log10(found.ridge)
        places = [math.log10(point.intensity) for point in drawn]
        self.left = min([ridge - _DECADES, *places]) - 0.3
        self.right = max([ridge + 1, *places]) + 0.3
        top = math.log10(found.peak_flops_s)
        self.top = top + 0.3
        self.bottom = min([top - _DECADES, *(math.log10(max(point.flops_s, 1.0)) for point in drawn)]) - 0.3

    def intensity(self, x: int) -> float:
        """Return the operations a byte at a column of dots."""
        return float(10 ** (self.left + (self.right - self.left) * x / max(self._width - 1, 1)))

    def x(self, intensity: float) -> int:
        """Return the column of dots of operations a byte."""
        share = (math.log10(intensity) - self.left) / (self.right - self.left)
        return round(share * (self._width - 1))

    def y(self, flops_s: float) -> int:
        """Return the line of dots of operations a second."""
        share = (math.log10(max(flops_s, 1.0)) - self.bottom) / (self.top - self.bottom)
        return round((1 - share) * (self._height - 1))

    def place(self, point: RooflinePoint) -> tuple[int, int] | None:
        """Return where a point is; None without operations or bytes."""
        if not point.flops or not math.isfinite(point.intensity):
            return None
        return self.x(point.intensity), self.y(point.flops_s)


def _mark(canvas: Canvas, place: tuple[int, int], point: RooflinePoint, *, is_chosen: bool) -> None:
    x, y = place
    if is_chosen:
        name = short_name(point.name)
        column = x // ACROSS
        canvas.text(column, y // DOWN, "●", Role.CURSOR)
        left = column + 2 if column + 2 + len(name) <= canvas.width else max(column - len(name) - 1, 0)
        canvas.text(left, y // DOWN, name if name.isascii() else "", Role.STRONG)
        return
    canvas.text(x // ACROSS, y // DOWN, "●", Role.GRAPH)
