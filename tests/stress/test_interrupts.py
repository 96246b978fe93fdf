"""The short form of the test that interrupts trainings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).with_name("run_interrupts.py")


@pytest.mark.torch
def test_an_interrupted_training_ends_with_keyboard_interrupt_and_leaves_nothing_behind() -> None:
    command = [sys.executable, "-P", str(STRESS), "--count", "6", "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["wrong"] == []
    assert sum(outcome["phases"].values()) == 6
    assert done.returncode == 0
