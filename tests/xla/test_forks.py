"""Forked children of a program with recorded draws: workers of a DataLoader, pools, os.fork."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from neurontools.xla import engine
from neurontools.xla.engine import ForkLocks
from neurontools.xla.recorder_lock import RecorderLock

CHECKS = Path(__file__).with_name("fork_checks.py")


@pytest.mark.torch
@pytest.mark.parametrize("device", ["xla", "neuron"])
def test_forked_children_seed_and_draw_on_the_host(device, tool, torch_python):
    chosen = {**os.environ, "NEURONTOOLS_DEVICE": device}
    python = torch_python if device == "xla" else "python"
    run = tool("neuron-run", "--instance", "trn2.3xlarge", "--", python, str(CHECKS), device, env=chosen)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    assert seen["plain"] == seen["generator"] == [28.0, True]
    for pool in ("pool", "executor"):
        assert [outcome[:2] for outcome in seen[pool]] == [[True, True], [True, True]]
    assert seen["pool"] == seen["executor"]
    assert seen["fork"] == [7, 7, 7, 7]
    assert seen["busy"] == [[1] * 8, [6.0, 22.0]]
    assert seen["parent"] == [True, [2, 2]]


def _settle():
    """Clean up nothing."""


def test_a_fork_takes_the_locks_and_the_child_gets_new_ones(monkeypatch):
    handlers = {}
    monkeypatch.setattr(engine.os, "register_at_fork", handlers.update)
    monkeypatch.setattr(engine, "_LONGEST_WAIT_S", 0.01)
    free, busy = (SimpleNamespace(lock=RecorderLock(_settle), settle=_settle) for _ in range(2))
    ForkLocks(lambda: (free, busy))

    def is_free(owner):
        taken = []
        thread = threading.Thread(target=lambda: taken.append(owner.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return taken[0]

    held, done = threading.Event(), threading.Event()

    def occupy():
        with busy.lock:
            held.set()
            done.wait(60)

    other = threading.Thread(target=occupy)
    other.start()
    held.wait(60)
    handlers["before"]()
    assert not is_free(free)
    handlers["after_in_parent"]()
    assert not is_free(busy)
    handlers["before"]()
    handlers["after_in_child"]()
    assert is_free(busy)
    assert is_free(free)
    done.set()
    other.join()
