"""Rules about what the host did: compiles, data that is late, workers that are late; from a capture of host events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from neurontools.profiler.advice.findings import Advice, Clock, Finding, Silent
from neurontools.profiler.advice.rules_measured import input_stalls, recompiles, stragglers
from neurontools.profiler.advice.subject import ProfiledRun
from neurontools.profiler.analysis.host import HostLine, HostWork, host_work
from neurontools.profiler.analysis.ranks import RankReport, RankTotal, StepSkew
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.reader import open_captures
from neurontools.runtime.host_activity import HostEvent
from tests.profiler.advice.programs import perceptron, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Maker

MS = 1_000_000
STEPS, STEP_NS = 10, 20 * MS


def work(*lines: tuple[HostEvent, int, int], process: str = "pid 7") -> HostWork:
    """Ten steps of 20 ms, with events of a kind: how many, and how long all of them took."""
    told = (HostLine(kind, kind.name, "/home/ada/train.py:12", count, ns, 0) for kind, count, ns in lines)
    return HostWork(process, STEPS, STEPS * STEP_NS, tuple(told))


def finding(
    rule: Callable[[ProfiledRun], Iterator[Finding]], *host: HostWork, shapes: bool = False
) -> Finding:
    programs = (program(perceptron(512, 256)), program(perceptron(640, 256))) if shapes else ()
    (found,) = rule(ProfiledRun(programs[:1], programs[1:], host=host))
    return found


def advice(*arguments: Any, **more: Any) -> Advice:
    found = finding(*arguments, **more)
    assert isinstance(found, Advice)
    return found


def reason(*arguments: Any) -> str:
    found = finding(*arguments)
    assert isinstance(found, Silent)
    return found.reason


def test_compiles_after_the_warm_up_name_the_shapes_that_differ() -> None:
    found = advice(recompiles, work((HostEvent.COMPILE, 5, 40 * MS)), shapes=True)
    assert (
        found.title == "Give all steps the same shapes: 5 graphs were compiled in 10 steps after the warm-up"
    )
    assert (found.gain.ns, found.gain.step_ns, found.gain.clock) == (4 * MS, STEP_NS, Clock.MEASURED)
    assert "(now bfloat16[512,256] and bfloat16[640,256])" in found.change
    assert found.evidence[0].source == "/home/ada/train.py:12"


def test_a_run_that_compiles_no_more_is_left_alone() -> None:
    assert reason(recompiles, work()) == "no compiles in 10 steps after the warm-up"
    assert (
        reason(recompiles, work((HostEvent.COMPILE, 1, 40 * MS))) == "1 compile in 10 steps after the warm-up"
    )


def test_an_evaluation_after_the_training_may_compile_its_graphs_too() -> None:
    assert reason(recompiles, work((HostEvent.COMPILE, 2, 40 * MS))) == (
        "2 compiles in 10 steps after the warm-up, no more than the warm-up of another part of the program has"
    )
    assert advice(recompiles, work((HostEvent.COMPILE, 2, 40 * MS)), shapes=True).gain.ns == 4 * MS


def test_a_loader_that_steps_wait_for_loads_ahead() -> None:
    found = advice(input_stalls, work((HostEvent.INPUT, 10, 60 * MS)))
    assert found.gain.ns == 6 * MS
    assert "num_workers=4" in found.change
    assert found.evidence[0].text == "wait for a batch, 6.000 ms a step (measured)"


def test_a_loader_that_is_ahead_is_left_alone() -> None:
    assert (
        reason(input_stalls, work((HostEvent.INPUT, 10, MS))) == "a step waits 100.0 us for data (measured)"
    )


def ranks(*works: tuple[int, bool], lost_ns: int) -> ProfiledRun:
    """A run with workers, by what each works in a step and whether it is a straggler."""
    totals = tuple(
        RankTotal(rank, 100 + rank, STEP_NS, STEP_NS - ns, ns, 0.9 if is_slow else 0.0, is_slow)
        for rank, (ns, is_slow) in enumerate(works)
    )
    skew = StepSkew(3, min(ns for ns, _ in works), max(ns for ns, _ in works), 1, 0)
    return ProfiledRun((), ranks=RankReport(totals, (skew,), (), has_waits=True, lost_ns=lost_ns))


def test_a_worker_that_is_always_late_gets_less_to_do() -> None:
    (found,) = stragglers(ranks((10 * MS, False), (19 * MS, True), (11 * MS, False), lost_ns=8 * MS))
    assert isinstance(found, Advice)
    assert found.title == "Rebalance the work: the others wait for rank 1"
    assert (found.gain.ns, found.gain.clock) == (8 * MS, Clock.MEASURED)
    assert "works longest in 90 % of the steps" in found.change
    assert found.evidence[0].text == "rank 1 works 19.00 ms and waits 1.000 ms a step (measured)"


def test_workers_that_are_late_in_turn_average_in_groups() -> None:
    (found,) = stragglers(ranks((10 * MS, False), (11 * MS, False), lost_ns=4 * MS))
    assert isinstance(found, Advice)
    assert "HierarchicalModelAverager" in found.change


def test_workers_that_hardly_wait_are_left_alone() -> None:
    (found,) = stragglers(ranks((19 * MS, False), (19 * MS, False), lost_ns=100_000))
    assert isinstance(found, Silent)
    assert found.reason == "the slowest worker of a step takes 100.0 us longer than others (measured)"
    assert reason(stragglers, work()) == "one worker"


@pytest.mark.parametrize("rule", [recompiles, input_stalls])
def test_a_run_without_steps_says_so(rule: Callable[[ProfiledRun], Iterator[Finding]]) -> None:
    assert reason(rule) == "the profile has no steps after the warm-up"


def test_the_work_of_the_host_is_that_of_the_steps_after_the_warm_up(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    begun = open_captures(str(home / "p"))[0].meta.started_ns
    for step in range(5):
        start, end = begun + step * STEP_NS, begun + (step + 1) * STEP_NS
        capture.host.on_host_event(
            (HostEvent.INPUT, start + MS, start + (2 + step) * MS, 0, "batch", "t.py:3", 0, 0)
        )
        capture.host.on_host_event(
            (HostEvent.UPLOAD, start + 9 * MS, start + 10 * MS, 0, "upload", "t.py:4", 64, 0)
        )
        capture.host.on_host_event((HostEvent.STEP, end - 9, end, 0, "mark_step", "t.py:9", 0, 0))
    capture.on_close()
    (found,) = host_work(load(str(home / "p")))
    assert (found.steps, found.step_ns) == (3, STEP_NS)
    (batch,) = found.of(HostEvent.INPUT)
    assert (batch.count, batch.total_ns, batch.source) == (3, (3 + 4 + 5) * MS, "t.py:3")
    assert found.ns_a_step(HostEvent.UPLOAD) == MS
    assert found.of(HostEvent.UPLOAD)[0].nbytes == 3 * 64
