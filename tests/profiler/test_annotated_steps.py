"""Steps that torch.profiler marks in its traces: lengths, what the device does in them, comparisons, limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.commands.profile import main
from neurontools.profiler.analysis.check import LimitOutcome, check, tolerance_limits
from neurontools.profiler.analysis.compare import StepVerdict, compare
from neurontools.profiler.analysis.operators import By, group_totals, top_operators
from neurontools.profiler.analysis.steps import find_steps, of_steps
from neurontools.profiler.trace.open import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.profiler.trace.trace import Trace

COUNT, FIRST, LENGTH_US, KERNEL_US = 6, 3, 1000, 400


def trace(path: Path, length_us: int = LENGTH_US, *, marked: bool = True) -> Trace:
    """Write a trace of steps with one kernel each; every third is 10 us longer than the two before."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "X", "cat": "cpu_op", "name": "before", "pid": 77, "tid": 1, "ts": 0, "dur": 50},
        {"ph": "X", "cat": "cpu_op", "name": "after", "pid": 77, "tid": 1, "ts": 90_000, "dur": 50},
    ]
    for place in range(COUNT):
        start, name = 100 + place * (length_us + 20), f"ProfilerStep#{FIRST + place}"
        if marked:
            step = {"ph": "X", "name": name, "ts": start, "dur": length_us + 10 * (place % 3 == 2)}
            events.append(step | {"cat": "user_annotation", "pid": 77, "tid": 1})
            events.append(step | {"cat": "gpu_user_annotation", "pid": 0, "tid": 8})
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
        events.append(kernel | {"ts": start + 100, "dur": KERNEL_US})
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return open_trace(str(path))


def test_steps_have_numbers_lengths_and_the_time_in_which_the_device_works(tmp_path: Path) -> None:
    (steps,) = find_steps(trace(tmp_path / "trace.json"))
    assert (steps.pid, steps.first_number, steps.how) == (77, FIRST, "steps that torch.profiler marked")
    assert [step.duration_ns // 1000 for step in steps] == [1000, 1000, 1010] * 2
    assert {step.execute_ns // 1000 for step in steps} == {KERNEL_US}
    assert all(step.idle_ns == step.duration_ns - step.execute_ns for step in steps)
    assert steps.summary().median_ns == 1_000_000


def test_a_choice_of_steps_keeps_what_is_in_them_on_the_host_and_the_device(tmp_path: Path) -> None:
    chosen = of_steps(trace(tmp_path / "trace.json"), 4, 5)
    (steps,) = find_steps(chosen)
    assert steps.numbers.tolist() == [4, 5]
    names = [
        chosen.actions[row.events.block(at, at + 1).action[0]].name for row in chosen.rows for at in range(2)
    ]
    assert sorted(names) == sorted(["gemm"] * 2 + ["ProfilerStep#4", "ProfilerStep#5"] * 2)
    assert all(row.events.count == 2 for row in chosen.rows)


def test_slower_steps_are_found_by_comparison_and_fail_a_check(tmp_path: Path) -> None:
    before, same = trace(tmp_path / "before.json"), trace(tmp_path / "same.json")
    slower = trace(tmp_path / "slower.json", 2 * LENGTH_US)
    step = compare(before, slower).step
    assert step is not None
    assert (step.before_ns, step.after_ns, step.verdict) == (1e6, 2e6, StepVerdict.SLOWER)
    for after, outcome in ((same, LimitOutcome.PASSED), (slower, LimitOutcome.FAILED)):
        assert [each.outcome for each in check(after, tolerance_limits("5%", after, before), before)] == [
            outcome
        ]


def test_a_trace_without_steps_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    assert find_steps(trace(path, marked=False)) == ()
    assert main(["steps", str(path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: the trace has no steps",
        "hint: give torch.profiler a schedule and call its step() after each step: it marks them then",
    ]
    assert main(["advise", str(path)]) == 1
    assert capsys.readouterr().err.startswith(
        "error: advice needs steps, and this trace of torch.profiler has none"
    )


def test_the_table_of_steps_has_only_what_a_foreign_trace_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    trace(path)
    assert main(["steps", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "6 steps of pid 77: steps that torch.profiler marked"
    assert lines[1].split() == ["step", "time", "execute", "idle"]
    assert lines[2].split() == ["3", "1.000", "ms", "400.0", "us", "600.0", "us"]
    assert lines[-1].startswith("Times are measured by torch.profiler")


def test_a_trace_without_a_device_does_not_call_it_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    step = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": 7,
        "tid": 1,
        "ts": 5,
        "dur": 20,
    }
    path.write_text(json.dumps([step, step | {"name": "aten::mm", "cat": "cpu_op", "dur": 5}]))
    assert main(["steps", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["step", "time"]
    assert lines[-1] == "Times are measured by torch.profiler, which shows no device."


@pytest.mark.parametrize("verb", ["gaps", "roofline", "critical-path"])
def test_what_needs_executions_refuses_a_foreign_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    path = tmp_path / "trace.json"
    trace(path)
    assert main([verb, str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[0] == (
        f"error: {verb} needs executions of NeuronCores, and a trace of torch.profiler has none"
    )


def test_threads_of_two_runs_are_one_engine(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 0, "dur": 5}]
    for pid in (7, 8):
        name = {"ph": "M", "name": "thread_name", "pid": pid, "tid": 1, "args": {"name": f"thread {pid}"}}
        (tmp_path / f"{pid}.json").write_text(json.dumps([name, *(each | {"pid": pid} for each in events)]))
    names = {
        group.name
        for pid in (7, 8)
        for group in group_totals(open_trace(str(tmp_path / f"{pid}.json")), By.ENGINE)
    }
    assert names == {"Host"}


def test_steps_are_one_operator(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": 7,
            "tid": 1,
            "ts": 10 * step,
            "dur": 5,
        }
        for step in range(COUNT)
    ]
    path.write_text(json.dumps(events))
    (found,) = top_operators(open_trace(str(path)))
    assert (found.name, found.count, found.total_ns) == ("ProfilerStep*", COUNT, COUNT * 5000)
    for by in (By.OPERATOR, By.SHAPE):
        assert [group.name for group in group_totals(open_trace(str(path)), by)] == ["ProfilerStep*"]
