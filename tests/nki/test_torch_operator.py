"""Kernels in models: the losses of torch's formula on both devices, and NEFFs that the next run finds in the cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")
PROGRAM = Path(__file__).with_name("kernel_in_model.py")


def _run(device: str, program: Path, cache: Path) -> str:
    """Return what neuron-run prints on a private trn2 machine."""
    command = [
        str(Path(sys.executable).with_name("neuron-run")),
        "--instance",
        "trn2.3xlarge",
        "--",
        sys.executable,
        str(program),
        device,
    ]
    environ = {**os.environ, "NEURON_COMPILE_CACHE_URL": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("device", ["xla", "neuron"])
def test_a_model_with_a_kernel_trains_as_torch_does(home: Path, tmp_path: Path, device: str) -> None:
    del home
    first = _run(device, PROGRAM, tmp_path / "cache")
    assert "kernels agree" in first
    again = _run(device, PROGRAM, tmp_path / "cache")
    assert "kernels agree" in again
    if device == "xla":
        assert len(re.findall("Call compiler with cmd", first)) > 0
        assert re.findall("Call compiler with cmd", again) == []
        changed = tmp_path / "changed.py"
        changed.write_text(
            PROGRAM.read_text().replace("nl.multiply, alpha, nl.add", "nl.multiply, alpha + 0.0, nl.add")
        )
        assert len(re.findall("Call compiler with cmd", _run(device, changed, tmp_path / "cache"))) > 0


def test_a_graph_takes_the_schedule_of_a_kernel_for_its_time() -> None:
    import torch

    from neurontools.compiler.compile import KERNEL_NS, compile_graph
    from neurontools.compiler.graph import Node
    from neurontools.compiler.neff import parse
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.nki import torch_operator
    from neurontools.nki.program import duration_ns
    from tests.compiler.graphs import graph_of, tensor
    from tests.nki.launches import launch_of, scale

    before = set(KERNEL_NS)
    data = torch.zeros(128, 512)
    assert torch.equal(torch_operator.call(scale, (data,), {}), data)
    (operator,) = set(KERNEL_NS) - before
    assert operator.startswith("nki.scale_")
    expected = round(duration_ns(launch_of(scale, data.numpy())))
    assert KERNEL_NS[operator] == expected
    graph = graph_of(Node(operator, (tensor(0, 128, 512),), (), (tensor(1, 128, 512),)))
    compiled = parse(compile_graph(graph, instance_type("trn2.48xlarge").device, ["--target=trn2"], "kernel"))
    assert [op.duration_ns for op in compiled.cost.ops if op.opcode == "CUSTOM_OP"] == [expected]
