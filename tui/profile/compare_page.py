"""The page that compares a second profile with the first: steps, and what is slower, faster, new or gone."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.profiler.analysis.compare import COMPARED, ChangeKind, compare
from neurontools.tui.profile.page import ProfileListPage, empty_page
from neurontools.tui.profile.timeline_drawing import short_name
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Role, fit, wrapped
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from textual.binding import BindingType

    from neurontools.profiler.analysis.compare import GroupChange, ProfileComparison, TimeChange
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line
    from neurontools.tui.widgets.theme import Theme

_COLUMNS = (
    TableColumn("name", right=False),
    TableColumn("before", 10),
    TableColumn("after", 10),
    TableColumn("difference", 11),
    TableColumn("ratio", 7, rank=1),
    TableColumn("", 7, right=False),
    TableColumn("count", 15, rank=2),
)
_ROLES = {ChangeKind.SLOWER: Role.ALERT, ChangeKind.NEW: Role.ALERT, ChangeKind.SAME: Role.DIM}


class ComparePage(ProfileListPage):
    """Two profiles: the first one given is before, the second after."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "group", "next grouping", show=False),
    ]
    title = "Compare"

    def __init__(self, trace: Trace, look: Theme, *, id: str, other: Trace | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._trace = trace
        self._other = other
        self._by = COMPARED[-1]

    @cached_property
    def _found(self) -> ProfileComparison | None:
        return None if self._other is None else compare(self._trace, self._other)

    @property
    def _changes(self) -> tuple[GroupChange, ...]:
        return () if self._found is None else self._found.groups.get(self._by, ())

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._changes)

    def action_group(self) -> None:
        """Use the next grouping."""
        self._by = COMPARED[(COMPARED.index(self._by) + 1) % len(COMPARED)]
        self.cursor.row = 0
        self.draw()

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the verdict and the table of changes."""
        found = self._found
        if found is None:
            reason = "One profile is open; comparing needs a second one."
            return empty_page(self.title, reason, "neuron-profile view BEFORE AFTER", (width, height))
        boxed = is_boxed(width, height)
        inner = inner_width(width, boxed=boxed)
        edges = chrome_lines(boxed=boxed)
        head = [
            *_time_lines("device time of a step, modelled", found.device, inner),
            *_time_lines("step, measured", found.step, inner),
        ]
        for text in (*found.reasons, *found.notes):
            head += [fit(((f" {piece}", Role.ALERT),), inner) for piece in wrapped(text, max(inner - 2, 1))]
        upper = min(len(head) + edges, height)
        lines = framed(f"Compare: {found.verdict}", head, (width, upper), boxed=boxed)
        if height - upper <= edges:
            return lines
        layout = TableLayout(_COLUMNS, inner)
        self._top = upper + 2
        body = [layout.head()]
        body += [
            _line(layout, self._changes[number], selected=number == self.cursor.row)
            for number in self.cursor.window(self.count, height - upper - edges - 1)
        ]
        note = f"{plural(self.count, 'group')}, a step, modelled"
        title = f"Changes by {self._by}"
        foot = "↑↓ select  g group"
        return [
            *lines,
            *framed(title, body, (width, height - upper), note=note, foot=foot, boxed=boxed),
        ]


def _time_lines(name: str, change: TimeChange | None, width: int) -> list[Line]:
    if change is None:
        return [fit(((f" {name}: not in both profiles", Role.DIM),), width)]
    ratio = "" if change.ratio is None else f"  x{change.ratio:.3f}"
    chance = "" if change.p_value is None else f", p {change.p_value:.2g}"
    spans = (
        (f" {name}  ", Role.HEAD),
        (units.format_ns(change.before_ns), Role.PLAIN),
        (" → ", Role.DIM),
        (units.format_ns(change.after_ns), Role.VALUE),
        (f"{ratio}  {change.verdict}", Role.STRONG),
        (f"  {change.before_steps} and {plural(change.after_steps, 'step')}{chance}", Role.DIM),
    )
    return [fit(spans, width)]


def _line(layout: TableLayout, change: GroupChange, *, selected: bool) -> Line:
    sign = "+" if change.difference_ns > 0 else "-" if change.difference_ns < 0 else ""
    ratio = f"x{change.after_ns / change.before_ns:.2f}" if change.before_ns else "-"
    counts = f"{change.before_count:g} → {change.after_count:g}"
    role = _ROLES.get(change.kind, Role.PLAIN)
    return layout.line(
        (
            (short_name(change.name), Role.PLAIN),
            (units.format_ns(change.before_ns), Role.PLAIN),
            (units.format_ns(change.after_ns), Role.VALUE),
            (f"{sign}{units.format_ns(abs(change.difference_ns))}", role),
            (ratio, Role.PLAIN),
            (str(change.kind), role),
            (counts if change.before_count != change.after_count else f"{change.after_count:g}", Role.DIM),
        ),
        selected=selected,
    )
