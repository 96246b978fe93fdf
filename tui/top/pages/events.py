"""The page of events: active alerts, events, newest first, and one event in full."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable
from neurontools.dashboard.advice import advice_for
from neurontools.dashboard.events import PROBLEMS, FoldedEvents, MachineEvent, MachineEventKind, fold
from neurontools.dashboard.machine_history import MACHINE
from neurontools.dashboard.process_table import user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.tui.top.numbers import percent, size
from neurontools.tui.top.page import ListPage, PageKey
from neurontools.tui.top.pages.columns import duration, latency
from neurontools.tui.top.pages.curves import HistoryCurve, chart_pane, share_curve
from neurontools.tui.top.pages.job_details import utilization_curve
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed, row
from neurontools.tui.widgets.lines import Line, Role, dotted, fact_lines, fit, fixed
from neurontools.tui.widgets.requests import Copy, Notice, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.alerts import Alert
    from neurontools.tui.top.model import TopModel


_KIND_WIDTH = 12
_NOTHING = (
    "Processes that start and end, failed executions, memory errors, lost devices, broken links and alerts appear here, "
    "with what they mean and what to do."
)
_LEAST_FOR_DETAILS = 150
_LIST_PERCENT = 54
_GOOD = frozenset(
    {MachineEventKind.FOUND, MachineEventKind.LINK_UP, MachineEventKind.DATA, MachineEventKind.ALERT_OVER}
)


class EventsPage(ListPage):
    """A list with times; alerts take at most a third of the page."""

    name = "events"
    letter = "e"

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
        """Return the alerts and the events; with plenty of room, the selected event in full beside them."""
        boxed = is_boxed(width, height)
        if width < _LEAST_FOR_DETAILS or not boxed:
            return self._lists(model, width, height, boxed=boxed)

        left = width * _LIST_PERCENT // 100
        drawn = self._lists(model, left, height, boxed=True)
        found = self._found(model)
        folded = found[min(self._cursor.row, len(found) - 1)] if found else None
        return beside(drawn, event_panes(model, folded, width - left, height))

    def all_lines(self, model: TopModel, width: int) -> Sequence[Line]:
        """Return all alerts and events."""
        height = self.wanted_lines(model)
        return self._lists(model, width, height, boxed=is_boxed(width, height))

    def _lists(self, model: TopModel, width: int, height: int, *, boxed: bool) -> list[Line]:
        frame, inner = chrome_lines(boxed=boxed), inner_width(width, boxed=boxed)
        alerts = model.monitor.alerts
        room = max(1, height // 3 - frame)
        shown_alerts = alerts if len(alerts) <= room else alerts[: room - 1]
        body = [_alert_line(model, alert, inner) for alert in shown_alerts]
        if len(shown_alerts) < len(alerts):
            body.append(fit(((f"  and {len(alerts) - len(shown_alerts)} more", Role.DIM),), inner))
        note = f"{len(alerts)} now" if alerts else "none now"
        drawn = framed("Alerts", body, (width, len(body) + frame), note=note, boxed=boxed)
        found = self._found(model)
        self._top = len(drawn) + 1
        room = height - len(drawn)
        if not found:
            body = [fit(((" no events since neuron-top started", Role.DIM),), inner), fit((), inner)]
            body += fact_lines("", _NOTHING, inner, 1, Role.DIM)
            return drawn + framed("Events", body, (width, room), note="0", boxed=boxed)
        # Newer events push the selected one down; at the top it is the newest that is looked at.
        if self._cursor.row and self._selected is not None:
            self._cursor.row = _place(found, self._selected, self._cursor.row)
        window = self._cursor.window(len(found), room - frame)
        self._selected = found[self._cursor.row].newest
        body = [_line(found[at], inner, selected=at == self._cursor.row) for at in window]
        note, foot = self._note(model, found), "t problems only  y copy"
        return drawn + framed("Events", body, (width, room), note=note, foot=foot, boxed=boxed)

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
                for folded in self._found(model)
                for event in folded.events
            ],
        }

    def _found(self, model: TopModel) -> tuple[FoldedEvents, ...]:
        events = reversed(model.monitor.events)
        return fold(event for event in events if not self._only_problems or event.kind in PROBLEMS)

    def _note(self, model: TopModel, found: Sequence[FoldedEvents]) -> str:
        shown = sum(len(folded.events) for folded in found)
        what = f"{shown} problems" if self._only_problems else f"{shown}"
        forgotten = model.monitor.seen - len(model.monitor.events)
        return what + (f", {forgotten} older events dropped" if forgotten else "")

    def _move(self, model: TopModel, steps: int) -> None:
        self._select(model, self._cursor.row + steps)

    def _select(self, model: TopModel, row: int) -> None:
        found = self._found(model)
        self._cursor.move(row - self._cursor.row, len(found))
        self._selected = found[self._cursor.row].newest if found else None

    def _change(self, _model: TopModel) -> None:
        self._only_problems = not self._only_problems
        self._cursor.row = 0

    def _copy(self, model: TopModel) -> Request:
        found = self._found(model)
        if not found:
            return Notice("there is no event to copy")
        folded = found[min(self._cursor.row, len(found) - 1)]
        event = folded.newest
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(event.unix_s))
        return Copy(f"{when} {event.kind} {printable(folded.text)}", "the event")


def _place(found: Sequence[FoldedEvents], event: MachineEvent, otherwise: int) -> int:
    """Return the position of an event; a continued event is a new value at a new position."""
    went_on = otherwise
    for place, folded in enumerate(found):
        if event in folded.events:
            return place
        if went_on == otherwise and (folded.newest.kind, folded.newest.what) == (event.kind, event.what):
            went_on = place
    return went_on


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


def _line(folded: FoldedEvents, width: int, *, selected: bool) -> Line:
    event = folded.newest
    when = time.strftime("%H:%M:%S", time.localtime(event.unix_s))
    is_problem = event.kind in PROBLEMS
    role = Role.ALERT if is_problem else Role.VALUE if event.kind in _GOOD else Role.PLAIN
    text = printable(folded.text)
    spans = (
        (f"{'!' if is_problem else ' '} {when}  ", role if is_problem else Role.DIM),
        (f"{event.kind:<{_KIND_WIDTH}}", role),
        (fixed(text, max(8, width - 14 - _KIND_WIDTH)).rstrip(), Role.PLAIN),
    )
    return row(spans, width, selected=selected)


_LABEL = 13
_CHART_LINES = 6
_MINUTES = 60
_MOST_RELATED = 8
_LEAST_CURVE = 9


def event_panes(model: TopModel, folded: FoldedEvents | None, width: int, height: int) -> list[Line]:
    """Return the details of the selected event, and below them how many events there were in the last hour."""
    inner = inner_width(width, boxed=True)
    chart = framed(
        "Last Hour", _minute_chart(model, inner), (width, _CHART_LINES + 2), note="problems per minute"
    )
    if folded is None:
        text = [fit(((" no event is selected", Role.DIM),), inner)]
    else:
        text = list(_details(model, folded, inner))
    upper = height - len(chart)
    own = max(len(text) + chrome_lines(boxed=True), upper // 2)
    if upper - own < _LEAST_CURVE:
        return [*framed("Event", text, (width, upper)), *chart]
    name, curve = _curve(model, folded.newest if folded else None)
    size = (width, upper - own)
    middle = chart_pane(curve, f"Utilization of {name}", size, hour=False, boxed=True)
    return [*framed("Event", text, (width, own)), *middle, *chart]


def _curve(model: TopModel, event: MachineEvent | None) -> tuple[str, HistoryCurve]:
    if event is not None and event.device is not None:
        return f"ND{event.device}", share_curve(model, ("device", event.device))
    pid = event.pid if event else None
    rows = [row for row in model.shown.processes if row.process.pid == pid]
    if rows:
        return f"process {pid}", utilization_curve(model, rows)
    return "all cores", share_curve(model, MACHINE)


def _details(model: TopModel, folded: FoldedEvents, width: int) -> Iterator[Line]:
    event = folded.newest
    is_problem = event.kind in PROBLEMS
    role = Role.ALERT if is_problem else Role.STRONG
    yield from fact_lines("", printable(folded.text), width, 1, role)
    yield fit((), width)
    now_s = model.shown.snapshot.taken_unix_s if model.shown.snapshot else event.unix_s
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.unix_s))
    yield from fact_lines("time", f"{when}, {duration(max(0.0, now_s - event.unix_s))} ago", width, _LABEL)
    kind = str(event.kind)
    if len(folded.events) > 1:
        first_s = folded.events[-1].unix_s
        spread = duration(event.unix_s - first_s) if event.unix_s - first_s >= 1 else ""
        kind += f", {len(folded.events)} like it" + (f" in {spread}" if spread else " at once")
    yield from fact_lines("kind", kind, width, _LABEL)
    advice = advice_for(event)
    yield from fact_lines("meaning", advice.meaning, width, _LABEL)
    for number, step in enumerate(advice.steps):
        yield from fact_lines("" if number else "what to do", step, width, _LABEL, Role.VALUE)
    yield from _process(model, event, width)
    yield from _device(model, event, width)
    yield from _related(model, folded, width)


def _process(model: TopModel, event: MachineEvent, width: int) -> Iterator[Line]:
    if event.pid is None:
        return
    yield fit((), width)
    row = next((one for one in model.shown.processes if one.process.pid == event.pid), None)
    if row is None:
        yield from fact_lines("process", f"{event.pid}, no longer there", width, _LABEL, Role.DIM)
        return
    process = row.process
    cores = core_ranges(tuple(use.core for use in process.cores)) or "none"
    done = f"utilization {percent(row.utilization).strip()}, {row.executions_s:.1f} executions/s"
    took = f"latency p50 {latency(row.latency_s(50))}, p99 {latency(row.latency_s(99))}"
    facts = (
        ("process", f"{process.pid} of {user_name(process.uid)}, {duration(row.age_s)} old, cores {cores}"),
        ("command", printable(process.command)),
        ("now", f"{done}, {size(row.device_bytes)}, {took}"),
    )
    for name, text in facts:
        yield from fact_lines(name, text, width, _LABEL)


def _device(model: TopModel, event: MachineEvent, width: int) -> Iterator[Line]:
    devices = model.shown.snapshot.devices if model.shown.snapshot else ()
    device = next((one for one in devices if one.index == event.device), None)
    if device is None:
        return
    yield fit((), width)
    state = "lost" if device.lost else ", ".join(device.unhealthy) or "good"
    own = set(device.core_ids)
    users = [row for row in model.shown.processes if any(use.core in own for use in row.process.cores)]
    names = ", ".join(
        f"{row.process.pid} {printable(row.process.tag or row.process.command)}" for row in users
    )
    down = ", ".join(f"ND{peer}" for peer in device.links_down)
    errors = device.hardware.mem_ecc_uncorrected + device.hardware.sram_ecc_uncorrected
    facts = (
        ("device", f"ND{device.index}, {device.bdf or 'no address'}, state {state}"),
        ("processes", names or "none"),
        ("links down", down or "none"),
        ("memory", f"{plural(device.hardware.mem_ecc_corrected, 'corrected error')}, {errors} uncorrected"),
    )
    for name, text in facts:
        yield from fact_lines(name, text, width, _LABEL)


def _related(model: TopModel, folded: FoldedEvents, width: int) -> Iterator[Line]:
    event = folded.newest
    if event.pid is None and event.device is None:
        return
    others = [
        one
        for one in reversed(model.monitor.events)
        if (one.pid, one.device) == (event.pid, event.device) and one not in folded.events
    ]
    if not others:
        return
    about = f"ND{event.device}" if event.device is not None else f"process {event.pid}"
    yield fit((), width)
    yield fit(((f" others about {about}", Role.HEAD),), width)
    for one in others[:_MOST_RELATED]:
        when = time.strftime("%H:%M:%S", time.localtime(one.unix_s))
        role = Role.ALERT if one.kind in PROBLEMS else Role.PLAIN
        yield dotted(((f"   {when}  ", Role.DIM), (printable(one.text), role)), width)


def _minute_chart(model: TopModel, width: int) -> Sequence[Line]:
    now_s = model.shown.snapshot.taken_unix_s if model.shown.snapshot else 0.0
    counts = [0] * _MINUTES
    for event in model.monitor.events:
        minutes = int((now_s - event.unix_s) // 60)
        if event.kind in PROBLEMS and 0 <= minutes < _MINUTES:
            counts[-1 - minutes] += event.count
    most = max(counts)
    if not most:
        return [fit(((" no problems", Role.DIM),), width)]
    axis = [str(most), *[""] * (_CHART_LINES - 2), "0"]
    values = [count / most if count else None for count in counts]
    drawn = wide_chart(values, max(1, width - _LABEL // 2 - 1), _CHART_LINES)
    return [
        fit(((f"{mark:>{_LABEL // 2}} ", Role.DIM), *spans), width)
        for mark, spans in zip(axis, drawn, strict=True)
    ]
