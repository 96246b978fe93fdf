"""Time of a step in which the device gets nothing to do: compiles, data that is late, workers that are late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.base.units import format_ns, format_percent
from neurontools.profiler.advice.findings import WORTH, Advice, Clock, Evidence, Gain, Silent
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.host_work import HostLine
    from neurontools.profiler.advice.subject import ProfiledRun

COMPILES, INPUT, STRAGGLERS = "recompiles", "input-stalls", "stragglers"
_LINES = 3
_NO_STEPS = "the profile has no steps after the warm-up"
_SKEW = 0.5


def recompiles(subject: ProfiledRun) -> Iterator[Finding]:
    """Yield lines at which graphs are compiled after the warm-up."""
    if not subject.host:
        yield Silent(COMPILES, _NO_STEPS)
        return
    work = max(subject.host, key=lambda work: work.ns_a_step(HostEvent.COMPILE))
    lines = work.of(HostEvent.COMPILE)
    count = sum(line.count for line in lines)
    gain = Gain(work.ns_a_step(HostEvent.COMPILE), work.step_ns, Clock.MEASURED)
    if count < 2 or gain.share < WORTH:
        yield Silent(
            COMPILES,
            f"{plural(count, 'compile') if count else 'no compiles'} in {work.steps} steps after the warm-up",
        )
        return
    yield Advice(
        COMPILES,
        f"Give all steps the same shapes: {count} graphs were compiled in {work.steps} steps after the warm-up",
        f"pad the data to one length, or to a few (buckets), and keep Python numbers that change out of the"
        f" shapes{_differences(subject)}; neuron-run --explain names the difference",
        gain,
        f"the time of the compiles, {format_ns(gain.ns)} a step; the clock is that of this computer",
        _evidence(lines, work.steps, "compile"),
    )


def _differences(subject: ProfiledRun) -> str:
    """Return two shapes of the first input in which graphs of the run differ, as words."""
    shapes: dict[int, dict[str, None]] = {}
    for program in (*subject.programs, *subject.rare):
        for number, shape in enumerate(program.input_shapes):
            shapes.setdefault(number, {}).setdefault(shape)
    found = next((list(seen) for seen in shapes.values() if len(seen) > 1), [])
    return f" (now {found[0]} and {found[1]})" if len(found) > 1 else ""


def input_stalls(subject: ProfiledRun) -> Iterator[Finding]:
    """Yield data loaders that a step waits for."""
    if not subject.host:
        yield Silent(INPUT, _NO_STEPS)
        return
    work = max(subject.host, key=lambda work: work.ns_a_step(HostEvent.INPUT))
    gain = Gain(work.ns_a_step(HostEvent.INPUT), work.step_ns, Clock.MEASURED, is_bound=True)
    if gain.share < WORTH:
        yield Silent(INPUT, f"a step waits {format_ns(gain.ns)} for data ({gain.clock})")
        return
    yield Advice(
        INPUT,
        "Load data while the device works: each step waits for the next batch",
        "give DataLoader num_workers=4 (or more) and prefetch_factor=2, and wrap it in"
        " torch_xla.distributed.parallel_loader.MpDeviceLoader, which also uploads ahead",
        gain,
        f"the time that steps of {work.process} wait for a batch; the clock is that of this computer",
        _evidence(work.of(HostEvent.INPUT), work.steps, "wait for a batch"),
    )


def stragglers(subject: ProfiledRun) -> Iterator[Finding]:
    """Yield workers that others wait for: always the same one, or another one each time."""
    if len(subject.host) < 2:
        yield Silent(STRAGGLERS, "one worker" if subject.host else _NO_STEPS)
        return
    waits = sorted((work.ns_a_step(HostEvent.PEER_WAIT), work.process) for work in subject.host)
    (least_ns, slowest), (middle_ns, _) = waits[0], waits[len(waits) // 2]
    step_ns = max(work.step_ns for work in subject.host)
    shown = tuple(
        Evidence(f"{process} waits {format_ns(ns)} a step for others (measured)", share=ns / max(1, step_ns))
        for ns, process in (waits[0], waits[-1])
    )
    if least_ns <= _SKEW * middle_ns:
        title, gain_ns = f"Rebalance the work: all workers wait for {slowest}", middle_ns - least_ns
        change = (
            f"give {slowest} less to do or find out why it is slower (its data, its host): it waits least for others,"
            " so they wait for it"
        )
        method = f"{format_ns(middle_ns)} of waiting of the worker in the middle, less {format_ns(least_ns)} of {slowest}"
    else:
        title, gain_ns = "Average less often: in each step workers wait for another one", least_ns
        change = (
            "use hierarchical SGD, torch.distributed.algorithms.model_averaging: HierarchicalModelAverager averages small"
            " groups often and all workers seldom, so a stall delays few"
        )
        method = "each worker waits, so no single one is slow; the shortest of their waits"
    gain = Gain(gain_ns, step_ns, Clock.MEASURED, is_bound=True)
    if gain.share < WORTH:
        part = format_percent(gain.share)
        yield Silent(STRAGGLERS, f"workers wait {format_ns(gain_ns)} a step for others, {part} (measured)")
        return
    yield Advice(STRAGGLERS, title, change, gain, f"{method}; the clock is that of this computer", shown)


def _evidence(lines: Sequence[HostLine], steps: int, text: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"{text}, {format_ns(line.total_ns // max(1, steps))} a step (measured)", line.source, line.count
        )
        for line in lines[:_LINES]
    )
