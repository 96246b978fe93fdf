"""A machine of the benchmarks' own, and what its daemon costs while nobody asks."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import psutil

from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.machine import launch

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_SECONDS = in_short_form(20, 0.1)


def main() -> list[BenchmarkRow]:
    """Measure an idle daemon and return the rows."""
    with running_machine("trn1.32xlarge"):
        daemon = launch.list_machines()[0].pid
        share = cpu_share(daemon, IDLE_SECONDS)
        resident_mib = psutil.Process(daemon).memory_info().rss / 2**20
    return [
        BenchmarkRow.at_most("neurond idle, CPU", 100 * share, "%", 0.5),
        BenchmarkRow.at_most("neurond idle, resident memory", resident_mib, "MiB", 30),
    ]


def cpu_share(pid: int, seconds: float) -> float:
    """Return how much of one CPU a process uses over the next seconds (0..1)."""
    process = psutil.Process(pid)
    begin, before = time.monotonic(), process.cpu_times()
    time.sleep(seconds)
    after, end = process.cpu_times(), time.monotonic()
    return ((after.user - before.user) + (after.system - before.system)) / (end - begin)


@contextmanager
def own_directories(**variables: str) -> Iterator[dict[str, str]]:
    """Set the environment to directories that are removed afterwards, and more variables; yields it."""
    root = Path(tempfile.mkdtemp(prefix="nt-bench-"))
    directories = {
        "NEURONTOOLS_RUNTIME_DIR": str(root / "run"),
        "NEURON_COMPILE_CACHE_URL": str(root / "compile-cache"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_STATE_HOME": str(root / "state"),
    }
    with mock.patch.dict(os.environ, {**directories, **variables}):
        try:
            yield dict(os.environ)
        finally:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def running_machine(instance: str) -> Iterator[dict[str, str]]:
    """Start a machine in directories of its own; yields the environment that leads to it."""
    with own_directories(NEURONTOOLS_MACHINE="bench") as environ:
        launch.start(launch.StartOptions(machine="bench", instance_type=instance))
        try:
            yield environ
        finally:
            launch.stop("bench", force=True)
