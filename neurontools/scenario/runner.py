"""Plays a scenario: fills a machine with synthetic processes and keeps their telemetry pages up to date.

The synthetic processes belong to the process that calls `play`; they end with it, however it ends.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import DaemonError, NoMachineError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.connection import is_answering
from neurontools.machine.machine_names import check_name
from neurontools.machine.processes import wait_for_end
from neurontools.scenario.process_pool import (
    PlayEvent,
    PlayEventKind,
    ProcessPool,
    Progress,
    raise_descriptor_limit,
)
from neurontools.scenario.timeline import ScenarioTimeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.machine_config import DaemonInfo
    from neurontools.scenario.model import Scenario
    from neurontools.scenario.timeline import ProcessRun

TICK_S = 0.1
_LONGEST_TICK_S = 1.0
# The runner spends at most about this share of one CPU on pages: it updates them less often when there are many.
_CPU_SHARE = 0.05
_CHECK_S = 1.0
_END_S = 5.0
MIN_SPEED, MAX_SPEED = 0.001, 10_000.0


@dataclass(frozen=True, slots=True)
class PlayResult:
    """The totals of a play: scenario seconds, rounds, wall and CPU seconds of the runner, processes started."""

    machine: str
    scenario_s: float
    rounds: int
    wall_s: float
    cpu_s: float
    started: int


def play(
    scenario: Scenario,
    *,
    machine: str | None = None,
    speed: float = 1.0,
    duration_s: float | None = None,
    loop: bool = False,
    on_event: Callable[[PlayEvent], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    before_end: Callable[[], None] | None = None,
) -> PlayResult:
    """Play a scenario to its end, and restore the machine.

    Args:
        scenario: what to play.
        machine: the machine's name, None for NEURONTOOLS_MACHINE. A machine that does not run is started
            as the scenario's instance type and stopped at the end, at the latest when this process ends.
        speed: scenario seconds in a second of this computer.
        duration_s: scenario seconds to play; None for the scenario's own.
        loop: start again at the end; endless where `duration_s` is None.
        on_event: called with every event.
        on_progress: called with the progress at every tick.
        before_end: called after the last update, while all processes still exist.

    Raises:
        UsageError: the speed or the machine's name is invalid.
        DaemonError: the machine is of another instance type, or refuses.
        NoMachineError: the machine was stopped.
    """
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise UsageError(f"speed {speed:g} is out of range", f"choose {MIN_SPEED:g} to {MAX_SPEED:g}")
    name = check_name(env.machine() if machine is None else machine)
    timeline = ScenarioTimeline(scenario)
    raise_descriptor_limit(len(scenario.processes))
    if launch.has_crashed(name):
        launch.start(launch.StartOptions(machine=name, resume=True))  # it existed before this play
    info = launch.start(_options(name, scenario))
    emit = on_event or (lambda _: None)
    again = launch.StartOptions(machine=name, resume=True) if info.was_running else _options(name, scenario)
    with Client.connect(name, start_again=lambda: _start_again(again)) as client:
        pool = ProcessPool(client, timeline.instance, scenario.lnc, speed, emit)
        try:
            return _Runner(timeline, pool, info, speed, duration_s, loop, emit, on_progress, before_end).run()
        finally:
            if not info.was_running:
                with suppress(NoMachineError, DaemonError):  # stopped, or in use: it ends with this process
                    launch.stop(name)


class _Runner:
    """One play: the clock, and the events to come."""

    def __init__(
        self,
        timeline: ScenarioTimeline,
        pool: ProcessPool,
        info: DaemonInfo,
        speed: float,
        duration_s: float | None,
        loop: bool,
        emit: Callable[[PlayEvent], None],
        on_progress: Callable[[Progress], None] | None,
        before_end: Callable[[], None] | None,
    ) -> None:
        self._timeline = timeline
        self._pool = pool
        self._info = info
        self._speed = speed
        self._round_s = timeline.scenario.duration_s
        self._length_s = duration_s if loop else min(duration_s or self._round_s, self._round_s)
        self._emit = emit
        self._on_progress = on_progress
        self._before_end = before_end
        self._started = 0
        self._tick_s = TICK_S
        self._next_event = 0
        self._check_due_s = 0.0

    def run(self) -> PlayResult:
        """Play to the end and return the totals."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        scenario = self._timeline.scenario
        where = f"{scenario.name} on machine {self._info.machine!r} ({scenario.instance_type})"
        self._emit(PlayEvent(0.0, PlayEventKind.PLAYING, "", None, where))
        rounds, total_s = 0, 0.0
        try:
            while self._length_s is None or total_s < self._length_s:
                if rounds:
                    self._emit(PlayEvent(0.0, PlayEventKind.LOOPED))
                left_s = self._round_s if self._length_s is None else self._length_s - total_s
                end_s = min(self._round_s, left_s)
                self._round(total_s, end_s)
                total_s += end_s
                rounds += 1
                if self._length_s is not None and total_s >= self._length_s and self._before_end is not None:
                    self._before_end()
                self._pool.end(self._timeline.runs.at(end_s - 1e-9), time.monotonic_ns())
        finally:
            with suppress(NoMachineError):  # it was stopped, with everything on it
                self._pool.clear()
        self._emit(PlayEvent(total_s, PlayEventKind.FINISHED))
        return PlayResult(
            self._info.machine,
            total_s,
            rounds,
            time.monotonic() - began_s,
            time.process_time() - cpu_s,
            self._started,
        )

    def _round(self, before_s: float, end_s: float) -> None:
        start_s, self._next_event = time.monotonic(), 0
        time_s = 0.0
        while True:
            began_s, cpu_s = time.monotonic(), time.process_time()
            time_s = min((began_s - start_s) * self._speed, end_s)
            self._play_until(time_s, end_s)
            self._pool.update(time_s, time.monotonic_ns(), round(self._tick_s * 1e9))
            self._check_machine(began_s, time_s)
            if self._on_progress is not None:
                self._on_progress(
                    Progress(before_s + time_s, self._length_s, self._pool.running, self._pool.waiting)
                )
            if time_s >= end_s:
                return
            used_s = time.process_time() - cpu_s
            self._tick_s = min(max(TICK_S, used_s / _CPU_SHARE), _LONGEST_TICK_S)
            self._sleep(start_s, end_s, began_s)

    def _sleep(self, start_s: float, end_s: float, began_s: float) -> None:
        due_s = began_s + self._tick_s
        coming_s = end_s
        if self._next_event < len(self._timeline.events):
            coming_s = min(coming_s, self._timeline.events[self._next_event].at_s)
        due_s = min(due_s, start_s + coming_s / self._speed)
        time.sleep(max(0.0, due_s - time.monotonic()))

    def _play_until(self, time_s: float, end_s: float) -> None:
        # Runs that end with the round are ended after the last update. Starts at the same time go in one call.
        starting: list[ProcessRun] = []
        while self._next_event < len(self._timeline.events):
            event = self._timeline.events[self._next_event]
            if event.at_s > time_s or event.at_s >= end_s:
                break
            self._next_event += 1
            if event.ends:
                self._start(starting, time_s)
                starting = []
                self._pool.end(event.ends, time.monotonic_ns())
            starting += event.starts
            for fault in event.faults:
                self._pool.inject(fault)
        self._start(starting, time_s)

    def _start(self, runs: list[ProcessRun], time_s: float) -> None:
        if runs:
            self._started += len(runs)
            self._pool.start(runs, time_s)

    def _check_machine(self, now_s: float, time_s: float) -> None:
        if now_s >= self._check_due_s:
            self._check_due_s = now_s + _CHECK_S
            self._pool.check()
            self._pool.start_waiting(time_s)


def _options(name: str, scenario: Scenario) -> launch.StartOptions:
    return launch.StartOptions(
        machine=name, instance_type=scenario.instance_type, lnc=scenario.lnc, parent_pid=os.getpid()
    )


def _start_again(options: launch.StartOptions) -> None:
    name = options.machine
    if is_answering(name):
        return
    with suppress(NoMachineError):
        # A daemon that is being killed closes its connections just before it ends.
        wait_for_end(launch.find(name).pid, _END_S)
    if not launch.has_crashed(name):
        raise NoMachineError(f"machine {name!r} was stopped", "play again to start it")
    launch.start(options)
