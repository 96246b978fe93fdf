"""Advice on a trace of torch.profiler alone: waits for data, and a device that waits for the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from neurontools.commands.profile import main
from neurontools.profiler.advice.rules import Report, advise_trace
from neurontools.profiler.trace.open import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STEPS, STEP_US = 4, 1000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def event(name: str, category: str, start_us: int, length_us: int, *, on_gpu: bool = False) -> dict[str, Any]:
    place = {"pid": 0, "tid": 7} if on_gpu else {"pid": 77, "tid": 1}
    return {"ph": "X", "name": name, "cat": category, "ts": start_us, "dur": length_us, **place}


def write(
    path: Path,
    *,
    wait_us: int = 0,
    kernels: tuple[tuple[int, int], ...] = (),
    loader: str = LOADER,
    device: str = "GPU 0",
) -> Path:
    """Steps of 1 ms that begin with a wait for a batch; `kernels` are starts and lengths within each."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": device}},
        event("aten::mm", "cpu_op", 0, 1),
    ]
    for step in range(STEPS):
        start = 100 + step * STEP_US
        events.append(event(f"ProfilerStep#{step}", "user_annotation", start, STEP_US))
        if wait_us:
            events.append(event(loader, "user_annotation", start, wait_us))
        events += [event("gemm", "kernel", start + at, length, on_gpu=True) for at, length in kernels]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return path


def report(path: Path, **what: Any) -> Report:
    return advise_trace(open_trace(str(write(path, **what))))


def advised(found: Report) -> dict[str, int]:
    return {each.rule: each.gain.ns // 1000 for each in found.advice}


def test_a_wait_for_data_counts_while_the_device_does_nothing(tmp_path: Path) -> None:
    found = report(tmp_path / "t.json", wait_us=400, kernels=((300, 700),))
    assert advised(found) == {"input-stalls": 300}
    assert (found.step_ns, found.steps, found.clock) == (STEP_US * 1000, STEPS, "measured")
    (advice,) = found.advice
    assert advice.gain.is_bound
    assert "num_workers=4" in advice.change
    assert advice.evidence[0].text.startswith(LOADER)


def test_a_loader_with_workers_is_told_something_else(tmp_path: Path) -> None:
    loader = LOADER.replace("SingleProcess", "MultiProcessing")
    (advice,) = report(tmp_path / "t.json", wait_us=400, loader=loader).advice
    assert "more workers" in advice.change


def test_a_loader_that_is_ahead_and_a_busy_device_are_left_alone(tmp_path: Path) -> None:
    found = report(tmp_path / "t.json", wait_us=5, kernels=((0, 900),))
    assert advised(found) == {}
    assert [each.rule for each in found.silent] == ["input-stalls", "host-bound", "other rules"]


def test_a_device_that_waits_for_the_host_is_seen(tmp_path: Path) -> None:
    found = report(tmp_path / "t.json", wait_us=100, kernels=((200, 50), (400, 50), (600, 20)))
    assert advised(found) == {"host-bound": 780, "input-stalls": 100}
    assert found.advice[0].evidence[0].text == "3 events on the device a step, median 50.00 us"


def test_modelled_times_of_a_device_are_not_held_against_those_of_the_host(tmp_path: Path) -> None:
    found = report(tmp_path / "t.json", wait_us=400, kernels=((0, 20),), device="NeuronCore 0 (modelled)")
    assert advised(found) == {"input-stalls": 400}
    assert "no measured times of a device" in found.silent[0].reason


def test_the_command_prints_the_advice_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.json", wait_us=400, kernels=((300, 700),))
    assert main(["advise", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Step: 1.000 ms (measured), seen 4 times"
    assert lines[2] == (
        "1. Load data ahead: each step waits for the next batch, at most -300.0 us of 1.000 ms a step (measured)"
    )
    assert main(["advise", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_simulation"] is False
