"""Steps, gaps between executions, and workers held against each other.

Steps that torch.profiler marks in its traces: lengths, what the device does in them, comparisons, limits.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.commands.profile import main
from neurontools.profiler.analysis.check import LimitOutcome, check, parse_limit, tolerance_limits
from neurontools.profiler.analysis.compare import StepVerdict, compare
from neurontools.profiler.analysis.host import find_gaps
from neurontools.profiler.analysis.operators import By, group_totals, top_operators
from neurontools.profiler.analysis.ranks import compare_ranks, missing_ranks
from neurontools.profiler.analysis.steps import PARTS, find_steps, of_steps
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.trace.open import load, open_trace
from neurontools.profiler.trace.selection import Selection, select
from neurontools.runtime.host_activity import HostEvent
from tests.profiler.host_rows import with_host

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace


MS = 1_000_000


@pytest.fixture
def one(home: Path, maker: Maker) -> Trace:
    """One core: a load of 2 ms, 0.5 ms later an execution of 3 ms, then four of 0.3 ms with 0.05 ms between them."""
    maker.finished(home / "one")
    return load(str(home / "one"))


def mixed(home: Path, maker: Maker, order: str, name: str = "mixed") -> Trace:
    """A capture that executes models by their letters, 1 ms each with 1 ms between them."""
    capture = maker.capture(home / name)
    letters = sorted(set(order))
    models = {letter: maker.model(model_id=number, name=letter) for number, letter in enumerate(letters, 1)}
    for model in models.values():
        capture.on_load(model, maker.start_ns, maker.start_ns)
    counts = dict.fromkeys(letters, 0)
    now = maker.start_ns + MS
    for letter in order:
        counts[letter] += 1
        capture.on_execute(models[letter], counts[letter], now, now + MS, 0)
        now += 2 * MS
    capture.on_close()
    return load(str(home / name))


def test_steps_are_the_executions_that_repeat(one: Trace) -> None:
    (steps,) = find_steps(one)
    assert steps.how == "repeating sequence of 1 execution (mlp)"
    assert steps.duration_ns.tolist() == [5_500_000, 350_000, 350_000, 350_000, 350_000]
    assert steps.is_first.tolist() == [True, False, False, False, False]
    first = steps[0]
    assert (first.number, first.start_ns, first.executions, first.device_ns) == (1, 0, 1, 25_000)
    assert (first.load_ns, first.execute_ns, first.idle_ns) == (2_000_000, 3_000_000, 500_000)
    summary = steps.summary()
    assert (summary.count, summary.first_count) == (4, 1)
    assert (summary.min_ns, summary.median_ns, summary.mean_ns, summary.max_ns) == (350_000,) * 4
    assert (summary.execute_ns, summary.idle_ns, summary.device_ns) == (300_000, 50_000, 25_000)


@pytest.mark.parametrize(
    ("order", "executions"),
    [
        ("ABABAB", [2, 2, 2]),
        ("XABABAB", [1, 2, 2, 2]),
        ("AAABAAABAAAB", [4, 4, 4]),
        ("XYAAAAA", [1] * 7),
        ("A", [1]),
        ("ABC", [1, 1, 1]),
    ],
)
def test_a_sequence_that_repeats_is_found(
    home: Path, maker: Maker, order: str, executions: list[int]
) -> None:
    (steps,) = find_steps(mixed(home, maker, order))
    assert steps.executions.tolist() == executions
    assert steps.start_ns.tolist() == np.cumsum([0, *steps.duration_ns[:-1]]).tolist()


def test_marked_steps_come_before_repetition(one: Trace) -> None:
    ends = [5_600_000, 6_240_000, 6_245_000, 6_950_000]
    marks = [(HostEvent.STEP, start, end) for start, end in zip([0, *ends], ends, strict=False)]
    uploads = [(HostEvent.UPLOAD, 5_500_000, 5_520_000), (HostEvent.DOWNLOAD, 5_510_000, 5_540_000)]
    compiles = [(HostEvent.COMPILE, 1_900_000, 2_400_000)]
    (steps,) = find_steps(with_host(one, [*marks, *uploads, *compiles]))
    assert steps.how == "steps marked by the program"
    # The mark without executions after the one before it adds nothing of its own.
    assert steps.duration_ns.tolist() == [5_600_000, 640_000, 710_000]
    assert steps.executions.tolist() == [2, 1, 2]
    first = steps[0]
    assert (first.compile_ns, first.transfer_ns, first.load_ns) == (400_000, 40_000, 2_000_000)
    for step in steps:
        assert sum(getattr(step, part) for part in PARTS) == step.duration_ns


def test_what_follows_the_last_mark_is_no_step(one: Trace) -> None:
    (steps,) = find_steps(with_host(one, [(HostEvent.STEP, 0, 5_900_000)]))
    assert steps.executions.tolist() == [2]


def test_a_range_of_steps_is_a_trace(one: Trace) -> None:
    part = of_steps(one, 2, 3)
    assert [runs.number.tolist() for runs in part.runs] == [[2, 3]]
    (steps,) = find_steps(part)
    assert len(steps) == 2
    assert not steps.is_first.any()
    assert part.event_count == 2 * (8 + 3)
    with pytest.raises(ProfileError, match="no step 9 to 12: the profile has 5 steps"):
        of_steps(one, 9, 12)


def test_a_profile_without_executions_has_no_steps(home: Path, maker: Maker) -> None:
    maker.finished(home / "none", steps=0)
    empty = load(str(home / "none"))
    assert find_steps(empty) == ()
    with pytest.raises(ProfileError, match="the profile has 0 steps"):
        of_steps(empty, 1, 1)


def test_gaps_say_what_the_host_did(one: Trace) -> None:
    found = find_gaps(with_host(one, [
        (HostEvent.CUT, 5_520_000, 5_600_000),
        (HostEvent.COMPILE, 5_530_000, 5_540_000),
        (HostEvent.UPLOAD, 5_860_000, 5_870_000),
    ]))  # fmt: skip
    assert (found.count, found.total_ns, found.span_ns) == (4, 200_000, 3_000_000 + 4 * 350_000)
    assert [gap.duration_ns for gap in found.gaps] == [50_000] * 4
    assert [gap.start_ns for gap in found.gaps] == [5_500_000, 5_850_000, 6_200_000, 6_550_000]
    assert found.gaps[0].host == (("cut", 20_000), ("python", 20_000), ("compile", 10_000))
    assert found.gaps[1].host == (("python", 40_000), ("upload", 10_000))
    assert dict(found.host) == {"python": 160_000, "cut": 20_000, "upload": 10_000, "compile": 10_000}
    assert (found.gaps[0].before, found.gaps[0].after) == ("mlp", "mlp")
    assert find_gaps(one, limit=1).gaps[0].start_ns == 5_500_000
    assert find_gaps(one, at_least_ns=60_000).count == 0


def workers(home: Path, maker: Maker, factors: tuple[int, ...], size: int | None = None) -> Trace:
    """Workers with steps that take a factor of 3 ms."""
    for rank, factor in enumerate(factors):
        capture = maker.worker(home / "ranks", rank, size or len(factors))
        maker.train(capture, wall_ns=factor * 3_000_000)
        capture.on_close()
    return load(str(home / "ranks"))


def test_a_worker_that_is_always_slower_is_a_straggler(home: Path, maker: Maker) -> None:
    found = compare_ranks(workers(home, maker, (1, 1, 2)))
    assert [rank.is_straggler for rank in found.ranks] == [False, False, True]
    assert [rank.step_ns for rank in found.ranks] == [3_050_000, 3_050_000, 6_050_000]
    assert [skew.step for skew in found.steps] == [2, 3, 4, 5]
    assert {(skew.skew_ns, skew.slowest_rank) for skew in found.steps} == {(3_000_000, 2)}
    assert (found.has_waits, found.missing, found.lost_ns) == (False, (), 3_000_000)


def test_a_difference_within_the_noise_of_a_computer_is_no_straggler(home: Path, maker: Maker) -> None:
    for rank, wall_ns in enumerate((1_800_000, 2_700_000)):
        capture = maker.worker(home / "ranks", rank, 2)
        maker.train(capture, wall_ns=wall_ns)
        capture.on_close()
    found = compare_ranks(load(str(home / "ranks")))
    assert [rank.is_straggler for rank in found.ranks] == [False, False]
    assert [rank.slowest_share for rank in found.ranks] == [0.0, 1.0]


def test_waiting_for_others_is_no_work(home: Path, maker: Maker) -> None:
    trace = workers(home, maker, (1, 1))
    first = trace.runs[0].wall_start[1]
    found = compare_ranks(with_host(trace, [
        (HostEvent.PEER_WAIT, int(first) + number * 3_050_000, int(first) + number * 3_050_000 + 2_500_000)
        for number in range(4)
    ]))  # fmt: skip
    assert [(rank.wait_ns, rank.work_ns) for rank in found.ranks] == [(2_500_000, 550_000), (0, 3_050_000)]
    assert [rank.is_straggler for rank in found.ranks] == [False, True]
    assert found.has_waits


def test_workers_that_the_profile_lacks_are_named(home: Path, maker: Maker) -> None:
    assert missing_ranks(workers(home, maker, (1, 1), size=4)) == (2, 3)


def test_one_worker_cannot_be_compared(one: Trace) -> None:
    with pytest.raises(ProfileError, match="the profile has 1 worker, so there is nothing to compare"):
        compare_ranks(one)


def test_one_worker_of_several_names_the_others(home: Path, maker: Maker) -> None:
    with pytest.raises(ProfileError, match="nothing to compare; missing: rank 1, rank 2"):
        compare_ranks(workers(home, maker, (1,), size=3))


def test_steps_of_a_selection_count_from_one(one: Trace) -> None:
    (steps,) = find_steps(select(one, Selection(skip_warmup=True)))
    assert len(steps) == 4
    assert not steps.is_first.any()


def test_steps_that_the_program_ends_keep_their_times_without_the_warm_up(one: Trace) -> None:
    (runs,) = one.runs
    ends = (runs.wall_start + runs.wall_ns).tolist()
    marked = with_host(
        one,
        [(HostEvent.STEP, start, end) for start, end in zip([0, *ends], ends, strict=False)],
    )
    (whole,) = find_steps(marked)
    (later,) = find_steps(select(marked, Selection(skip_warmup=True)))
    assert whole.numbers.tolist() == [1, 2, 3, 4, 5]
    assert later.numbers.tolist() == [2, 3, 4, 5]
    assert later.duration_ns.tolist() == whole.duration_ns[1:].tolist()


def test_the_median_of_an_even_number_of_steps_is_between_the_two_in_the_middle(
    home: Path, maker: Maker
) -> None:
    capture, model, now = maker.capture(home / "profile"), maker.model(), maker.start_ns
    capture.on_load(model, now, now)
    for step, wall_ns in enumerate((1 * MS, 2 * MS, 3 * MS, 9 * MS, 7 * MS), 1):
        capture.on_execute(model, step, now, now + wall_ns, 0)
        now += wall_ns
    capture.on_close()
    trace = load(str(home / "profile"))
    assert summarise(trace).models[0].wall_median_ns == 5 * MS
    (steps,) = find_steps(trace)
    typical = steps.summary()
    assert (typical.count, typical.median_ns) == (4, 5 * MS)
    (limit,) = check(trace, [parse_limit("step_time>1s")])
    assert limit.value == 0.005


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
