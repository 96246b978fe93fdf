"""What is killed, stopped or late under neuron-top: it says so, recovers by itself, and leaves the terminal whole."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.machine import launch
from neurontools.machine.launch import StartOptions
from neurontools.sources.retrying import RetryingSource, SourceProblem
from neurontools.sources.sim import SimSource
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.source import FollowedSource
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from neurontools.tui.top.source import TimedSnapshot, Update

Open = Callable[..., Any]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def title_until(app: TopApp, pilot: Pilot[int], text: str, *, gone: bool = False) -> None:
    """Wait until the title bar has a text, or has it no longer."""
    for _ in range(400):
        if (text in text_of(app.query_one("#title", LinePane).lines[0])) is not gone:
            return
        await pilot.pause(0.05)
    raise AssertionError(text)


async def test_a_daemon_that_hangs_is_reported_and_tolerated(machine: launch.DaemonInfo) -> None:
    app = TopApp(FollowedSource("sim", 0.1), silent_after_s=0.5)
    async with app.run_test(size=(120, 40)) as pilot:
        await title_until(app, pilot, "trn1.32xlarge")
        with stopped(machine.pid):
            await title_until(app, pilot, "no data for")
            await pilot.press("p", "x", "o")
            assert app.page.name == "overview"
        await title_until(app, pilot, "no data for", gone=True)


def test_a_machine_that_comes_back_as_another_one_is_shown(
    terminal: Open, machine: launch.DaemonInfo
) -> None:
    shown = terminal("--interval", "0.2")
    shown.read_until("trn1.32xlarge")
    launch.stop(force=True)
    shown.read_until("machine not running, waiting for it")
    launch.start(StartOptions(machine="default", instance_type="inf2.24xlarge"))
    shown.read_until("inf2.24xlarge")
    shown.quit()


def test_a_deleted_runtime_directory_does_not_end_it(terminal: Open, machine: launch.DaemonInfo) -> None:
    shown = terminal("--interval", "0.2")
    shown.read_until("avg ")
    gone = paths.runtime_dir() + "-gone"
    os.rename(paths.runtime_dir(), gone)  # first: the daemon may write a file while its directory is removed
    shutil.rmtree(gone, ignore_errors=True)
    shown.press("f")
    shown.read_until("TF")
    os.kill(machine.pid, signal.SIGKILL)
    shown.read_until("machine not running, waiting for it")
    launch.start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    shown.read_until("trn1.2xlarge")
    shown.quit()


def test_killed_again_and_again_it_goes_on(terminal: Open, machine: launch.DaemonInfo) -> None:
    shown = terminal("--interval", "0.1")
    shown.read_until("trn1.32xlarge")
    pid = machine.pid
    for _ in range(3):
        os.kill(pid, signal.SIGKILL)
        shown.read_until("  machine not running, waiting for it")  # in the title, not among the events
        pid = launch.start(StartOptions(machine="default", instance_type="trn1.32xlarge")).pid
        shown.read_until("trn1.32xlarge")  # moves to the right edge
    shown.quit()


def test_paused_while_the_daemon_dies_it_keeps_its_moment(terminal: Open, machine: launch.DaemonInfo) -> None:
    shown = terminal("--interval", "0.2", size=(160, 40))
    shown.read_until("trn1.32xlarge")
    shown.press(" ")
    shown.read_until("paused at")
    os.kill(machine.pid, signal.SIGKILL)
    shown.read_until("still recording, machine not running, waiting for it")
    shown.press("[")
    shown.quit()


class Lagging:
    """A source that tells something when it is let."""

    name = "lagging"

    def __init__(self, *updates: Update) -> None:
        self._updates = updates
        self.go = threading.Semaphore(0)

    def updates(self) -> Iterator[Update]:
        for update in self._updates:
            self.go.acquire()
            yield update

    def close(self) -> None:
        self.go.release()


async def test_a_source_that_lags_is_reported_until_it_is_there_again(
    training: tuple[TimedSnapshot, TimedSnapshot],
) -> None:
    source = Lagging(*training)
    app = TopApp(source, silent_after_s=0.5)
    async with app.run_test(size=(120, 40)) as pilot:
        source.go.release()
        await title_until(app, pilot, "trn1.32xlarge")
        await title_until(app, pilot, "no data for")
        source.go.release()
        await title_until(app, pilot, "no data for", gone=True)


@pytest.mark.parametrize(
    "error", [IndexError("x"), KeyError("x"), ValueError("x"), TypeError("x"), OSError(5, "x")]
)
def test_an_invalid_answer_of_a_daemon_is_not_the_end(
    monkeypatch: pytest.MonkeyPatch, machine: launch.DaemonInfo, error: Exception
) -> None:
    watch = SimSource.watch
    failures = [error]

    def broken(self: SimSource, period_s: float) -> Any:
        if failures:
            raise failures.pop()
        return watch(self, period_s)

    monkeypatch.setattr(SimSource, "watch", broken)
    with RetryingSource("sim", 0.05) as follower:
        updates = follower.updates()
        assert isinstance(next(updates), SourceProblem)
        assert not isinstance(next(updates), SourceProblem)
