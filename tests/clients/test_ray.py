"""Ray finds the simulated machine by its own means, and its tasks run on the cores that Ray gave them.

Ray calls /opt/aws/neuron/bin/neuron-ls: links are put there in a private mount namespace, where /opt is another one.
The processes get a pid namespace too, so that every one of Ray's ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
PRIVATE = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
SCRIPT = """
set -e
mount -t tmpfs none /opt
neurontools link --prefix /opt/aws/neuron > links
neurond start --instance trn1.32xlarge > started
exec python "$1" "$PWD"
"""


def _refusal() -> str:
    try:
        run = subprocess.run(
            [*PRIVATE, "mount", "-t", "tmpfs", "none", "/opt"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return str(error)
    return "" if run.returncode == 0 else run.stderr.strip() or f"exit code {run.returncode}"


@pytest.fixture
def report(home, monkeypatch):
    """What the job saw."""
    reason = _refusal()
    if reason:
        pytest.skip(f"no private mount and pid namespace: {reason}")
    before = sorted(os.listdir("/opt"))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    job = Path(__file__).with_name("ray_job.py")
    run = subprocess.run(
        [*PRIVATE, "sh", "-c", SCRIPT, "sh", str(job)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert sorted(os.listdir("/opt")) == before
    return json.loads((home / "report.json").read_text())


def listed_pids(devices):
    """Return the cores of the devices on which each process is listed, by its pid."""
    found = {}
    for device in devices:
        for process in device["neuron_processes"]:
            found.setdefault(process["pid"], set()).update(device["neuroncore_ids"])
    return found


@pytest.mark.slow
def test_ray_counts_the_cores_and_its_tasks_run_on_those_it_gave_them(report):
    assert report["resources"]["neuron_cores"] == 32.0
    assert report["resources"]["accelerator_type:aws-neuron-core"] == 1.0
    first, second = sorted(report["tasks"], key=lambda task: task["cores"])
    assert (first["visible"], first["cores"]) == ("0,1", [0, 1])
    assert (second["visible"], second["cores"]) == ("2,3", [2, 3])
    assert listed_pids(report["listed"]) == {first["pid"]: {0, 1}, second["pid"]: {2, 3}}
    assert report["later"] == "0"
    assert listed_pids(report["left"]) == {}
