"""Views of all kinds, tied and empty tensors have the numbers of the CPU on every way to the device."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).with_name("view_program.py")
SAMPLE = Path(__file__).parents[2] / "fixtures" / "customops" / "relu_tcm"


@pytest.mark.parametrize(("device", "instance"), [("xla", "trn1.2xlarge"), ("neuron", "trn2.3xlarge")])
def test_any_view_has_the_numbers_of_the_cpu(tool, home, torch_python, device, instance):
    library = ""
    if device == "xla":
        shutil.copytree(SAMPLE, home / "relu_tcm")
        built = tool("neuron-customop", "build", cwd=home / "relu_tcm")
        assert built.returncode == 0, built.stderr
        library = str(home / "relu_tcm" / "librelu_tcm.so")
    start(StartOptions(machine="default", instance_type=instance))
    done = tool("neuron-run", "--", torch_python, "-W", "ignore", str(PROGRAM), device, library, timeout=280)
    assert done.stdout == "same\n", done.stderr[-3000:]
