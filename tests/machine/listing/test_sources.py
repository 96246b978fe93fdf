"""neuron-ls on other sources than the simulated machine: the same renderer, so the same text as far as they know it."""

from __future__ import annotations

import json

import pytest

from neurontools.machine import launch

NO_DRIVER = 'error="failed to discover Neuron devices"\n'


def start(instance):
    return launch.start(launch.StartOptions("default", instance))


def without_id(text):
    """A text without the instance id, which the driver's files don't know."""
    return [line for line in text.splitlines() if not line.startswith("instance-id: ")]


@pytest.mark.parametrize("instance", ["trn1.2xlarge", "trn2.48xlarge"])
def test_a_host_is_listed_as_the_machine_that_its_files_are_from(tool, home, monkeypatch, instance):
    start(instance)
    mirror = home / "mirror"
    assert tool("neurontools", "sysfs", "export", str(mirror)).returncode == 0
    monkeypatch.setenv("NEURONTOOLS_SYSFS_ROOT", str(mirror))
    run = tool("neuron-ls", "-t", "--source", "real")
    assert (run.returncode, run.stderr) == (0, "")
    assert without_id(run.stdout) == without_id(tool("neuron-ls", "-t").stdout)
    said = tool("neuron-ls", "--source", "real", "--verbose", "--filter=device=0").stderr
    assert said.startswith("source: real\n")


def test_a_host_without_a_driver_is_reported_as_by_the_real_tool(tool, home, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_SYSFS_ROOT", str(home))
    run = tool("neuron-ls", "--source", "real", "-j")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.endswith(NO_DRIVER)


def test_a_recording_is_listed_by_its_last_moment_and_watched_to_its_end(tool, home):
    start("inf2.24xlarge")
    recording = home / "recording.jsonl"
    recording.write_text(tool("neuron-monitor", "--limit", "1").stdout)
    run = tool("neuron-ls", "-j", "--source", str(recording), "--verbose")
    assert (run.returncode, run.stderr.splitlines()[0]) == (0, "source: file:recording.jsonl")
    devices = json.loads(run.stdout)
    assert [device["neuroncore_ids"] for device in devices] == [[2 * n, 2 * n + 1] for n in range(6)]
    watched = tool("neuron-ls", "-j", "--source", str(recording), "--watch", "--interval=0.05")
    assert watched.returncode == 0
    assert json.loads(watched.stdout.splitlines()[0]) == devices


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"{}\n", b'{"neuron_runtime_data": [\n'])
def test_what_is_not_a_recording_is_refused(tool, home, content):
    (home / "file").write_bytes(content)
    run = tool("neuron-ls", "--source", str(home / "file"))
    assert run.returncode != 0
    assert run.stdout == ""
    assert run.stderr.startswith("error: ")
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--source", "cloud"], "unknown source 'cloud'\nhint: choose sim, real, a file"),
        (
            ["--source", "real", "--machine", "ci"],
            "--machine ci names a simulated machine, source 'real' is not simulated\n",
        ),
    ],
)
def test_an_unknown_or_contradictory_source_is_refused(tool, words, error):
    run = tool("neuron-ls", *words)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"error: {error}")
