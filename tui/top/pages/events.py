"""The page of events: active alerts, and events, newest first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from neurontools.base.text import printable
from neurontools.dashboard.events import PROBLEMS, MachineEventKind
from neurontools.tui.top.page import ListPage, PageKey
from neurontools.tui.top.pages.rows import section
from neurontools.tui.widgets.lines import Line, Role, dotted, fit
from neurontools.tui.widgets.requests import Copy, Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.alerts import Alert
    from neurontools.dashboard.events import MachineEvent
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.widgets.requests import Request

_KIND_WIDTH = 12
_GOOD = frozenset(
    {MachineEventKind.FOUND, MachineEventKind.LINK_UP, MachineEventKind.DATA, MachineEventKind.ALERT_OVER}
)


class EventsPage(ListPage):
    """A list with times; alerts take at most a third of the page."""

    name = "events"
    title = "Events"

    def __init__(self) -> None:
        super().__init__()
        self._only_problems = False
        self._selected: MachineEvent | None = None

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select an event", "ten events", "newest event", "oldest event"),
            PageKey("problems", "t", "problems only, or everything", self._change, "problems only"),
            PageKey("copy", "y", "copy the event", self._copy, "copy"),
        )

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the alerts and the events."""
        alerts = model.monitor.alerts
        room = max(1, height // 3)
        shown_alerts = alerts if len(alerts) <= room else alerts[: room - 1]
        drawn = [section(" Alerts", width, f"{len(alerts)} now" if alerts else "none now")]
        drawn += [_alert_line(model, alert, width) for alert in shown_alerts]
        if len(shown_alerts) < len(alerts):
            drawn.append(fit(((f"  and {len(alerts) - len(shown_alerts)} more", Role.DIM),), width))
        found = self._found(model)
        drawn.append(section(" Events", width, self._note(model, len(found))))
        self._top = len(drawn)
        if not found:
            return [*drawn, fit(((" no events since neuron-top started", Role.DIM),), width)]
        # Newer events push the selected one down; at the top it is the newest that is looked at.
        if self._cursor.row and self._selected is not None:
            self._cursor.row = _place(found, self._selected, self._cursor.row)
        window = self._cursor.window(len(found), height - len(drawn))
        self._selected = found[self._cursor.row]
        drawn += [_line(found[row], width, selected=row == self._cursor.row) for row in window]
        return drawn

    def wanted_lines(self, model: TopModel) -> int:
        """Return the number of lines that show everything."""
        return max(3 * len(model.monitor.alerts), 6) + 3 + max(1, len(self._found(model)))

    def click(self, model: TopModel, x: int, y: int) -> None:  # noqa: ARG002  a row is hit wherever it is
        """Select the event under the mouse."""
        row = self._row_at(y, len(self._found(model)))
        if row is not None:
            self._select(model, row)

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return alerts and events, newest first."""
        return {
            "alerts": [
                {
                    "condition": str(alert.condition),
                    "text": alert.text,
                    "since_s": _since_s(model, alert),
                    "pid": alert.pid,
                    "device": alert.device,
                }
                for alert in model.monitor.alerts
            ],
            "events": [
                {name: getattr(event, name) for name in ("unix_s", "kind", "text", "pid", "device", "count")}
                for event in self._found(model)
            ],
        }

    def _found(self, model: TopModel) -> list[MachineEvent]:
        events = reversed(model.monitor.events)
        return [event for event in events if not self._only_problems or event.kind in PROBLEMS]

    def _note(self, model: TopModel, shown: int) -> str:
        what = f"{shown} problems" if self._only_problems else f"{shown}"
        forgotten = model.monitor.seen - len(model.monitor.events)
        return what + (f", {forgotten} older events dropped" if forgotten else "")

    def _move(self, model: TopModel, steps: int) -> None:
        self._select(model, self._cursor.row + steps)

    def _select(self, model: TopModel, row: int) -> None:
        found = self._found(model)
        self._cursor.move(row - self._cursor.row, len(found))
        self._selected = found[self._cursor.row] if found else None

    def _change(self, _model: TopModel) -> None:
        self._only_problems = not self._only_problems
        self._cursor.row = 0

    def _copy(self, model: TopModel) -> Request:
        found = self._found(model)
        if not found:
            return Notice("there is no event to copy")
        event = found[min(self._cursor.row, len(found) - 1)]
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(event.unix_s))
        return Copy(f"{when} {event.kind} {printable(event.text)}", "the event")


def _place(found: Sequence[MachineEvent], event: MachineEvent, otherwise: int) -> int:
    """Return the position of an event; a continued event is a new value at a new position."""
    if event in found:
        return found.index(event)
    went_on = (
        place
        for place, candidate in enumerate(found)
        if (candidate.kind, candidate.what) == (event.kind, event.what)
    )
    return next(went_on, otherwise)


def _alert_line(model: TopModel, alert: Alert, width: int) -> Line:
    since = f"{max(0.0, _since_s(model, alert)):.0f} s"
    spans = (
        (f" ! {since:>7}  ", Role.ALERT),
        (f"{alert.condition:<{_KIND_WIDTH + 2}}", Role.ALERT),
        (printable(alert.text), Role.PLAIN),
    )
    return dotted(spans, width)


def _since_s(model: TopModel, alert: Alert) -> float:
    now_s = model.shown.snapshot.taken_ns / 1e9 if model.shown.snapshot else alert.since_s
    return round(now_s - alert.since_s, 3)


def _line(event: MachineEvent, width: int, *, selected: bool) -> Line:
    when = time.strftime("%H:%M:%S", time.localtime(event.unix_s))
    role = Role.ALERT if event.kind in PROBLEMS else Role.VALUE if event.kind in _GOOD else Role.PLAIN
    mark = "!" if event.kind in PROBLEMS else " "
    text = f" {mark} {when}  {event.kind:<{_KIND_WIDTH}}  {printable(event.text)}"
    return dotted(
        ((text, Role.SELECTED if selected else role),), width, Role.SELECTED if selected else Role.PLAIN
    )
