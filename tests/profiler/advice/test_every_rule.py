"""Every rule, from a profile to the report: a run that has its fault, and one that has not."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.engine_model.transformers import encoder
from neurontools.profiler.advice.findings import one_line
from neurontools.profiler.advice.rules import Report, advise
from neurontools.profiler.advice.subject import open_subject
from neurontools.profiler.analysis.check import LimitOutcome, check, parse_limit, tolerance_limits
from neurontools.profiler.analysis.compare import StepVerdict, compare
from neurontools.profiler.analysis.operators import By, group_totals
from neurontools.profiler.trace.open import load
from neurontools.runtime.host_activity import HostEvent
from tests.profiler.advice.programs import gpt, neff_bytes, perceptron
from tests.profiler.advice.test_program_rules import copies, images, relu_neff

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    from neurontools.compiler.graph import Graph
    from neurontools.profiler.trace.trace import Trace

US = 1_000
MS = 1_000_000
STEPS = 8
SLOW_KERNEL_NS, FAST_KERNEL_NS = 1_000 + 64 * 64 * 3 * 200, 30_000
ended = "mark_step at /home/ada/train.py:40"


def neff(graph: Graph, cut: str = ended) -> bytes:
    return neff_bytes(replace(graph, cut=cut))


@dataclass(frozen=True)
class Run:
    """A run of workers, all of whose steps are alike.

    Args:
        programs: makes the NEFFs that a step executes in turn.
        host: what the host does at the start of a step, and how long.
        between_ns: what the host does before each execution, unrecorded.
        works_ns: how long an execution takes, by worker and step.
    """

    programs: Callable[[], tuple[bytes, ...]]
    host: tuple[tuple[HostEvent, int], ...] = ()
    between_ns: int = 10 * US
    works_ns: tuple[Callable[[int], int], ...] = (lambda _: 100 * MS,)

    def write(self, maker: Maker, directory: Path) -> None:
        programs = self.programs()
        for rank, work_ns in enumerate(self.works_ns):
            workers = len(self.works_ns)
            capture = maker.capture(directory) if workers == 1 else maker.worker(directory, rank, workers)
            models = [
                maker.model(neff=each, name=f"graph {at}", model_id=10001 + at)
                for at, each in enumerate(programs)
            ]
            now = maker.start_ns
            for model in models:
                capture.on_load(model, now, now + US)
            for step in range(1, STEPS + 1):
                for kind, lasts_ns in self.host:
                    capture.host.on_host_event((kind, now, now + lasts_ns, 0, kind.name, "train.py:9", 0, 0))
                    now += lasts_ns
                for model in models:
                    now += self.between_ns
                    capture.on_execute(model, step, now, now + work_ns(step), 0)
                    now += work_ns(step)
                capture.host.on_host_event((HostEvent.STEP, now, now, 0, "mark_step", "train.py:40", 0, 0))
            capture.on_close()


def of(make: Callable[[], Graph]) -> Run:
    return Run(lambda: (neff(make()),))


bert = functools.partial(
    encoder, layers=2, width=768, heads=12, inner=3072, vocabulary=512, length=128, dtype="bfloat16"
)
fine = of(gpt)
small = Run(lambda: (neff(perceptron(512, 256)),))
RUNS: dict[str, tuple[Run, Run]] = {
    "attention": (of(functools.partial(gpt, fused=False, length=512)), fine),
    "dtype": (of(functools.partial(gpt, dtype="float32")), fine),
    "widths": (of(functools.partial(gpt, width=260)), fine),
    "batch": (of(functools.partial(gpt, batch=2, length=64)), of(functools.partial(gpt, batch=32))),
    "spills": (of(functools.partial(perceptron, 8192, 512, dtype="float32")), small),
    "overlap": (of(functools.partial(bert, batch=16)), of(functools.partial(bert, batch=2))),
    "small-copies": (of(functools.partial(copies, 1024, 512)), of(functools.partial(copies, 4, 512))),
    "layout": (
        of(functools.partial(images, is_turned=True)),
        of(functools.partial(images, is_turned=False)),
    ),
    "custom-operators": (
        Run(lambda: (relu_neff(SLOW_KERNEL_NS),)),
        Run(lambda: (relu_neff(FAST_KERNEL_NS),)),
    ),
    "graph-cuts": (
        Run(
            lambda: (
                neff(perceptron(512, 256), ".item() at /home/ada/train.py:30"),
                neff(perceptron(1024, 256)),
            )
        ),
        small,
    ),
    "recompiles": (replace(small, host=((HostEvent.COMPILE, 40 * MS),)), small),
    "input-stalls": (
        replace(small, host=((HostEvent.INPUT, 40 * MS),)),
        replace(small, host=((HostEvent.INPUT, 40 * US),)),
    ),
    "stragglers": (
        replace(small, works_ns=(lambda _: 100 * MS, lambda _: 100 * MS, lambda _: 150 * MS)),
        replace(small, works_ns=(lambda _: 100 * MS, lambda _: 100 * MS, lambda _: 100 * MS)),
    ),
    "host-bound": (replace(small, between_ns=50 * MS), small),
}


def report_of(run: Run, maker: Maker, directory: Path) -> Report:
    run.write(maker, directory)
    return advise(open_subject(load(str(directory))))


@pytest.mark.parametrize("rule", RUNS)
def test_a_rule_finds_the_fault_of_a_run_and_is_silent_without_it(
    home: Path, maker: Maker, rule: str
) -> None:
    with_fault, without = (
        report_of(run, maker, home / name) for run, name in zip(RUNS[rule], ("fault", "none"), strict=True)
    )
    (advice,) = (each for each in with_fault.advice if each.rule == rule)
    assert advice.gain.ns >= 0.01 * advice.gain.step_ns
    assert advice.change
    assert advice.evidence
    assert rule not in {each.rule for each in without.advice}
    (silent,) = (each for each in without.silent if each.rule == rule)
    assert silent.reason


def test_every_rule_has_such_runs(home: Path, maker: Maker) -> None:
    report = report_of(small, maker, home / "p")
    assert {each.rule for each in (*report.advice, *report.silent)} == set(RUNS)


def test_workers_that_are_late_in_turn_are_told_apart_from_one_that_always_is(
    home: Path, maker: Maker
) -> None:
    late = [(lambda step, rank=rank: 150 * MS if step % 3 == rank else 100 * MS) for rank in range(3)]
    report = report_of(replace(small, works_ns=tuple(late)), maker, home / "p")
    (advice,) = (each for each in report.advice if each.rule == "stragglers")
    assert "HierarchicalModelAverager" in advice.change
    assert advice.gain.ns == 50 * MS


def test_compiled_functions_of_a_step_are_to_be_one_and_not_to_read_less(home: Path, maker: Maker) -> None:
    compiled = "torch.compile(backend='neuron') at /home/ada/train.py:7"
    programs = (
        neff(perceptron(512, 256), compiled),
        neff(perceptron(1024, 256), "optimizer step at /home/ada/train.py:9"),
    )
    report = report_of(Run(lambda: programs), maker, home / "p")
    (advice,) = (each for each in report.advice if each.rule == "graph-cuts")
    assert "torch.func.grad_and_value" in advice.change
    assert ".item()" not in advice.change
    (cut,) = advice.evidence
    assert cut.source == "/home/ada/train.py:7"


def test_one_cause_in_two_graphs_is_one_advice_with_one_remedy(home: Path, maker: Maker) -> None:
    """Inference alone would move to bfloat16 by `model.to`, training by a flag of the compiler."""
    programs = (neff(gpt(dtype="float32")), neff(perceptron(2048, 512, dtype="float32")))
    report = report_of(replace(small, programs=lambda: programs), maker, home / "p")
    (advice,) = (each for each in report.advice if each.rule == "dtype")
    assert "NEURON_CC_FLAGS" in advice.change
    assert advice.program.endswith("and 1 other")


def test_a_batch_that_changed_is_judged_by_the_sample(home: Path, maker: Maker) -> None:
    """What `advise` says of a larger batch is what `diff`, `check` and the page Compare say of it."""
    before, after = (
        write(
            maker, home / f"batch {size}", replace(small, programs=lambda size=size: (neff(gpt(batch=size)),))
        )  # type: ignore[misc]
        for size in (4, 8)
    )
    (advice,) = (each for each in advise(open_subject(before)).advice if each.rule == "batch")
    assert advice.gain.samples == 4
    assert re.search(r", \S+ us -> \S+ us a sample \(modelled\)$", one_line(advice))
    found = compare(before, after)
    assert found.notes == ("batch 4 -> 8",)
    assert found.is_per_sample
    assert found.device is not None
    assert found.sample is not None
    assert (found.device.verdict, found.sample.verdict) == (StepVerdict.SLOWER, StepVerdict.FASTER)
    assert found.verdict is StepVerdict.FASTER
    assert found.sample.before_ns == pytest.approx(found.device.before_ns / 4)
    names = [change.name for change in found.groups[By.ENGINE]]
    totals = {change.name: change.before_ns for change in found.groups[By.ENGINE]}
    busy = {each.name: each.total_ns for each in group_totals(before, By.ENGINE)}
    assert [totals[name] for name in names] == [pytest.approx(busy[name] / STEPS / 4) for name in names]
    results = check(
        after,
        [parse_limit(f"{name}>+5%") for name in ("step_device_time", "sample_device_time")],
        before,
    )
    assert [result.outcome for result in results] == [LimitOutcome.FAILED, LimitOutcome.PASSED]
    assert re.search(r"; batch 4 -> 8: -\S+ % a sample \(modelled\)$", results[0].text)
    assert [limit.metric for limit in tolerance_limits("5%", after, before)] == ["sample_device_time"]
    assert tolerance_limits("5%", after, after)[0].metric == "step_device_time"


def test_other_shapes_have_no_time_of_a_sample(home: Path, maker: Maker) -> None:
    before, after = (
        write(
            maker,
            home / f"length {size}",
            replace(small, programs=lambda size=size: (neff(gpt(length=size)),)),
        )  # type: ignore[misc]
        for size in (256, 128)
    )
    found = compare(before, after)
    assert found.notes[0] == "input int64[4,256] -> int64[4,128]"
    assert (found.is_per_sample, found.sample, found.verdict) == (False, None, StepVerdict.FASTER)
    (result,) = check(after, [parse_limit("sample_device_time>+5%")], before)
    assert result.outcome is LimitOutcome.INCONCLUSIVE
    assert result.text.startswith("samples are not comparable: input int64[4,256] -> int64[4,128]")


def write(maker: Maker, directory: Path, run: Run) -> Trace:
    run.write(maker, directory)
    return load(str(directory))
