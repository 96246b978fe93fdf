"""Why real runs compiled: small scripts under neuron-run, one for each classic cause, explained by the command."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.commands.cache import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Tool

TRAIN = """import sys
import torch, torch.nn as nn, torch.nn.functional as F
import torch_xla.core.xla_model as xm

mode = sys.argv[1]
device = xm.xla_device()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sizes = {"shape": [8, 9, 10, 11], "last": [8, 8, 8, 3]}.get(mode, [8, 8, 8, 8])
for step, size in enumerate(sizes):
    x, y = torch.randn(size, 6).to(device), torch.randint(0, 3, (size,)).to(device)
    if mode == "scalar":
        x = torch.clamp(x, max=step + 1)
    optimizer.zero_grad()
    with torch.autocast("xla", dtype=torch.bfloat16, enabled=mode == "autocast" and step == 3):
        out = model(x)
    if mode == "cut" and step >= 2:
        xm.mark_step()
    loss = F.cross_entropy(out.float(), y)
    loss.backward()
    optimizer.step()
    xm.mark_step()
if mode == "eval":
    model.eval()
    with torch.no_grad():
        print(F.cross_entropy(model(x), y).item())
"""
SMALL = """import torch
import torch_xla.core.xla_model as xm
x = torch.ones(4, 4).to(xm.xla_device())
print((x @ x + 1).sum().item())
"""
COMPLEX = """import torch
import torch_xla.core.xla_model as xm
x = torch.ones(4).to(xm.xla_device())
torch.fft.fft(x)
xm.mark_step()
"""


@pytest.fixture
def run(tool: Tool, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a script under neuron-run; further words are its arguments."""
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")

    def start(text: str, *words: str) -> int:
        script = home / "train.py"
        script.write_text(text)
        return tool("neuron-run", "--", "python", str(script), *words).returncode

    return start


@pytest.fixture
def why(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return what `why --json` says."""

    def ask(*words: str) -> dict[str, Any]:
        assert main(["why", *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return ask


def names(causes: list[dict[str, Any]]) -> list[str]:
    return [cause["name"] for cause in causes]


def test_a_shape_that_changes_is_a_series_with_its_values(
    run: Callable[..., int],
    why: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    home: Path,
) -> None:
    assert run(TRAIN, "shape") == 0
    report = why("--last")
    assert len(report["misses"]) == 4
    (cause,) = report["causes"]
    assert (cause["name"], cause["confidence"]) == ("shape that changes", "certain")
    assert cause["values"] == ["8", "9", "10", "11"]
    assert "pad to 11" in cause["advice"]
    assert names(report["misses"][0]["causes"]) == ["first compile"]
    assert names(report["misses"][1]["causes"]) == ["another shape"]
    assert main(["why", "--last"]) == 0
    shown = capsys.readouterr().out
    assert "  values:    8, 9, 10, 11\n" in shown
    assert shown.count("as above   shape that changes") == 3
    # The process id is the run's name, too, and stands in the name of a profile's directory.
    process = report["run"].partition(":")[0]
    assert why("--run", process) == report
    (home / "profile" / f"i-0_pid_{process}").mkdir(parents=True)
    assert why("--run", str(home / "profile")) == report


def test_a_last_partial_batch_is_told(run: Callable[..., int], why: Callable[..., dict[str, Any]]) -> None:
    assert run(TRAIN, "last") == 0
    report = why("--last")
    assert names(report["causes"]) == ["last partial batch"]
    assert report["causes"][0]["values"] == ["8", "3"]
    assert "drop_last=True" in report["causes"][0]["advice"]
    second = report["misses"][1]
    assert names(second["causes"]) == ["last partial batch"]
    inputs = [item for item in second["differences"] if item["subject"] == "inputs"]
    assert (inputs[0]["old"], inputs[0]["new"]) == ("float32[8,6]", "float32[3,6]")
    assert inputs[0]["source"].endswith("train.py:17")


def test_a_cut_that_moved_is_told_with_both_places(
    run: Callable[..., int], why: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(TRAIN, "cut") == 0
    report = why("--last")
    assert len(report["misses"]) == 3
    (cause,) = report["causes"]
    assert (cause["name"], cause["confidence"]) == ("mark_step moved", "certain")
    assert "train.py:19" in cause["text"]
    assert "train.py:23" in cause["text"]
    assert len(cause["modules"]) == 3
    # The first half alone tells it, too.
    half = next(miss for miss in report["misses"] if miss["entry"]["cut"].endswith(":19"))
    pair = why(half["nearest"]["path"], half["entry"]["path"])
    assert names(pair["causes"]) == ["mark_step moved"]
    assert main(["why", half["nearest"]["path"], half["entry"]["path"]]) == 0
    assert "cut by -" in capsys.readouterr().out


def test_a_number_of_the_script_in_the_graph_is_told_with_its_values(
    run: Callable[..., int], why: Callable[..., dict[str, Any]]
) -> None:
    assert run(TRAIN, "scalar") == 0
    report = why("--last")
    (cause,) = report["causes"]
    assert (cause["name"], cause["values"]) == ("Python scalar baked in", ["1", "2", "3", "4"])
    assert "aten.clamp" in cause["text"]
    assert "train.py:14" in cause["text"]
    assert all(names(miss["causes"]) == ["Python scalar baked in"] for miss in report["misses"][1:])


def test_autocast_in_some_steps_is_told(run: Callable[..., int], why: Callable[..., dict[str, Any]]) -> None:
    assert run(TRAIN, "autocast") == 0
    report = why("--last")
    assert len(report["misses"]) == 2
    assert names(report["misses"][1]["causes"]) == ["data type changed"]
    assert "float32 -> bfloat16" in report["misses"][1]["causes"][0]["text"]


def test_evaluation_behind_training_is_told(
    run: Callable[..., int], why: Callable[..., dict[str, Any]]
) -> None:
    assert run(TRAIN, "eval") == 0
    report = why("--last")
    assert len(report["misses"]) == 2
    cause = report["misses"][1]["causes"][0]
    assert cause["name"] == "training or evaluation"
    assert "bernoulli" in cause["text"]


def test_a_failure_that_is_replayed_and_a_deleted_cache_are_told(
    run: Callable[..., int], why: Callable[..., dict[str, Any]], home: Path
) -> None:
    for expected in ("first compile", "cached failure was replayed"):
        assert run(COMPLEX) == 1
        assert names(why("--last")["misses"][0]["causes"]) == [expected]
    assert run(SMALL) == 0
    shutil.rmtree(home / "compile-cache")
    assert run(SMALL) == 0
    assert names(why("--last")["misses"][0]["causes"]) == ["entry was deleted"]
