"""Steps of a run: when they begin and end, where their time goes, which are typical.

A step ends where the program ends it (`mark_step`, `optimizer_step`). Without records of that one step is the sequence
of executions that repeats. Traces of other programs have the steps that torch.profiler annotates. Times of steps are
measured (wall clock); the modelled time of the device is a column of its own and never mixed with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.analysis.annotated_steps import annotated_steps, serves
from neurontools.profiler.analysis.host import (
    covered_in_turn,
    host_events,
    host_intervals,
    load_intervals,
)
from neurontools.profiler.capture.format import NAMED_TRACKS, ProfileError
from neurontools.profiler.trace.rows import ExecutionFilter
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask
    from neurontools.profiler.trace.trace import CoreRuns, Trace

_LOOKED_AT = 4096
_REPEATED = 0.6
"""Part of the last executions that a repeating sequence must cover."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One step of a process. Times are measured nanoseconds, `start_ns` since the first event of the trace.

    Args:
        number: counts from 1 within the process.
        start_ns: the end of the step before.
        duration_ns: until its own end.
        is_first: it holds the first execution of a model, or a load: not typical.
        executions: number of them.
        device_ns: modelled time of its executions; 0 without device records.
        compile_ns: the host compiles.
        load_ns: models are loaded.
        transfer_ns: tensors are copied to and from the device.
        execute_ns: models execute, as measured on this computer.
        idle_ns: the rest: Python, data loading, waiting.
    """

    number: int
    start_ns: int
    duration_ns: int
    is_first: bool
    executions: int
    device_ns: int
    compile_ns: int
    load_ns: int
    transfer_ns: int
    execute_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Typical steps of a process: those without first executions, or all if there are no others.

    Args:
        count: steps that are summarised.
        first_count: steps with first executions or loads, kept apart.
        min_ns: shortest step, measured; so are the next three.
        median_ns: of the steps; of an even number, between the two in the middle.
        mean_ns: the average step.
        max_ns: longest step.
        device_ns: modelled time of the device in the average step.
        compile_ns: part of the average step, measured; so are the next four.
        load_ns: see `TrainingStep`.
        transfer_ns: see `TrainingStep`.
        execute_ns: see `TrainingStep`.
        idle_ns: see `TrainingStep`.
    """

    count: int
    first_count: int
    min_ns: int
    median_ns: int
    mean_ns: int
    max_ns: int
    device_ns: int
    compile_ns: int
    load_ns: int
    transfer_ns: int
    execute_ns: int
    idle_ns: int


PARTS = ("compile_ns", "load_ns", "transfer_ns", "execute_ns", "idle_ns")
_COLUMNS = ("start_ns", "duration_ns", "is_first", "executions", "device_ns", *PARTS)


@dataclass(frozen=True, slots=True)
class ProcessSteps:
    """The steps of one process by columns; each column is as in `TrainingStep`.

    Args:
        process: number of the process in the trace.
        pid: its pid.
        rank: None if it is the only worker.
        how: how the steps were found, a phrase.
        first_number: number of the first one.
    """

    process: int
    pid: int
    rank: int | None
    how: str
    first_number: int
    start_ns: Int64s
    duration_ns: Int64s
    is_first: Mask
    executions: Int64s
    device_ns: Int64s
    compile_ns: Int64s
    load_ns: Int64s
    transfer_ns: Int64s
    execute_ns: Int64s
    idle_ns: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, place: int) -> TrainingStep:
        number = range(self.first_number, self.first_number + len(self))[place]
        values = {name: getattr(self, name)[place].item() for name in _COLUMNS}
        return TrainingStep(number, **values)

    def __iter__(self) -> Iterator[TrainingStep]:
        return (self[index] for index in range(len(self)))

    @property
    def numbers(self) -> Int64s:
        """Numbers of the steps."""
        return np.arange(self.first_number, self.first_number + len(self), dtype=np.int64)

    @property
    def steady(self) -> Mask:
        """Which steps are typical."""
        return ~self.is_first if not self.is_first.all() else np.ones(len(self), dtype=bool)

    def take(self, first: int, last: int) -> ProcessSteps:
        """Return the steps from number `first` to `last`, both included."""
        chosen = slice(max(0, first - self.first_number), max(0, last + 1 - self.first_number))
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return replace(self, first_number=max(first, self.first_number), **columns)

    def summary(self) -> StepSummary:
        """Summarise the typical steps; there is at least one step."""
        chosen = self.steady
        ordered = np.sort(self.duration_ns[chosen])
        means = {name: int(getattr(self, name)[chosen].mean()) for name in ("device_ns", *PARTS)}
        return StepSummary(
            count=len(ordered),
            first_count=len(self) - len(ordered),
            min_ns=int(ordered[0]),
            median_ns=int(np.median(ordered)),
            mean_ns=int(ordered.mean()),
            max_ns=int(ordered[-1]),
            **means,
        )


def find_steps(trace: Trace) -> tuple[ProcessSteps, ...]:
    """Return the steps of every process that executed something or marked them, in order of the processes."""
    of_process = _of_annotations if trace.measured_by else _of_process
    processes = (of_process(trace, process) for process in range(len(trace.processes)))
    return tuple(steps for steps in processes if steps is not None)


def column_of(steps: Iterable[ProcessSteps], name: str, *, steady: bool = False) -> NDArray[Any]:
    """Return one column of the steps of several processes, one process after another.

    Args:
        steps: of the processes.
        name: of the column, as in `ProcessSteps`.
        steady: only typical steps.
    """
    nothing: Int64s = np.zeros(0, dtype=np.int64)
    columns = [getattr(each, name)[each.steady] if steady else getattr(each, name) for each in steps]
    return np.concatenate(columns) if columns else nothing


def of_steps(trace: Trace, first: int, last: int) -> Trace:
    """Return the part of a trace that is the steps from number `first` to `last` of every process, both included.

    Raises:
        ProfileError: no process has such a step.
    """
    steps = find_steps(trace)
    chosen = [each.take(first, last) for each in steps]
    if not any(len(each) for each in chosen):
        count = max((each.first_number + len(each) - 1 for each in steps), default=0)
        raise ProfileError(
            f"no step {first}{'' if first == last else f' to {last}'}: the profile has {plural(count, 'step')}",
            "neuron-profile steps lists them",
        )
    spans = {each.process: _span(each) for each in chosen if len(each)}
    edges = {process: (np.array([begin]), np.array([end])) for process, (begin, end) in spans.items()}
    wanted = _OfTimes(trace, edges)
    kept = trace.of_executions(wanted)
    if trace.measured_by:
        return _between(trace, spans)
    rows = []
    for row in kept.rows:
        span = spans.get(row.process)
        if span is None:
            continue
        if row.track in NAMED_TRACKS:
            row = replace(row, events=row.events.between(*span))  # noqa: PLW2901
        rows.append(row)
    return kept.with_rows(rows, [runs for runs in kept.runs if runs.process in spans])


def of_steady_steps(trace: Trace, steps: Sequence[ProcessSteps]) -> Trace:
    """Return the executions of a trace that are in typical steps; what the host did stays.

    Of a trace of another program, which knows no executions, return what lies between its first and its last step.
    """
    if trace.measured_by:
        return _between(trace, {each.process: _span(each) for each in steps})
    spans = {
        each.process: (each.start_ns[each.steady], (each.start_ns + each.duration_ns)[each.steady])
        for each in steps
    }
    return trace.of_executions(_OfTimes(trace, spans))


def _span(steps: ProcessSteps) -> tuple[int, int]:
    return int(steps.start_ns[0]), int(steps.start_ns[-1] + steps.duration_ns[-1])


def _between(trace: Trace, spans: Mapping[int, tuple[int, int]]) -> Trace:
    """Return the events of another program's trace that touch the stretches of the processes that they serve."""
    rows = []
    for row in trace.rows:
        own = [span for process, span in spans.items() if serves(trace, row, process)]
        if own:
            events = row.events.between(min(first for first, _ in own), max(last for _, last in own))
            rows.append(replace(row, events=events))
    return trace.with_rows(rows, trace.runs)


class _OfTimes(ExecutionFilter):
    """Executions, and loads, whose measured start lies in one of the stretches of their process.

    Args:
        trace: whose executions they are.
        spans: starts and ends by process, in order; without entry nothing is chosen.
    """

    def __init__(self, trace: Trace, spans: Mapping[int, tuple[Int64s, Int64s]]) -> None:
        nothing: Int64s = np.zeros(0, dtype=np.int64)
        self._runs: dict[int, Codes] = {}
        self._spans: dict[int, tuple[Int64s, Int64s]] = {}
        for runs in trace.runs:
            span = spans.get(runs.process, (nothing, nothing))
            chosen = _within(runs.wall_start, span)
            for model in np.unique(runs.model).tolist():
                self._runs[model] = np.unique(runs.number[chosen & (runs.model == model)])
                self._spans[model] = span

    def chosen(self, model: Codes, execution: Codes, start: Int64s) -> Mask:
        found: Mask = np.zeros(len(model), dtype=bool)
        for number, wanted in self._runs.items():
            loads = (execution == 0) & _within(start, self._spans[number])
            found |= (model == number) & (np.isin(execution, wanted) | loads)
        return found


def _within(times: Int64s, span: tuple[Int64s, Int64s]) -> Mask:
    """Return which times lie in a stretch."""
    starts, ends = span
    if len(starts) == 0:
        return np.zeros(len(times), dtype=bool)
    span_index = np.searchsorted(starts, times, side="right") - 1
    return (span_index >= 0) & (times < ends[np.maximum(span_index, 0)])


@dataclass(frozen=True, slots=True)
class _Runs:
    """The executions of one process on all its cores, in order of their start on the wall clock."""

    start: Int64s
    end: Int64s
    device_ns: Int64s
    model: Codes
    number: Codes
    nc: Int64s


def _of_process(trace: Trace, process: int) -> ProcessSteps | None:
    runs = _merged(without_parts([each for each in trace.runs if each.process == process]))
    if runs is None:
        return None
    edges, first_number, how = _edges(trace, process, runs)
    used = np.flatnonzero(np.bincount(_places(edges, runs)[0], minlength=len(edges) - 1))
    if len(used) == 0:
        return None
    # Steps without executions belong to the next one: some programs end a step twice. Those before the first execution
    # are none: they are the warm-up of a selection without it.
    first_number += int(used[0])
    edges = np.concatenate((edges[used[:1]], edges[used + 1]))
    step, inside = _places(edges, runs)
    size = len(edges) - 1
    device_ns: Int64s = np.zeros(size, dtype=np.int64)
    np.add.at(device_ns, step, runs.device_ns[inside])
    is_first: Mask = np.zeros(size, dtype=bool)
    is_first[step[runs.number[inside] == 1]] = True
    loads: Int64s = np.searchsorted(edges, load_intervals(trace, process)[0], side="right") - 1
    is_first[loads[(loads >= 0) & (loads < size)]] = True
    meta = trace.processes[process]
    return ProcessSteps(
        process=process,
        pid=meta.pid,
        rank=meta.rank,
        how=how,
        first_number=first_number,
        start_ns=edges[:-1],
        duration_ns=np.diff(edges),
        is_first=is_first,
        executions=np.bincount(step, minlength=size).astype(np.int64),
        device_ns=device_ns,
        **_parts(trace, process, edges, runs),
    )


def _of_annotations(trace: Trace, process: int) -> ProcessSteps | None:
    annotated = annotated_steps(trace, process)
    if annotated is None:
        return None
    nothing: Int64s = np.zeros(len(annotated.start_ns), dtype=np.int64)
    meta = trace.processes[process]
    return ProcessSteps(
        process=process,
        pid=meta.pid,
        rank=meta.rank,
        how=f"steps that {trace.measured_by} marked",
        first_number=annotated.first_number,
        start_ns=annotated.start_ns,
        duration_ns=annotated.duration_ns,
        is_first=np.zeros(len(nothing), dtype=bool),
        executions=nothing,
        device_ns=nothing,
        compile_ns=nothing,
        load_ns=nothing,
        transfer_ns=nothing,
        execute_ns=annotated.device_busy_ns,
        idle_ns=annotated.duration_ns - annotated.device_busy_ns,
    )


def _places(edges: Int64s, runs: _Runs) -> tuple[Int64s, Mask]:
    """Return the step of each execution that lies in one, and which executions do."""
    inside: Mask = (runs.start >= edges[0]) & (runs.start < edges[-1])
    return np.searchsorted(edges, runs.start[inside], side="right") - 1, inside


def without_parts(cores: Sequence[CoreRuns]) -> list[CoreRuns]:
    """Return the executions of a process with one of each launch on several cores: the longest, modelled.

    The parts of a launch, such as a kernel called with `kernel[2]`, have the same measured start. They run at the same
    time, so the longest is the time of the launch.
    """
    if len(cores) < 2:
        return list(cores)
    start, device_ns = (
        np.concatenate([getattr(each, name) for each in cores]) for name in ("wall_start", "device_ns")
    )
    order = np.lexsort((-device_ns, start))
    is_kept: Mask = np.zeros(len(start), dtype=bool)
    is_kept[order[np.unique(start[order], return_index=True)[1]]] = True
    bounds = np.cumsum([len(each.model) for each in cores])[:-1]
    return [each.take(kept) for each, kept in zip(cores, np.split(is_kept, bounds), strict=True)]


def _merged(cores: Sequence[CoreRuns]) -> _Runs | None:
    if not cores:
        return None
    start = np.concatenate([each.wall_start for each in cores])
    if not len(start):
        return None
    order = np.argsort(start, kind="stable")
    wall_ns = np.concatenate([each.wall_ns for each in cores])
    return _Runs(
        start=start[order],
        end=(start + wall_ns)[order],
        device_ns=np.concatenate([each.device_ns for each in cores])[order],
        model=np.concatenate([each.model for each in cores])[order],
        number=np.concatenate([each.number for each in cores])[order],
        nc=np.concatenate([np.full(len(each.model), each.nc, dtype=np.int64) for each in cores])[order],
    )


def _edges(trace: Trace, process: int, runs: _Runs) -> tuple[Int64s, int, str]:
    """Return start of the first step and ends of all, number of the first one, and how they were found."""
    marked = host_events(trace, process, HostEvent.STEP)
    if marked is not None:
        ends = np.unique(marked.start + marked.duration)
        begin = min(int(marked.start[0]), int(ends[0]) - 1)
        return (
            np.append(begin, ends),
            max(1, int(marked.execution[0])),
            "steps marked by the program",
        )
    rows = (row for row in trace.rows if row.process == process and row.track.measured)
    begin = min(min((row.events.start_ns for row in rows), default=0), int(runs.start[0]))
    period = _period(runs.model)
    how = "each execution, as no sequence of executions repeats"
    if period:
        names = [trace.models[number].name for number in runs.model[-period:].tolist()]
        distinct = list(dict.fromkeys(names))
        what = ", ".join(distinct[:3]) + (", .." if len(distinct) > 3 else "")
        how = f"repeating sequence of {plural(period, 'execution')} ({what})"
    # From the last execution back: what comes first, in other graphs, is as long as a step.
    closing = np.arange(len(runs.end) - 1, -1, -max(period, 1))[::-1]
    return np.unique(np.append(begin, np.maximum.accumulate(runs.end)[closing])), 1, how


def _period(model: Codes) -> int:
    """Return the length of the sequence that repeats up to the end, 0 if none does.

    What follows the last whole repetition, such as an evaluation, counts as the end of a step.
    """
    last = model[-_LOOKED_AT:].astype(np.int64)[::-1]
    size = len(last)
    if size == 1:
        return 1
    for period in range(1, size // 2 + 1):
        same = last[period:] == last[:-period]
        if same[:period].all():
            covered = period + (len(same) if same.all() else int(np.argmin(same)))
            if covered >= max(2 * period, _REPEATED * size):
                return period
    return 0


def _parts(trace: Trace, process: int, edges: Int64s, runs: _Runs) -> dict[str, Int64s]:
    """Return what the time of steps is: what overlaps counts as the first of execute, load, compile and transfer."""
    kinds = {
        "execute_ns": [(runs.start, runs.end - runs.start)],
        "load_ns": [load_intervals(trace, process)],
        "compile_ns": [host_intervals(trace, process, HostEvent.COMPILE)],
        "transfer_ns": [host_intervals(trace, process, HostEvent.UPLOAD, HostEvent.DOWNLOAD)],
    }
    times = covered_in_turn(kinds, edges)
    return times | {"idle_ns": np.diff(edges) - sum(times.values())}
