"""The first page: where the time of a step goes, what bounds it, what to change, how steady steps are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from textual.worker import Worker, WorkerState

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.errors import NeuronToolsError
from neurontools.profiler.advice.rules import advise
from neurontools.profiler.advice.subject import open_subject
from neurontools.profiler.analysis.operators import By, group_totals, row_uses
from neurontools.profiler.analysis.ranks import compare_ranks
from neurontools.profiler.analysis.roofline import device_bound, step_bound
from neurontools.profiler.analysis.steps import PARTS, find_steps
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import process_label
from neurontools.tui.profile.page import ProfilePage, short_name
from neurontools.tui.widgets.bars import bar, stack_role, stacked_bar
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Role, fit, fixed, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.analysis.operators import GroupTotal, RowUse
    from neurontools.profiler.analysis.ranks import RankReport
    from neurontools.profiler.analysis.roofline import DeviceBound
    from neurontools.profiler.analysis.steps import ProcessSteps, StepSummary
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line, Span
    from neurontools.tui.widgets.theme import Theme

_ADVICE, _MORE_ADVICE = 3, 5
_TALL = 50
_BESIDE = 100
_MOST_CHART = 10
_OPERATORS = 100
_NAMES = {name: name.removesuffix("_ns") for name in PARTS}


class _Advice(NamedTuple):
    title: str
    gain: str = ""
    change: str = ""


class ProfileOverviewPage(ProfilePage):
    """Steps, engines, advice and warnings."""

    title = "Overview"

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._advice: list[_Advice] = [_Advice("looking for what to change ...")]

    @cached_property
    def _steps(self) -> ProcessSteps | None:
        """The steps of the process; of several workers, those of the straggler or else the first."""
        processes = find_steps(self._trace)
        slow = [rank.pid for rank in self._ranks.ranks if rank.is_straggler] if self._ranks else []
        return next((each for each in processes if each.pid in slow), next(iter(processes), None))

    @cached_property
    def _ranks(self) -> RankReport | None:
        try:
            return compare_ranks(self._trace)
        except NeuronToolsError:
            return None

    def on_mount(self) -> None:
        """Look for advice in a thread: it holds the engine model against many changes."""
        self.run_worker(lambda: _advice_of(self._trace), thread=True, exit_on_error=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show the advice."""
        if event.state is WorkerState.SUCCESS:
            self._advice = event.worker.result or []
            self.draw()

    @cached_property
    def _warnings(self) -> tuple[str, ...]:
        return summarise(self._trace).warnings

    @cached_property
    def _bound(self) -> DeviceBound | None:
        return device_bound(self._trace)

    @cached_property
    def _largest(self) -> tuple[GroupTotal, ...]:
        return group_totals(self._trace, By.OPERATOR, _OPERATORS)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the panes, two beside each other where there is room."""
        boxed = is_boxed(width, height)
        edges = chrome_lines(boxed=boxed)
        if self._trace.measured_by:
            return self._of_other_program(width, height, boxed=boxed)
        if self._steps is None:
            return self.no_data("The profile has no executions, so there is no step.")
        columns = (width // 2, width - width // 2) if width >= _BESIDE else (width, width)
        where = self._where(inner_width(columns[0], boxed=boxed))
        engines = self._engines(inner_width(columns[1], boxed=boxed))
        panes: list[Line] = []
        titles = ("Step: where the time goes", self._whose), ("Device: what works", "modelled")
        if width >= _BESIDE:
            high = max(len(where), len(engines)) + edges
            left, right = (
                framed(title, body, (size, high), note=note, boxed=boxed)
                for (title, note), body, size in zip(titles, (where, engines), columns, strict=True)
            )
            panes += beside(left, right)
        else:
            for (title, note), body, size in zip(titles, (where, engines), columns, strict=True):
                panes += framed(title, body, (size, len(body) + edges), note=note, boxed=boxed)
        inner = inner_width(width, boxed=boxed)
        pieces = self._advice[: _ADVICE if height < _TALL else _MORE_ADVICE]
        advice, count = _advice_lines(pieces, inner, height - len(panes) - edges)
        note = "all of it: neuron-profile advise" if count < len(self._advice) else ""
        panes += framed("Advice", advice, (width, len(advice) + edges), boxed=boxed, note=note)
        if self._warnings:
            warnings = [
                fit(((f" {piece}", Role.ALERT),), inner)
                for warning in self._warnings
                for piece in wrapped(warning, inner - 2)
            ]
            panes += framed("Warnings", warnings, (width, len(warnings) + edges), boxed=boxed)
        room = height - len(panes)
        if room > edges:
            high = min(room, _MOST_CHART)
            chart = self._chart(inner, high - edges)
            panes += framed("Steps", chart, (width, high), boxed=boxed, note=self._steps.how)
        if height - len(panes) > edges + 1:
            room = height - len(panes)
            body = self._operators(inner, room - edges)
            panes += framed("Operators", body, (width, room), boxed=boxed, note="modelled")
        return panes

    def _of_other_program(self, width: int, height: int, *, boxed: bool) -> list[Line]:
        """Return what there is to say of a trace without executions: how busy its rows are, its steps and operators."""
        edges = chrome_lines(boxed=boxed)
        inner = inner_width(width, boxed=boxed)
        cells = max(inner // 3, 4)
        name_width = max(inner - cells - 28, 8)
        uses = sorted(self._uses, key=lambda use: -use.busy_ns)[: max((height - 2 * edges) // 2, 1)]
        whole = max(self._trace.end_ns, 1)
        rows = [
            fit(
                (
                    (f" {fixed(f'{use.row.name}, {use.row.process_label}', name_width)} ", Role.PLAIN),
                    (f"{use.events:>9} ", Role.DIM),
                    (f"{use.busy_ns / whole:>7.1%} ", Role.VALUE),
                    *bar(use.busy_ns / whole, cells),
                ),
                inner,
            )
            for use in uses
        ]
        note = f"measured by {self._trace.measured_by}"
        panes = framed("Rows: events, busy", rows, (width, len(rows) + edges), boxed=boxed, note=note)
        for warning in self._warnings:
            panes += [fit(((f" {piece}", Role.ALERT),), width) for piece in wrapped(warning, width - 2)]
        room = height - len(panes)
        if self._steps is not None and room > edges:
            high = min(max(room // 2, edges + 1), edges + 1 + _MOST_CHART)
            steps = [_headline(self._steps.summary(), inner), *self._chart(inner, high - edges - 1)]
            panes += framed("Steps", steps, (width, high), boxed=boxed, note=self._steps.how)
        room = height - len(panes)
        if room > edges:
            body = self._operators(inner, room - edges)
            panes += framed("Operators, own time", body, (width, room), boxed=boxed, note="measured")
        return panes

    @cached_property
    def _uses(self) -> tuple[RowUse, ...]:
        return row_uses(self._trace, self._trace.rows, 0, self._trace.end_ns)

    def _operators(self, width: int, height: int) -> list[Line]:
        """Return the operators with most time."""
        lines: list[Line] = []
        cells = max(width // 3, 4)
        for operator in self._largest[:height]:
            name = fixed(short_name(operator.name), max(width - cells - 29, 8))
            spans: tuple[Span, ...] = (
                (f" {name} ", Role.PLAIN),
                (f"{operator.count:>7} ", Role.DIM),
                (units.format_ns(operator.total_ns).rjust(10), Role.VALUE),
                (f"{operator.share:>7.1%} ", Role.PLAIN),
                *bar(operator.share, cells),
            )
            lines.append(fit(spans, width))
        return lines

    def _where(self, width: int) -> list[Line]:
        steps = self._steps
        assert steps is not None
        summary = steps.summary()
        parts = [(_NAMES[name], int(getattr(summary, name))) for name in PARTS]
        whole = max(sum(ns for _, ns in parts), 1)
        spent = [(name, ns) for name, ns in sorted(parts, key=lambda part: -part[1]) if ns]
        lines = [
            _headline(summary, width),
            fit(((" ", Role.PLAIN), *stacked_bar([ns / whole for _, ns in spent], width - 2)), width),
        ]
        for number, (name, ns) in enumerate(spent):
            spans: tuple[Span, ...] = (
                (" ▇ ", stack_role(number)),
                (f"{name:<10}", Role.PLAIN),
                (units.format_ns(ns).rjust(10), Role.VALUE),
                (f"{ns / whole:>7.1%}", Role.PLAIN),
            )
            lines.append(fit(spans, width))
        average = units.format_ns(summary.mean_ns).rjust(10)
        lines.append(fit(((f"   {'average':<10}", Role.DIM), (average, Role.DIM)), width))
        lines += [fit(((f" {piece}", Role.STRONG),), width) for piece in wrapped(self._verdict, width - 2)]
        return lines

    @property
    def _whose(self) -> str:
        """Whose steps are shown, and by which clock."""
        assert self._steps is not None
        if self._ranks is None:
            return "measured"
        whose = process_label(self._steps.pid, self._steps.rank).partition(" (")[0]
        return f"{whose}, measured"

    @property
    def _verdict(self) -> str:
        assert self._steps is not None
        bound = step_bound(self._steps.summary())
        if self._ranks is None:
            return bound
        lost = units.format_ns(self._ranks.lost_ns)
        return f"{bound}; {lost} of a step lost to the slowest rank (F7)"

    def _engines(self, width: int) -> list[Line]:
        bound = self._bound
        if bound is None:
            return [
                fit(((" no device times in this profile", Role.DIM),), width),
                fit(((" NEURON_RT_INSPECT_DEVICE_PROFILE=1", Role.VALUE),), width),
            ]
        assert self._steps is not None
        device = self._steps.summary().device_ns
        lines = [
            fit(
                ((f" {units.format_ns(device)} ", Role.STRONG), ("of executions in a step", Role.DIM)), width
            ),
            *(fit(((f" {piece}", Role.STRONG),), width) for piece in wrapped(bound.text, width - 2)),
        ]
        cells = max(width - 22, 4)
        for each in bound.engines:
            label = fixed(each.engine, 10)
            spans = ((f" {label} ", Role.PLAIN), *bar(min(each.share, 1.0), cells))
            lines.append(fit((*spans, (f"{each.share:>7.1%}", Role.PLAIN)), width))
        return lines

    def _chart(self, width: int, height: int) -> list[Line]:
        """Return the durations of steps as a chart; the highest is the longest steady one."""
        assert self._steps is not None
        durations, steady = self._steps.duration_ns, self._steps.steady
        top = max(int(durations[steady].max()), 1)
        chosen = np.linspace(0, len(durations) - 1, min(len(durations), 2 * width)).astype(np.int64)
        values = [min(value / top, 1.0) for value in durations[chosen].tolist()]
        label = f" 0 to {units.format_ns(top)}, {plural(len(durations), 'step')}"
        if not self._trace.measured_by:
            label += "; first executions may be longer"
        chart = wide_chart(values, width - 2, max(height - 1, 1))
        lines = [fit(((" ", Role.PLAIN), *line), width) for line in chart]
        return [*lines, fit(((label, Role.DIM),), width)]


def _advice_lines(advice: Sequence[_Advice], width: int, room: int) -> tuple[list[Line], int]:
    """Return what to change and what it gains, as many as have room, and their number.

    How to change it follows where there is room for that too, for the largest gains first.
    """
    heads = [_advice_head(number, each, width) for number, each in enumerate(advice, 1)]
    while len(heads) > 1 and sum(map(len, heads)) > room:
        heads.pop()
    left = room - sum(map(len, heads))
    lines: list[Line] = []
    for each, head in zip(advice, heads, strict=False):
        how = [fit(((f"   {piece}", Role.DIM),), width) for piece in wrapped(each.change, width - 4) if piece]
        lines += head
        if len(how) <= left:
            lines += how
            left -= len(how)
    return lines, len(heads)


def _advice_head(number: int, advice: _Advice, width: int) -> list[Line]:
    if not advice.gain:
        return [fit(((f" {piece}", Role.STRONG),), width) for piece in wrapped(advice.title, width - 2)]
    if len(advice.title) + len(advice.gain) + 6 <= width:
        spans = (f" {number} ", Role.KEY), (advice.title, Role.STRONG), (f"  {advice.gain}", Role.VALUE)
        return [fit(spans, width)]
    first, *more = wrapped(advice.title, width - 4)
    lines: list[tuple[Span, ...]] = [((f" {number} ", Role.KEY), (first, Role.STRONG))]
    lines += [((f"   {piece}", Role.STRONG),) for piece in more]
    if len(advice.gain) + len((more or [first])[-1]) + 6 <= width:
        lines[-1] += ((f"  {advice.gain}", Role.VALUE),)
    else:
        lines.append(((f"   {advice.gain}", Role.VALUE),))
    return [fit(line, width) for line in lines]


def _headline(summary: StepSummary, width: int) -> Line:
    """Return how long steady steps took."""
    spans = (
        (f" {units.format_ns(summary.median_ns)} ", Role.STRONG),
        ("median of ", Role.DIM),
        (plural(summary.count, "steady step"), Role.PLAIN),
        (f", {units.format_ns(summary.min_ns)} to {units.format_ns(summary.max_ns)}", Role.DIM),
    )
    return fit(spans, width)


def _advice_of(trace: Trace) -> list[_Advice]:
    """Return the pieces of advice; a single one without a gain gives the reason for their absence."""
    if not trace.directories:
        return [_Advice("advice needs the programs of a capture, which this profile has not")]
    try:
        report = advise(open_subject(trace))
    except NeuronToolsError as error:
        return [_Advice(error.message)]
    except (ValueError, LookupError):  # a graph that torch would not record
        return [_Advice("the graphs of this profile cannot be judged")]
    pieces = []
    for advice in report.advice:
        gain = advice.gain
        most = "up to " if gain.is_bound else ""
        text = f"{most}{gain.share:.0%} of the step, {units.format_ns(gain.ns)} ({gain.clock})"
        pieces.append(_Advice(advice.title, text, advice.change))
    return pieces or [_Advice("no change that a rule knows would gain 1 % of a step")]
