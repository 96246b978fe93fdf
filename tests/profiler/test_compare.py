"""Two profiles held against each other, and limits that fail a job."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from msgspec import structs

from neurontools.commands.profile import main
from neurontools.errors import UsageError
from neurontools.profiler.analysis.check import (
    LimitOutcome,
    check,
    code_cell,
    overall,
    parse_limit,
    tolerance_limits,
)
from neurontools.profiler.analysis.compare import ChangeKind, StepVerdict, compare, mann_whitney
from neurontools.profiler.analysis.operators import By, group_totals
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.selection import without_warmup

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace

    Tool = Callable[..., subprocess.CompletedProcess[str]]


def captured(
    home: Path, maker: Maker, name: str, wall_ns: int = 300_000, steps: int = 12, slower: int = 0
) -> Trace:
    """A capture of steps; its product takes `slower` ns longer, and with it the execution."""
    operations = tuple(
        structs.replace(each, duration_ns=each.duration_ns + slower) if each.name == "aten.mm" else each
        for each in maker.mlp()
    )
    capture = maker.capture(home / name)
    model = maker.model(neff=maker.neff(operations, 25_000 + slower))
    capture.on_load(model, maker.start_ns, maker.start_ns + 1000)
    now = maker.start_ns + 1000
    for step in range(1, steps + 1):
        capture.on_execute(model, step, now, now + wall_ns + 1000 * (step % 3), 0)
        now += wall_ns + 50_000
    capture.on_close()
    return load(str(home / name))


def exact(before: list[int], after: list[int]) -> float:
    """The two-sided probability by counting all ways to choose the samples, without ties."""
    together = sorted(before + after)
    ranks = {value: rank for rank, value in enumerate(together, 1)}
    mean = len(before) * (len(together) + 1) / 2
    seen = abs(sum(ranks[value] for value in before) - mean)
    sums = [sum(chosen) for chosen in combinations(range(1, len(together) + 1), len(before))]
    return sum(abs(each - mean) >= seen for each in sums) / len(sums)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]),
        ([1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12]),
        ([1, 2, 3, 8, 9], [4, 5, 6, 7, 10, 11]),
    ],
)
def test_the_rank_test_is_near_the_exact_one(before: list[int], after: list[int]) -> None:
    found = mann_whitney(np.array(before), np.array(after))
    assert found == pytest.approx(exact(before, after), abs=0.02)
    assert found == pytest.approx(mann_whitney(np.array(after), np.array(before)))


def test_equal_samples_differ_by_chance() -> None:
    assert mann_whitney(np.array([5, 5, 5]), np.array([5, 5, 5])) == 1.0


def test_a_slower_operator_is_found(home: Path, maker: Maker) -> None:
    before, after = captured(home, maker, "a"), captured(home, maker, "b", slower=3_000)
    found = compare(before, after)
    assert (found.verdict, found.reasons) == (StepVerdict.SLOWER, ())
    assert found.device is not None
    assert (found.device.before_ns, found.device.after_ns) == (25_000, 28_000)
    assert found.step is not None
    assert found.step.verdict is StepVerdict.SAME
    changes = {change.name: change for change in found.groups[By.OPERATOR]}
    assert changes["aten.mm"].kind is ChangeKind.SLOWER
    assert {change.kind for name, change in changes.items() if name != "aten.mm"} == {ChangeKind.SAME}
    assert found.groups[By.OPERATOR][0].name == "aten.mm"
    # Totals of a step are those of all typical steps, divided.
    totals = {group.name: group.total_ns for group in group_totals(without_warmup(before), By.OPERATOR)}
    assert {name: round(change.before_ns * 11) for name, change in changes.items()} == totals
    assert compare(after, before).verdict is StepVerdict.FASTER
    assert compare(before, before).verdict is StepVerdict.SAME


def test_equal_layers_are_one_row(home: Path, maker: Maker) -> None:
    trace = captured(home, maker, "a")
    layers = [f"Net.blocks.{number % 3}.mlp" for number in range(len(trace.actions) - 1)]
    layered = replace(
        trace,
        actions=tuple(
            structs.replace(action, layer=layer)
            for action, layer in zip(trace.actions, [*layers, "Net.head.0"], strict=True)
        ),
    )
    changes = {change.name: change for change in compare(layered, layered).groups[By.LAYER]}
    assert changes["Net.blocks.*.mlp"].members == tuple(f"Net.blocks.{number}.mlp" for number in range(3))
    assert not [name for name in changes if name.startswith("Net.blocks.0")]
    assert "Net.head.*" not in changes  # it has no equal


def test_slower_steps_are_told_from_chance(home: Path, maker: Maker) -> None:
    before = captured(home, maker, "a")
    step = compare(before, captured(home, maker, "b", wall_ns=400_000)).step
    assert step is not None
    assert step.verdict is StepVerdict.SLOWER
    few = compare(before, captured(home, maker, "c", wall_ns=400_000, steps=3)).step
    assert few is not None
    assert few.verdict is StepVerdict.INCONCLUSIVE


def test_profiles_with_nothing_in_common_are_not_compared(home: Path, maker: Maker) -> None:
    one = captured(home, maker, "a")
    other = replace(
        one, actions=tuple(structs.replace(each, name=f"other.{each.name}") for each in one.actions)
    )
    found = compare(one, other)
    assert (found.verdict, found.reasons) == (
        StepVerdict.INCONCLUSIVE,
        ("the profiles have no operator in common",),
    )
    assert {change.kind for change in found.groups[By.OPERATOR]} == {ChangeKind.NEW, ChangeKind.GONE}


def test_models_without_a_common_layer_are_compared_with_a_note(home: Path, maker: Maker) -> None:
    one, two = (
        replace(trace, actions=tuple(structs.replace(each, layer=f"Model.{layer}") for each in trace.actions))
        for trace, layer in ((captured(home, maker, "a"), "blocks.0"), (captured(home, maker, "b"), "fc1"))
    )
    assert compare(one, two).verdict is StepVerdict.SAME
    assert compare(one, two).notes == (
        "the profiles have no layer in common; they may be of different models",
    )
    assert compare(one, one).notes == ()
    unknown = replace(one, actions=tuple(structs.replace(each, layer="") for each in one.actions))
    assert compare(one, unknown).notes == ()


def test_another_instance_or_an_empty_profile_is_not_compared(home: Path, maker: Maker) -> None:
    one = captured(home, maker, "a")
    other = replace(
        one, processes=tuple(replace(meta, instance_type="trn2.48xlarge") for meta in one.processes)
    )
    assert compare(one, other).reasons == ("other instance type: trn1.2xlarge and trn2.48xlarge",)
    maker.finished(home / "none", steps=0)
    empty = load(str(home / "none"))
    found = compare(one, empty)
    assert (found.verdict, found.reasons) == (
        StepVerdict.INCONCLUSIVE,
        ("the second profile has no executions",),
    )
    maker.finished(home / "two", ncs=(0, 1))
    assert compare(one, load(str(home / "two"))).reasons == ("other number of NeuronCores: 1 and 2",)


def outcomes(trace: Trace, *conditions: str, baseline: Trace | None = None) -> list[LimitOutcome]:
    return [result.outcome for result in check(trace, [parse_limit(each) for each in conditions], baseline)]


def test_absolute_limits_are_in_the_unit_of_the_metric(home: Path, maker: Maker) -> None:
    trace = captured(home, maker, "a")
    conditions = {
        "step_time>1s": LimitOutcome.PASSED,
        "step_time > 300us": LimitOutcome.FAILED,
        "step_device_time>=25us": LimitOutcome.FAILED,
        "step_device_time>25us": LimitOutcome.PASSED,
        "total_time>0.0003": LimitOutcome.PASSED,
        "total_time>=0.0003": LimitOutcome.FAILED,
        "tensor_engine_active_time_percent<40%": LimitOutcome.PASSED,
        "tensor_engine_active_time_percent<60": LimitOutcome.FAILED,
        "hbm_read_bytes>1MB": LimitOutcome.FAILED,
        "hbm_read_bytes<1MB": LimitOutcome.PASSED,
        "trace_count<=12": LimitOutcome.FAILED,
    }
    assert outcomes(trace, *conditions) == list(conditions.values())


def test_relative_limits_refer_to_the_baseline(home: Path, maker: Maker) -> None:
    before, after = captured(home, maker, "a"), captured(home, maker, "b", slower=3_000)
    assert outcomes(after, "total_time>+15%", "total_time>+5%", baseline=before) == [
        LimitOutcome.PASSED,
        LimitOutcome.FAILED,
    ]
    assert outcomes(before, "total_time<-5%", baseline=after) == [LimitOutcome.FAILED]
    slow = captured(home, maker, "slow", wall_ns=400_000)
    assert outcomes(slow, "step_time>+5%", baseline=before) == [LimitOutcome.FAILED]
    few = captured(home, maker, "few", wall_ns=400_000, steps=3)
    assert outcomes(few, "step_time>+5%", baseline=before) == [LimitOutcome.INCONCLUSIVE]
    results = check(after, tolerance_limits("5%", after, before), before)
    assert [result.outcome for result in results] == [LimitOutcome.FAILED, LimitOutcome.PASSED]
    assert overall(results) is LimitOutcome.FAILED


def test_a_foreign_baseline_or_an_empty_profile_is_inconclusive(home: Path, maker: Maker) -> None:
    one = captured(home, maker, "a")
    other = replace(
        one, actions=tuple(structs.replace(each, name=f"other.{each.name}") for each in one.actions)
    )
    results = check(one, [parse_limit("total_time>+5%")], other)
    assert overall(results) is LimitOutcome.INCONCLUSIVE
    assert results[0].text == "not comparable: the profiles have no operator in common"
    maker.finished(home / "none", steps=0)
    assert (
        outcomes(load(str(home / "none")), "step_time>1s", "total_time>1s") == [LimitOutcome.INCONCLUSIVE] * 2
    )
    assert overall(()) is LimitOutcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("", "is not a condition"),
        ("step_time", "is not a condition"),
        ("step_time=5", "is not a condition"),
        ("step_time>", "is not a condition"),
        ("__import__('os')>1", "is not a condition"),
        ("step_time>+5", "is not a change in percent"),
        ("step_time>+-5%", "is not a change in percent"),
        ("step_time>nan", "invalid duration 'nan'"),
        ("step_time>5 bananas", "invalid duration"),
        ("trace_count>5%", "is not a number"),
        ("mfu_estimated_percent<30ms", "is not a number"),
        ("total_tme>5s", "unknown metric total_tme"),
        ("total_time>+5%", "needs a baseline"),
    ],
)
def test_absurd_conditions_are_usage_errors(home: Path, maker: Maker, condition: str, error: str) -> None:
    trace = captured(home, maker, "a")
    with pytest.raises(UsageError) as raised:
        check(trace, [parse_limit(condition)])
    assert error in raised.value.message


def test_sums_of_runs_of_other_lengths_are_not_compared(home: Path, maker: Maker) -> None:
    maker.finished(home / "long", steps=12)
    maker.finished(home / "short", steps=6)
    long, short = load(str(home / "long")), load(str(home / "short"))
    for condition in (
        "total_time>+5%",
        "hbm_read_bytes>+5%",
        "model_flops>+5%",
        "matmul_instruction_count>+5%",
    ):
        assert outcomes(short, condition, baseline=long) == [LimitOutcome.INCONCLUSIVE]
    (result,) = check(short, [parse_limit("total_time>+5%")], long)
    assert result.text == "the baseline has 12 steps, the profile 6: total_time adds up over steps"
    for condition in ("step_device_time>+5%", "mfu_estimated_percent<-5%", "dma_transfer_average_bytes>+5%"):
        assert outcomes(short, condition, baseline=long) == [LimitOutcome.PASSED]


def test_a_choice_of_steps_is_that_of_the_baseline_too(
    home: Path, maker: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    maker.finished(home / "long", steps=12)
    maker.finished(home / "short", steps=6)
    words = ["check", str(home / "short"), "--baseline", str(home / "long"), "--fail-if", "total_time>+5%"]
    assert main(words) == 3
    assert main([*words, "--steps", "3-5"]) == 0
    assert "75.00 us -> 75.00 us" in capsys.readouterr().out


def test_the_exit_code_of_a_check_is_its_outcome(tool: Tool, home: Path, maker: Maker) -> None:
    captured(home, maker, "a")
    captured(home, maker, "b", slower=3_000)
    a, b = str(home / "a"), str(home / "b")
    passed = tool("neuron-profile", "check", a, "--fail-if", "step_time>1s")
    assert (passed.returncode, passed.stderr) == (0, "")
    assert passed.stdout.startswith("passed  step_time>1s")
    junit, markdown = home / "out.xml", home / "out.md"
    failed = tool(
        "neuron-profile", "check", b, "--baseline", a, "--tolerance", "5%", "--fail-if", "step_time>1s", "--json",
        "--junit", str(junit), "--markdown", str(markdown),
    )  # fmt: skip
    assert failed.returncode == 1
    document = json.loads(failed.stdout)
    assert document["outcome"] == "failed"
    assert [each["outcome"] for each in document["limits"]] == ["passed", "failed", "passed"]
    suite = ET.fromstring(junit.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    (failure,) = suite.iter("failure")
    assert "25.00 us -> 28.00 us (+12.00 %)" in str(failure.get("message"))
    assert "| `step_device_time>+5%` | failed |" in markdown.read_text()
    names = ("step_device_time<1ns", "a|b `c`", "")
    assert [code_cell(name) for name in names] == ["`step_device_time<1ns`", "`a\\|b 'c'`", ""]
    missing = tool("neuron-profile", "check", str(home / "nowhere"), "--fail-if", "step_time>1s")
    assert missing.returncode == 3
    assert missing.stderr.startswith("error: no profile at ")
    for wrong in ((), ("--tolerance", "5%"), ("--fail-if", "x"), ("--baseline", a, "--tolerance", "lots")):
        assert tool("neuron-profile", "check", a, *wrong).returncode == 2


def test_differences_are_printed_as_text_json_and_markdown(tool: Tool, home: Path, maker: Maker) -> None:
    captured(home, maker, "a")
    captured(home, maker, "b", slower=3_000)
    a, b = str(home / "a"), str(home / "b")
    text = tool("neuron-profile", "diff", a, b)
    assert text.returncode == 0
    assert text.stdout.startswith("Verdict: slower\n")
    head, *_ = text.stdout.split("\n\nengine ")
    assert head.splitlines()[-2].startswith("step, measured ")
    assert head.splitlines()[-1] == "measured steps: no significant difference (p = 1, 11 vs 11 steps)"
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert (
        "| `aten.mm` | slower | 14.00 us | 20.00 us | +6.000 us | 2 -> 2 |"
        in tool("neuron-profile", "diff", a, b, "--markdown").stdout
    )
    document = json.loads(tool("neuron-profile", "diff", a, b, "--json").stdout)
    assert document["verdict"] == "slower"
    assert document["changes"]["engine"][0]["name"] == "Tensor"
    maker.finished(home / "none", steps=0)
    nothing = tool("neuron-profile", "diff", a, str(home / "none"))
    assert nothing.returncode == 3
    assert nothing.stdout.startswith("Verdict: inconclusive\nnot comparable: the second profile has no exec")
