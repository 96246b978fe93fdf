"""Every alert by what really causes it: a scenario's processes, injected faults; on the screen and by the user's command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until

Open = Callable[..., Any]
Tool = Callable[..., subprocess.CompletedProcess[str]]

TROUBLE = """
description: everything that a dashboard warns of
instance: trn1.32xlarge
duration: 10m
processes:
  idle: {cores: 2, tag: sleeper, command: python sleep.py, utilization: 0, memory: {tensors: 1 GiB}}
  full: {cores: 2, tag: hungry, command: python fill.py, utilization: 40, memory: {tensors: 14.5 GiB}}
  failing:
    {cores: 2, tag: flaky, command: python flaky.py, utilization: 40, executions: 50,
     latency: {p50: 5ms, p99: 8ms}, errors: {NRT_TIMEOUT: 10}}
  rank:
    count: 4
    cores: 2
    tag: "job-{rank}"
    command: "python train.py --rank {rank}"
    utilization: 60
    latency: {p50: 50ms, p99: 60ms}
    overrides:
      2: {latency: {p50: 150ms, p99: 170ms}}
"""
RULES = """
top:
  alerts:
    idle-claim: {for: 0.5}
    straggler: {for: 0.5}
"""
OF_PROCESSES = {"idle-claim", "error-rate", "straggler"}
OF_DEVICES = {"device-memory", "ecc", "lost-device"}


@pytest.fixture
def rules() -> None:
    directory = Path(os.environ["XDG_CONFIG_HOME"], "neurontools")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(RULES)


@pytest.fixture
def playing(machine: object, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Processes that idle, fill their device, fail and lag behind."""
    scenario = tmp_path / "trouble.yaml"
    scenario.write_text(TROUBLE)
    command = [str(Path(sys.executable).parent / "neurontools"), "scenario", "play", str(scenario)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process
    process.terminate()  # SIGINT is ignored where the tests run in a shell's background
    process.wait(timeout=600)


def read_alerts(output: Path, count: int) -> list[list[str]]:
    wait_until(lambda: output.exists() and output.read_text().count("\n") >= count)
    return [line.split("|") for line in output.read_text().splitlines()]


def test_every_alert_begins_is_marked_runs_the_command_once_and_ends(
    terminal: Open, tool: Tool, rules: None, playing: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    output, script = tmp_path / "output", tmp_path / "alert"
    names = "|".join(f"$NEURONTOOLS_ALERT{end}" for end in ("", "_PID", "_DEVICE", "_TEXT"))
    script.write_text(f'#!/bin/sh\necho "{names}" >> {output}\n')
    script.chmod(0o755)
    shown = terminal("--interval", "0.5", "--page", "events", "--exec-on-alert", str(script), size=(160, 50))
    shown.read_until("straggler: process")
    for fault in (("ecc", "--type", "mem-uncorrected", "--device", "9"), ("device-lost", "--device", "15")):
        assert tool("neurontools", "fault", "inject", *fault).returncode == 0
    shown.read_until("lost-device: ND15 is lost")
    lines = read_alerts(output, 6)
    assert sorted(line[0] for line in lines) == sorted(OF_PROCESSES | OF_DEVICES)
    for condition, pid, device, text in lines:
        assert bool(pid) == (condition in OF_PROCESSES)
        assert bool(device) == (condition in OF_DEVICES)
        assert (pid or f"ND{device}") in text
    shown.press("p")
    marked = shown.read_until("copy pid")
    pids = {line[0]: line[1] for line in lines}
    for condition in OF_PROCESSES:
        assert f"! {pids[condition]}" in marked
    shown.press("v")
    marked = shown.read_until("ND15")
    assert all(f"!ND{index}" in marked for index in (1, 9, 15))
    shown.press("e")
    assert tool("neurontools", "fault", "clear", "--all").returncode == 0
    shown.read_until("ND15 is lost (over)")
    playing.terminate()
    playing.wait(timeout=600)
    text = shown.read_until("1 now")  # memory errors are shown for half a minute
    for condition in ("idle-claim", "error-rate", "straggler", "device-memory"):
        assert f"{condition}: " in text
    shown.quit()
    assert len(output.read_text().splitlines()) == 6
