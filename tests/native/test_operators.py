"""Operators of torch's own database give on the native device what they give on the CPU, strides and gradients too."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch
CHECKS = Path(__file__).with_name("operator_checks.py")
SPARSE = {"sparse_mm_reduce", "sparse_sampled_addmm", "to_sparse"}
"""The device has no sparse tensors."""


@pytest.mark.timeout(660)
@pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None,
    reason="not installed: expecttest; pip install 'neurontools[libraries]'",
)
@pytest.mark.parametrize(
    ("dtype", "least"),
    [("float32", 670), ("bfloat16", 540), ("int64", 460), ("bool", 340), ("complex64", 390)],
)
def test_operators_agree_with_the_cpu(tool, home, dtype, least):
    start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
    run = tool("neuron-run", "--", "python", "-W", "ignore", str(CHECKS), dtype, "seen.json", timeout=600)
    assert run.returncode == 0, run.stderr
    seen = json.loads((home / "seen.json").read_text())
    assert {name: text for name, text in seen["failures"].items() if name not in SPARSE} == {}
    assert seen["count"] >= least
