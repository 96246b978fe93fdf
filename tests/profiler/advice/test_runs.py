"""Advice on captured runs: steps, what is in them, rules about the host, and the command."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from neurontools.profiler.advice.findings import Advice, Clock, Severity, Silent, one_line, to_text
from neurontools.profiler.advice.rules import Report, advise
from neurontools.profiler.advice.subject import open_subject
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.reader import open_captures
from neurontools.runtime.host_activity import HostEvent
from tests.profiler.advice.programs import gpt, located, neff_bytes, perceptron, program

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.advice.subject import ProfiledRun

    Tool = Callable[..., subprocess.CompletedProcess[str]]

GAP_NS, WALL_NS = 50_000, 300_000


def write(maker: Maker, directory: Path, *runs: tuple[bytes, str, int], gap_ns: int = GAP_NS) -> Path:
    """Write a profile in which programs run in turn, each as often as its number says."""
    capture = maker.capture(directory)
    models = [maker.model(neff=neff, name=name, model_id=10001 + n) for n, (neff, name, _) in enumerate(runs)]
    now = open_captures(str(directory))[0].meta.started_ns
    for model in models:
        capture.on_load(model, now, now + 1_000)
    now += 1_000
    for number in range(1, max(count for *_, count in runs) + 1):
        for model, (*_, count) in zip(models, runs, strict=True):
            if number <= count:
                now += gap_ns
                capture.on_execute(model, number, now, now + WALL_NS, 0)
                now += WALL_NS
        capture.host.on_host_event((HostEvent.STEP, now, now, 0, "mark_step", "train.py:9", 0, 0))
    capture.on_close()
    return directory


def subject_of(directory: Path) -> ProfiledRun:
    return open_subject(load(str(directory)))


def found(report: Report, rule: str) -> Advice | None:
    return next((advice for advice in report.advice if advice.rule == rule), None)


def silent(report: Report, rule: str) -> str:
    return next(item.reason for item in report.silent if item.rule == rule)


@pytest.fixture
def slow_gpt() -> bytes:
    graph = gpt(width=260, dtype="float32", fused=False)
    return neff_bytes(located(graph, {"softmax": "/home/ada/model.py:41"}))


def test_programs_that_run_in_most_steps_are_the_step(home: Path, maker: Maker) -> None:
    step, small, once = (neff_bytes(perceptron(rows, 256)) for rows in (2048, 512, 256))
    subject = subject_of(
        write(maker, home / "p", (small, "small", 12), (step, "step", 24), (once, "once", 1))
    )
    assert [program.name for program in subject.programs] == ["step", "small"]
    assert [program.per_step for program in subject.programs] == [
        1,
        pytest.approx(11 / 23),
    ]  # without the first step
    assert [program.name for program in subject.rare] == ["once"]
    step_ns, small_ns = (program.total_ns for program in subject.programs)
    assert subject.step_ns == pytest.approx(step_ns + small_ns * 11 / 23, abs=1)


def test_the_gain_of_a_program_counts_as_often_as_it_runs_in_a_step(home: Path, maker: Maker) -> None:
    slow, other = neff_bytes(gpt(dtype="float32")), neff_bytes(perceptron(16384, 256))
    alone = advise(subject_of(write(maker, home / "a", (slow, "slow", 4))))
    both = advise(subject_of(write(maker, home / "b", (slow, "slow", 8), (other, "other", 4))))
    one, two = found(alone, "dtype"), found(both, "dtype")
    assert one is not None
    assert two is not None
    assert one.gain.ns == two.gain.ns
    assert two.gain.step_ns > one.gain.step_ns
    assert (one.program, two.program) == ("", "slow")


def test_an_advice_says_the_line_the_change_and_the_gain(home: Path, maker: Maker, slow_gpt: bytes) -> None:
    report = advise(subject_of(write(maker, home / "p", (slow_gpt, "gpt", 4))))
    advice = found(report, "attention")
    assert advice is not None
    line = one_line(advice)
    assert line.startswith(
        "Use scaled_dot_product_attention instead of writing attention out: model.py:41, 2 times, -"
    )
    assert line.endswith(" a step (modelled)")
    gains = [each.gain.share for each in report.advice]
    assert gains == sorted(gains, reverse=True)
    assert found(report, "dtype").severity is Severity.HIGH  # type: ignore[union-attr]


def test_a_host_that_is_slower_than_the_device_is_told(home: Path, maker: Maker) -> None:
    neff = neff_bytes(perceptron(512, 256))
    advice = found(
        advise(subject_of(write(maker, home / "p", (neff, "small", 5), gap_ns=2_000_000))), "host-bound"
    )
    assert advice is not None
    assert (advice.gain.ns, advice.gain.step_ns) == (2_000_000, 2_000_000 + WALL_NS)
    assert advice.gain.clock is Clock.MEASURED
    assert "host: 2.000 ms outside of executions (measured)" in advice.method


def test_a_host_that_is_faster_than_the_device_is_left_alone(
    home: Path, maker: Maker, slow_gpt: bytes
) -> None:
    report = advise(subject_of(write(maker, home / "p", (slow_gpt, "gpt", 5))))
    assert silent(report, "host-bound").startswith(
        "host: 50.00 us outside of executions (measured), device: "
    )
    assert silent(report, "graph-cuts") == "one graph a step"


def with_cut(graph, cut: str) -> bytes:  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return neff_bytes(replace(graph, cut=cut))


def test_a_step_in_several_graphs_names_the_lines_that_cut_it(home: Path, maker: Maker) -> None:
    first = with_cut(perceptron(512, 256), "item() at /home/ada/train.py:30")
    last = with_cut(perceptron(1024, 256), "mark_step at /home/ada/train.py:40")
    advice = found(
        advise(subject_of(write(maker, home / "p", (first, "a", 5), (last, "b", 5)))), "graph-cuts"
    )
    assert advice is not None
    assert advice.gain.ns == 40_000  # the launch of an execution
    cut, whole = (perceptron(512, 256, layers=layers) for layers in (6, 12))
    saved = 2 * program(cut).total_ns - program(whole).total_ns
    assert saved >= advice.gain.ns  # what the cut stores and loads comes on top
    assert advice.change.startswith("item() at train.py:30: read values after the step")
    assert advice.evidence[0].source == "/home/ada/train.py:30"


def test_graphs_of_several_shapes_share_their_advice_and_one_line_a_rule(home: Path, maker: Maker) -> None:
    cut = "item() at /home/ada/train.py:30"
    graphs = [with_cut(perceptron(rows, 1024, dtype="float32"), cut) for rows in (1024, 1280)]
    last = with_cut(perceptron(512, 256), "mark_step at /home/ada/train.py:40")
    runs = [*((neff, "forward", 5) for neff in graphs), (last, "last", 5)]
    report = advise(subject_of(write(maker, home / "p", *runs)))
    alone = [advise(subject_of(write(maker, home / str(at), run))) for at, run in enumerate(runs[:2])]
    shared = found(report, "dtype")
    assert shared is not None
    assert shared.gain.ns == sum(found(each, "dtype").gain.ns for each in alone)  # type: ignore[union-attr]
    assert re.fullmatch(r"forward, NEFF \d+, and 1 other", shared.program)
    cuts = found(report, "graph-cuts")
    assert cuts is not None
    assert [line.source for line in cuts.evidence] == ["/home/ada/train.py:30"]
    assert silent(report, "batch") == "the steps have 2 graphs, which need not have one batch"
    (line,) = (line for line in to_text(report).splitlines() if line.startswith("  attention "))
    assert line.endswith("; nothing in 1 other graph)")


def test_graphs_that_end_at_mark_step_are_left_alone(home: Path, maker: Maker) -> None:
    first, last = (
        with_cut(perceptron(rows, 256), "mark_step at /home/ada/train.py:40") for rows in (512, 1024)
    )
    report = advise(subject_of(write(maker, home / "p", (first, "a", 5), (last, "b", 5))))
    assert silent(report, "graph-cuts") == "2.0 graphs a step, each ended by mark_step"


def test_the_command_prints_text_or_json(home: Path, maker: Maker, slow_gpt: bytes, tool: Tool) -> None:
    directory = str(write(maker, home / "p", (slow_gpt, "gpt", 4)))
    done = tool("neuron-profile", "advise", directory, "--limit", "1")
    assert (done.returncode, done.stderr) == (0, "")
    first, _, advice, change, *_ = done.stdout.splitlines()
    assert first.startswith("Step: ")
    assert first.endswith(" (modelled), seen 3 times")
    assert advice.startswith("1. ")
    assert change.startswith("   change  ")
    assert "more with a smaller gain." in done.stdout
    assert "Looked at, nothing to change:" in done.stdout
    report = json.loads(tool("neuron-profile", "advise", directory, "--json", "--limit", "2").stdout)
    assert len(report["advice"]) == 2
    assert report["advice"][0]["gain"]["clock"] == "modelled"
    assert {"rule", "title", "change", "gain", "method", "evidence", "severity"} < report["advice"][0].keys()


def test_lines_of_the_program_cannot_control_the_terminal(home: Path, maker: Maker) -> None:
    graph = located(gpt(dtype="float32"), {"mm": "/home/ada/\x1b[2Jmodel.py:7"})
    text = to_text(advise(subject_of(write(maker, home / "p", (neff_bytes(graph), "gpt\x1b", 3)))), width=60)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_profile_without_executions_or_graphs_says_what_is_missing(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "empty")
    capture.on_load(maker.model(), 1_000, 2_000)
    capture.on_close()
    with pytest.raises(ProfileError, match="no executions, so there is no step"):
        subject_of(home / "empty")
    directory = write(maker, home / "p", (neff_bytes(perceptron(512, 256)), "small", 3))
    next(directory.glob("*/neff_*.neff")).unlink()
    with pytest.raises(ProfileError, match="no readable copy of a NEFF") as raised:
        subject_of(directory)
    assert raised.value.remedy


def test_a_report_without_advice_says_so() -> None:
    text = to_text(Report(1_500, 3, (), (Silent("widths", "all fit"),)))
    assert text.splitlines() == [
        "Step: 1.500 us (modelled), seen 3 times",
        "",
        "No change that a rule knows would gain 1 % of a step.",
        "",
        "Looked at, nothing to change:",
        "  widths            all fit",
    ]
