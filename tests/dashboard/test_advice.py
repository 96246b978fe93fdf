"""Every event and every alert has a meaning; every problem has something to do."""

from __future__ import annotations

import pytest

from neurontools.dashboard.advice import advice_for
from neurontools.dashboard.alerts import Condition
from neurontools.dashboard.events import PROBLEMS, MachineEvent, MachineEventKind
from neurontools.machine.snapshot import HardwareCounter


@pytest.mark.parametrize("kind", [kind for kind in MachineEventKind if kind is not MachineEventKind.ALERT])
def test_every_kind_of_event_has_a_meaning(kind: MachineEventKind) -> None:
    found = advice_for(MachineEvent(0.0, kind, "something"))
    assert found.meaning.endswith(".")
    assert bool(found.steps) or kind not in PROBLEMS


@pytest.mark.parametrize("condition", list(Condition))
def test_every_alert_says_what_to_do(condition: Condition) -> None:
    found = advice_for(MachineEvent(0.0, MachineEventKind.ALERT, f"{condition}: ND3 is lost"))
    assert found.meaning
    assert found.steps


def test_uncorrected_errors_are_worse_than_corrected_ones() -> None:
    corrected, uncorrected = (
        advice_for(MachineEvent(0.0, MachineEventKind.ECC, "ND0", device=0, counter=counter))
        for counter in (HardwareCounter.MEM_ECC_CORRECTED, HardwareCounter.MEM_ECC_UNCORRECTED)
    )
    assert "checkpoint" in " ".join(uncorrected.steps)
    assert "checkpoint" not in " ".join(corrected.steps)
