"""Signal handlers that raise while a program uses the device: every value is right or lost, and nothing is swallowed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAM = Path(__file__).parent / "interrupted_program.py"


@pytest.mark.parametrize("seed", [2, 1], ids=["bytecodes", "times"])
@pytest.mark.parametrize(("device", "instance"), [("xla", "trn1.2xlarge"), ("neuron", "trn2.3xlarge")])
def test_no_value_is_wrong_after_an_exception(
    device: str, instance: str, seed: int, torch_python: str, home: Path
) -> None:
    start(StartOptions(machine="default", instance_type=instance))
    command = [torch_python, "-W", "ignore", str(PROGRAM), device, "80", str(seed)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "NEURON_RT_NUM_CORES": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["problems"] == []
    assert seen["counts"]["raised"] > 10
