"""The text of faults that end after a time."""

from __future__ import annotations

from typing import Any

import pytest

from neurontools.machine.faults.format import describe, fault_table
from neurontools.machine.faults.kinds import FaultKind
from neurontools.machine.faults.params import Fault, FaultSpec, Phase

S = 1_000_000_000


def fault(phase: Phase, **params: Any) -> Fault:
    return Fault(1, FaultSpec(FaultKind.HANG, core=0, **params), due_ns=10 * S, phase=phase)


@pytest.mark.parametrize(
    ("params", "phase", "text"),
    [
        ({"duration_s": 5.0}, Phase.ARMED, "armed, for 5s"),
        ({"duration_s": 90.0, "count": 2}, Phase.ARMED, "armed, 2 executions, for 1m30s"),
        ({"duration_s": 5.0, "after_s": 10.0}, Phase.WAITING, "armed in 10s, for 5s"),
        ({"after_s": 0.25}, Phase.WAITING, "armed in 250ms, until cleared"),
        ({"duration_s": 5.0}, Phase.OVER, "fired"),
    ],
)
def test_an_injected_fault_names_its_duration(params: dict[str, Any], phase: Phase, text: str) -> None:
    assert describe(fault(phase, **params)) == f"fault 1: hang on core 0, {text}"


@pytest.mark.parametrize(
    ("params", "phase", "now_s", "left"),
    [
        ({"duration_s": 5.0}, Phase.ARMED, 10.8, "4.2s"),
        ({"duration_s": 5.0, "count": 1}, Phase.ARMED, 12, "1 execution, 3s"),
        ({"duration_s": 5.0}, Phase.ARMED, 20, "0ms"),
        ({"duration_s": 5.0}, Phase.WAITING, 3, "5s once armed"),
        ({}, Phase.WAITING, 3, "until cleared"),
        ({"duration_s": 5.0}, Phase.HOLDING, 11, "-"),
    ],
)
def test_the_list_shows_the_time_that_is_left(
    params: dict[str, Any], phase: Phase, now_s: float, left: str
) -> None:
    row = fault_table((fault(phase, **params),), round(now_s * S)).splitlines()[1]
    assert row.split(maxsplit=6)[6] == left
