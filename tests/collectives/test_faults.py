"""Faults of the machine meet collectives: they fail, hang or slow down as the runtime's executions do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client


@pytest.fixture(autouse=True)
def machine(home, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(home))
    return launch.start(launch.StartOptions(machine="default", instance_type="trn1.32xlarge"))


def inject(tool, line):
    assert tool("neurontools", "fault", "inject", *line.split()).returncode == 0


def time_of(tool, ranks):
    run = tool("nccom-test", "-r", str(ranks), "allr", "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["results"][0]["time:avg(us)"]


def log_of(run):
    assert run.returncode == 1
    assert run.stdout.endswith("\n1 errors found - test failed\n")
    return Path(run.stdout.split("log file ")[1].split()[0]).read_text()


def test_a_broken_link_fails_a_collective_over_it_only(tool):
    inject(tool, "link-down --device 0 --to 1")
    run = tool("nccom-test", "-r", "8", "allr")
    assert 'nrt_execute status=1200 message="Hardware error in a collective operation"' in log_of(run)
    assert "collective operation failed: link nd0-nd1 is down" in run.stderr
    assert time_of(tool, 2) > 0
    with Client.connect() as client:
        assert client.snapshot().processes == ()


def test_a_slow_core_slows_everybody_that_waits_for_it(tool):
    eight, two = time_of(tool, 8), time_of(tool, 2)
    inject(tool, "slow-core --core 3 --factor 3")
    assert time_of(tool, 8) == pytest.approx(3 * eight, rel=1e-3)
    assert time_of(tool, 2) == two


def test_a_slow_iteration_moves_the_last_percentiles_only(tool):
    line = ["-r", "8", "-w", "0", "-n", "100", "-t", "avg", "p50", "p100", "--json", "allr"]
    before = json.loads(tool("nccom-test", *line).stdout)["results"][0]
    inject(tool, "slow-core --core 3 --factor 10 --count 1")
    after = json.loads(tool("nccom-test", *line).stdout)["results"][0]
    assert after["time:p50(us)"] == pytest.approx(before["time:p50(us)"], rel=0.01)
    assert after["time:p100(us)"] > 5 * before["time:p100(us)"]
    assert after["busbw(GB/s)"] < before["busbw(GB/s)"]


def test_a_lost_device_fails_the_test(tool):
    inject(tool, "device-lost --device 3")
    assert "Could not open the nd3" in log_of(tool("nccom-test", "-r", "8", "allr"))
    assert time_of(tool, 2) > 0


def test_a_hanging_collective_ends_with_the_timeout(tool, monkeypatch):
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "1")
    inject(tool, "hang --core 1 --count 1")
    run = tool("nccom-test", "-r", "2", "allr")
    assert "status=5" in log_of(run)
    assert "timeout (1000 ms)" in run.stderr


def test_a_numerical_error_is_counted_and_harms_nothing(tool):
    inject(tool, "numerical --core 0 --count 1")
    assert time_of(tool, 2) > 0
