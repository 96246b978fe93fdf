"""The simulated machine as a source: opening, watching through a crash, and leaving alone what was stopped."""

from __future__ import annotations

import os
import signal

import pytest

from neurontools.errors import NoMachineError, UsageError
from neurontools.machine import launch
from neurontools.machine.machine_config import StartOptions
from neurontools.sources import open_source
from neurontools.sources.retrying import RetryingSource, SourceProblem


def test_an_unknown_source_is_named():
    with pytest.raises(UsageError, match="no-such-thing"):
        open_source("no-such-thing")


def test_without_a_machine_nothing_is_opened():
    with pytest.raises(NoMachineError):
        open_source("sim")


def test_the_machine_is_a_source_with_a_name():
    launch.start(StartOptions("ci", "trn1.2xlarge"))
    with open_source("sim", machine="ci") as source:
        assert source.name == "sim:ci"
        assert source.notices == ()
        assert source.snapshot().instance_type == "trn1.2xlarge"
        first, second, *_ = (snapshot for snapshot, _ in zip(source.watch(0.05), range(2), strict=False))
        assert second.taken_ns > first.taken_ns


def test_a_looker_is_listed_with_those_that_only_look():
    launch.start(StartOptions("default", "trn1.2xlarge"))
    with open_source("sim", looker="neuron-monitor") as source:
        (process,) = source.snapshot().processes
    assert (process.pid, process.command, process.uses_device) == (os.getpid(), "neuron-monitor", False)


def test_watching_goes_on_after_the_daemon_was_killed(monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    info = launch.start(StartOptions("default", "trn1.2xlarge"))
    with RetryingSource("sim", 0.05) as follower:
        updates = follower.updates()
        next(updates)
        os.kill(info.pid, signal.SIGKILL)
        later = next(update for update in updates if not isinstance(update, SourceProblem))
        assert later.started_unix_s == pytest.approx(info.started_unix_s, abs=1)
    assert launch.find("default").pid != info.pid
    launch.stop("default")


def test_a_machine_that_was_stopped_is_waited_for_but_not_started(monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    launch.start(StartOptions("default", "trn1.2xlarge"))
    with RetryingSource("sim", 0.05) as follower:
        updates = follower.updates()
        next(updates)
        launch.stop("default")
        trouble = next(update for update in updates if isinstance(update, SourceProblem))
        assert trouble.text == "machine not running, waiting for it"
        assert launch.list_machines() == ()
        launch.start(StartOptions("default", "inf2.xlarge"))
        back = next(update for update in updates if not isinstance(update, SourceProblem))
        assert back.instance_type == "inf2.xlarge"
