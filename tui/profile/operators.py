"""The page of operators: groups of events in a table that is sorted and filtered."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.profiler.analysis.operators import By, GroupParts, group_totals
from neurontools.tui.profile.page import (
    PARTS_NOTE,
    ProfileGroupsPage,
    PromptRequested,
    part_lines,
    short_name,
)
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Role
from neurontools.tui.widgets.requests import Prompt
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType

    from neurontools.profiler.analysis.operators import GroupTotal
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line, Span
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
