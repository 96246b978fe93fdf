"""A source that is opened again after errors, as neuron-monitor uses it."""

from __future__ import annotations

import pytest

from neurontools.errors import DaemonError, NoMachineError
from neurontools.sources.retrying import RetryingSource
from tests.monitor.conftest import machine_at


class FailingSource:
    """A source whose next snapshots fail with these errors."""

    name, live, notices = "sim:default", True, ()

    def __init__(self, errors):
        self.errors = errors
        self.closed = False

    def snapshot(self):
        assert not self.closed
        if self.errors:
            raise self.errors.pop(0)
        return machine_at(1)

    def close(self):
        self.closed = True


@pytest.fixture
def retrying(monkeypatch):
    """Make a source that fails: returns it, what it reports, how it was opened, and its waits."""

    def make(errors, opening=()):
        problems, starts, waits = [], [], []
        opening = list(opening)

        def opened(name, *, start, **_):
            starts.append(start)
            if len(starts) > 1 and opening:
                raise opening.pop(0)
            return FailingSource(errors)

        monkeypatch.setattr("neurontools.sources.retrying.open_source", opened)
        return RetryingSource("sim", 1.0, wait=waits.append), problems, starts, waits

    return make


def test_a_machine_that_is_back_at_once_is_not_reported(retrying):
    source, problems, starts, _ = retrying([DaemonError("broke")])
    assert source.snapshot(problems.append) == machine_at(1)
    assert problems == []
    assert starts == [True, False]


def test_a_machine_that_does_not_run_is_waited_for_and_reported_once(retrying):
    gone = [NoMachineError("machine 'default' ended") for _ in range(5)]
    source, problems, starts, waits = retrying([DaemonError("broke")], opening=gone)
    assert source.snapshot(problems.append) == machine_at(1)
    assert problems == ["machine not running, waiting for it", "data is back"]
    assert starts == [True, *[False] * 6]
    assert waits == sorted(waits)
    assert max(waits) <= 2


def test_a_machine_that_never_ran_is_an_error(monkeypatch):
    def opened(*_, **__):
        raise NoMachineError("machine 'default' does not run")

    monkeypatch.setattr("neurontools.sources.retrying.open_source", opened)
    with pytest.raises(NoMachineError):
        RetryingSource("sim", 1.0)
