"""The samples' models train on the simulated device: built, run and read as a user does it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops"


@pytest.mark.parametrize(("model", "steps", "below"), [("mlp", 40, 0.6), ("transformer", 60, 1.0)])
def test_a_model_with_custom_operators_learns(
    tool: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    torch_python: str,
    model: str,
    steps: int,
    below: float,
) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    project = ("--project", str(SAMPLES / f"{model}.yaml"), "--no-compile-commands", "-o", str(home))
    built = tool("neuron-customop", "build", *project)
    assert built.returncode == 0, built.stderr
    script = ("--", torch_python, str(SAMPLES / f"train_{model}.py"), "--library", f"lib{model}.so")
    run = tool("neuron-run", *script, "--steps", str(steps))
    assert run.returncode == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", run.stdout)]
    assert len(losses) == 2
    assert losses[0] > 2.0
    assert losses[1] < below
