"""Why a real program compiled: one script under neuron-run that makes each classic mistake, explained by the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.commands.cache import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Tool

    Why = Callable[..., dict[str, Any]]

# Each mistake is a run of its own, with a model of its own width, so that no graph is met twice.
SCRIPT = """import os
import torch, torch.nn as nn, torch.nn.functional as F
import torch_xla.core.xla_model as xm
from neurontools.cache import events

device = xm.xla_device()

def train(mode, width, make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 3)).to(device)
    optimizer = make(model.parameters(), lr=0.1)
    sizes = {"shape": [8, 9, 10, 11], "last": [8, 8, 8, 3]}.get(mode, [8, 8, 8, 8])
    for step, size in enumerate(sizes):
        x, y = torch.randn(size, 6).to(device), torch.randint(0, 3, (size,)).to(device)
        if mode == "scalar":
            x = torch.tril(x * (step + 2), step + 1)
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=mode == "autocast" and step == 3):
            out = model(x)
        if mode == "cut" and step >= 2:
            xm.mark_step()
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        if mode == "item" and step >= 2:
            print(loss.item())
        optimizer.step()
        held = out.mean() if mode == "kept" and step == 3 else None
        xm.mark_step()
    if mode == "eval":
        model.eval()
        with torch.no_grad():
            print(F.cross_entropy(model(x), y).item())

def fail():
    try:
        torch.fft.fft(torch.ones(4).to(device))
        xm.mark_step()
    except Exception as error:
        print(error)

modes = ["shape", "last", "cut", "scalar", "autocast", "eval", "adam", "item", "kept"]
for number, mode in enumerate([*modes, "fail", "again"]):
    os.environ["NEURONTOOLS_CACHE_RUN"] = mode
    events._run_of.cache_clear()
    if mode in modes:
        train(mode, 8 + number, torch.optim.Adam if mode == "adam" else torch.optim.SGD)
    else:
        fail()
"""


def line_of(text: str) -> str:
    """Where a piece of the script stands, as graphs name it."""
    number = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)
    return f"train.py:{number}"


@pytest.fixture
def why(capsys: pytest.CaptureFixture[str]) -> Why:
    """Return what `why --json` says."""

    def ask(*words: str) -> dict[str, Any]:
        assert main(["why", *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return ask


def names(causes: list[dict[str, Any]]) -> list[str]:
    return [cause["name"] for cause in causes]


def test_each_classic_cause_of_a_real_program_is_reported(
    tool: Tool,
    torch_python: str,
    home: Path,
    why: Why,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    (home / "train.py").write_text(SCRIPT)
    run = tool("neuron-run", "--", torch_python, str(home / "train.py"))
    assert run.returncode == 0, run.stderr
    check_shape(why, capsys)
    check_last_batch(why)
    check_cut(why, capsys)
    check_scalar(why)
    check_others(why)
    check_failure(why, capsys)


def check_shape(why: Why, capsys: pytest.CaptureFixture[str]) -> None:
    report = why("--run", "neurontools:shape")
    assert len(report["misses"]) == 4
    (cause,) = report["causes"]
    assert cause["name"] == "input shape changed"
    assert cause["values"] == ["8", "9", "10", "11"]
    assert "pad to 11" in cause["advice"]
    assert names(report["misses"][0]["causes"]) == ["first compile"]
    assert [names(miss["causes"]) for miss in report["misses"][1:]] == [["input shape changed"]] * 3
    assert main(["why", "--run", "neurontools:shape"]) == 0
    shown = capsys.readouterr().out
    assert "  values:    8, 9, 10, 11\n" in shown
    assert shown.count("as above   input shape changed") == 3


def check_last_batch(why: Why) -> None:
    report = why("--run", "neurontools:last")
    assert names(report["causes"]) == ["last partial batch"]
    assert report["causes"][0]["values"] == ["8", "3"]
    assert "drop_last=True" in report["causes"][0]["advice"]
    second = report["misses"][1]
    assert names(second["causes"]) == ["last partial batch"]
    inputs = [item for item in second["differences"] if item["subject"] == "inputs"]
    assert (inputs[0]["old"], inputs[0]["new"]) == ("float32[8,6]", "float32[3,6]")
    assert inputs[0]["source"].endswith(line_of("out = model(x)"))


def check_cut(why: Why, capsys: pytest.CaptureFixture[str]) -> None:
    report = why("--run", "neurontools:cut")
    assert len(report["misses"]) == 3
    (cause,) = report["causes"]
    assert cause["name"] == "mark_step moved"
    assert len(cause["modules"]) == 3
    early = line_of("            xm.mark_step()")
    assert early in cause["text"]
    # The first half alone tells it, too.
    half = next(miss for miss in report["misses"] if miss["entry"]["cut"].endswith(early))
    pair = (half["nearest"]["path"], half["entry"]["path"])
    assert names(why(*pair)["causes"]) == ["mark_step moved"]
    assert main(["why", *pair]) == 0
    assert "cut by -" in capsys.readouterr().out
    item = why("--run", "neurontools:item")
    assert names(item["causes"]) == ["value read"]
    assert line_of("print(loss.item())") in item["causes"][0]["text"]


def check_scalar(why: Why) -> None:
    report = why("--run", "neurontools:scalar")
    (cause,) = report["causes"]
    assert (cause["name"], cause["values"]) == ("Python scalar baked in", ["1", "2", "3", "4"])
    assert "aten.tril" in cause["text"]
    assert line_of("torch.tril") in cause["text"]
    assert [names(miss["causes"]) for miss in report["misses"][1:]] == [["Python scalar baked in"]] * 3


def check_others(why: Why) -> None:
    for run, name, words in (
        ("autocast", "data type changed", "float32 -> bfloat16"),
        ("eval", "dropout or batch norm differs", "bernoulli"),
        ("adam", "first step of the optimizer", line_of("optimizer.step()")),
        ("kept", "computation changed", line_of("held = ")),
    ):
        report = why("--run", f"neurontools:{run}")
        assert len(report["misses"]) == 2
        (cause,) = report["misses"][1]["causes"]
        assert cause["name"] == name
        assert words in cause["text"]


def check_failure(why: Why, capsys: pytest.CaptureFixture[str]) -> None:
    (failed,) = why("--run", "neurontools:fail")["misses"]
    assert (failed["event"], names(failed["causes"])) == ("failure", ["first compile"])
    (replayed,) = why("--last")["misses"]
    assert names(replayed["causes"]) == ["cached failure"]
    assert main(["why", "--last"]) == 0
    assert "0 compiles (0.000 s), 0 hits, 1 failure replayed" in capsys.readouterr().out.replace(
        "\n           ", " "
    )


def test_a_run_is_named_by_process_and_by_the_directory_of_its_profile(home: Path, why: Why) -> None:
    from neurontools.cache.events import Events, LookupEventKind

    written = Events(str(home / "compile-cache"))
    written.add(LookupEventKind.MISS, "MODULE_1+e30acd3a", 0.1)
    written.close()
    report = why("--last")
    process = report["run"].partition(":")[0]
    assert why("--run", process) == report
    (home / "profile" / f"i-0_pid_{process}").mkdir(parents=True)
    assert why("--run", str(home / "profile")) == report
