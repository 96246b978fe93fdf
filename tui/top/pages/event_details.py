"""One event in full: when, what it means, what to do, the process or device it is about, others about the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.dashboard.events import PROBLEMS, FoldedEvents, MachineEvent, advice_for
from neurontools.dashboard.machine_history import MACHINE
from neurontools.dashboard.process_table import user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.tui.top.numbers import percent, size
from neurontools.tui.top.pages.columns import duration, latency
from neurontools.tui.top.pages.curves import chart_pane, share_curve
from neurontools.tui.top.pages.job_details import utilization_curve
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width
from neurontools.tui.widgets.lines import Line, Role, dotted, fact_lines, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.curves import HistoryCurve

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
