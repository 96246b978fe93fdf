"""Rules about kernels: each finds its fault, is silent without it, and its gain is what the repaired kernel brings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.nki.profile import save_profile
from neurontools.profiler.advice.rules import advise
from neurontools.profiler.advice.subject import open_subject
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.trace.open import load
from tests.nki import kernel_faults as faults

if TYPE_CHECKING:
    from neurontools.profiler.advice.findings import Report


def zeros(rows: int, columns: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros((rows, columns), dtype)


CASES: dict[str, tuple[Any, Any, tuple[np.ndarray, ...]]] = {
    "kernel-rows": (faults.short_rows, faults.whole_rows, (zeros(256, 2048, np.float16),)),
    "kernel-psum": (
        faults.one_bank,
        faults.a_bank_each,
        (zeros(128, 128, np.float16), zeros(128, 8192, np.float16)),
    ),
    "kernel-scalar": (faults.all_on_vector, faults.half_on_scalar, (zeros(128, 8192),)),
    "kernel-spills": (faults.through_hbm, faults.kept_in_sbuf, (zeros(128, 8192),)),
    "idle-partitions": (faults.a_quarter_of_the_partitions, faults.all_partitions, (zeros(2048, 2048),)),
}


def report_of(kernel: Any, arguments: tuple[np.ndarray, ...], directory: Path) -> Report:
    start_ns = time.monotonic_ns()
    save_profile(str(directory), kernel.run(arguments, {}).launch, start_ns, time.monotonic_ns())
    return advise(open_subject(load(str(directory))))


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_fault_and_its_gain_is_that_of_the_repaired_kernel(
    tmp_path: Path, rule: str
) -> None:
    faulty, repaired, arguments = CASES[rule]
    before, after = (
        report_of(kernel, arguments, tmp_path / name)
        for kernel, name in ((faulty, "fault"), (repaired, "none"))
    )
    (advice,) = (each for each in before.advice if each.rule == rule)
    gain_ns = before.step_ns - after.step_ns
    assert advice.gain.ns == pytest.approx(gain_ns, rel=0.1), (before.advice, after.step_ns)
    assert all("kernel_faults.py:" in line.source for line in advice.evidence)
    assert rule not in {each.rule for each in after.advice}
    assert any(each.rule == rule and each.reason for each in after.silent)


def test_rows_that_cannot_be_longer_are_not_named(tmp_path: Path) -> None:
    arguments = zeros(512, 2048, np.float16), zeros(512, faults.PART, np.float16)
    report = report_of(faults.short_and_whole_rows, arguments, tmp_path / "prof")
    (advice,) = (each for each in report.advice if each.rule == "kernel-rows")
    line = next(
        number
        for number, text in enumerate(Path(faults.__file__).read_text().splitlines(), 1)
        if "part = nl.load" in text
    )
    assert advice.change.startswith(f"at kernel_faults.py:{line}, move rows of 4.00 KiB")
    assert [(Path(each.source).name, each.count) for each in advice.evidence] == [
        (f"kernel_faults.py:{line}", 128)
    ]


def test_a_launch_on_two_cores_is_one_step_as_long_as_its_slowest_core(tmp_path: Path) -> None:
    report = report_of(faults.on_cores[2], (zeros(256, 2048),), tmp_path / "prof")
    trace = load(str(tmp_path / "prof"))
    slow, fast = max(runs.device_ns[0] for runs in trace.runs), min(runs.device_ns[0] for runs in trace.runs)
    assert fast < slow == report.step_ns
    (steps,) = find_steps(trace)
    assert (steps.executions.tolist(), steps.device_ns.tolist()) == ([1], [slow])
    assert {each.reason for each in report.silent if each.rule == "graph-cuts"} == {"one graph a step"}
