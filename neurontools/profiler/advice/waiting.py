"""Time of a step in which the device gets nothing to do: compiles, data that is late, workers that are late."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.base.units import format_ns, format_percent
from neurontools.profiler.advice.findings import WORTH, Advice, Clock, Evidence, Gain, Silent
from neurontools.profiler.advice.host_work import WARM_UP
from neurontools.profiler.analysis.ranks import NOISE_NS
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.host_work import HostLine
    from neurontools.profiler.advice.subject import ProfiledRun

COMPILES, INPUT, STRAGGLERS = "recompiles", "input-stalls", "stragglers"
_LINES = 3
_NO_STEPS = "the profile has no steps after the warm-up"


def recompiles(subject: ProfiledRun) -> Iterator[Finding]:
    """Yield lines at which graphs are compiled after the warm-up."""
    if not subject.host:
        yield Silent(COMPILES, _NO_STEPS)
        return
    work = max(subject.host, key=lambda work: work.ns_a_step(HostEvent.COMPILE))
    lines = work.of(HostEvent.COMPILE)
    count = sum(line.count for line in lines)
    gain = Gain(work.ns_a_step(HostEvent.COMPILE), work.step_ns, Clock.MEASURED)
    found = f"{plural(count, 'compile') if count else 'no compiles'} in {work.steps} steps after the warm-up"
    if count < 2 or gain.share < WORTH:
        yield Silent(COMPILES, found)
        return
    differences = _differences(subject)
    at_a_line: Counter[str] = Counter()
    for line in lines:
        at_a_line[line.source] += line.count
    if not differences and max(at_a_line.values()) <= WARM_UP:
        yield Silent(COMPILES, f"{found}, no more than the warm-up of another part of the program has")
        return
    yield Advice(
        COMPILES,
        f"Give all steps the same shapes: {count} graphs were compiled in {work.steps} steps after the warm-up",
        f"pad the data to one length, or to a few (buckets), and keep Python numbers that change out of the"
        f" shapes{differences}; neuron-run --explain names the difference",
        gain,
        f"the time of the compiles, {format_ns(gain.ns)} a step; the clock is that of this computer",
        _evidence(lines, work.steps, "compile"),
    )


def _differences(subject: ProfiledRun) -> str:
    """Return two shapes of the first input in which graphs of one place in the program differ, as words."""
    shapes: dict[tuple[str, int, int], dict[str, None]] = {}
    for program in (*subject.programs, *subject.rare):
        graph = program.graph
        for number, shape in enumerate(program.input_shapes):
            shapes.setdefault((graph.cut, len(graph.nodes), number), {}).setdefault(shape)
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
    if subject.ranks is None or not subject.ranks.steps:
        yield Silent(STRAGGLERS, "one worker" if subject.ranks is None else _NO_STEPS)
        return
    ranks = sorted(subject.ranks.ranks, key=lambda rank: -rank.work_ns)
    lost_ns, step_ns = subject.ranks.lost_ns, max(rank.step_ns for rank in ranks)
    gain = Gain(lost_ns, step_ns, Clock.MEASURED, is_bound=True)
    if gain.share < WORTH or lost_ns <= NOISE_NS:
        yield Silent(
            STRAGGLERS,
            f"the slowest worker of a step takes {format_ns(lost_ns)} longer than others (measured)",
        )
        return
    slow = next((rank for rank in ranks if rank.is_straggler), None)
    if slow is not None:
        title = f"Rebalance the work: the others wait for rank {slow.rank}"
        change = (
            f"give rank {slow.rank} less to do, or find out why it is slower (its data, its host): it works longest in"
            f" {format_percent(slow.slowest_share)} of the steps"
        )
    else:
        title = "Average less often: another worker is late in each step"
        change = (
            "use hierarchical SGD: HierarchicalModelAverager of torch.distributed.algorithms.model_averaging averages"
            " small groups often and all workers seldom, so that a stall delays few"
        )
    yield Advice(
        STRAGGLERS,
        title,
        change,
        gain,
        "the median over steps of what the slowest worker works longer than the one in the middle; the clock is that of"
        " this computer",
        tuple(
            Evidence(
                f"rank {rank.rank} works {format_ns(rank.work_ns)} and waits {format_ns(rank.wait_ns)} a step (measured)"
            )
            for rank in (ranks[0], ranks[-1])
        ),
    )


def _evidence(lines: Sequence[HostLine], steps: int, text: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"{text}, {format_ns(line.total_ns // max(1, steps))} a step (measured)", line.source, line.count
        )
        for line in lines[:_LINES]
    )
