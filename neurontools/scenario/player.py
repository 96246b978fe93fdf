"""Plays a scenario: fills a machine with synthetic processes and keeps their telemetry pages up to date.

The player is the process that calls `play`. When it ends, however it ends, its synthetic processes are gone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import DaemonError, NoMachineError, UsageError
from neurontools.machine import launch, wire
from neurontools.machine.client import Client
from neurontools.machine.naming import check_name
from neurontools.machine.processes import wait_for_end
from neurontools.scenario.events import EventKind, PlayEvent, Progress
from neurontools.scenario.script import Script
from neurontools.scenario.stage import Stage, make_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.info import DaemonInfo
    from neurontools.scenario.lives import Life
    from neurontools.scenario.model import Scenario

TICK_S = 0.1
_LONGEST_TICK_S = 1.0
# The player spends at most about this share of one CPU on pages: it looks at them less often when there are many.
_CPU_SHARE = 0.05
_CHECK_S = 1.0
_END_S = 5.0
MIN_SPEED, MAX_SPEED = 0.001, 10_000.0


@dataclass(frozen=True, slots=True)
class Played:
    """What a play was: scenario seconds in all, rounds, wall and CPU seconds of the player, processes started."""

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
) -> Played:
    """Play a scenario until it is over, and leave the machine as it was.

    Args:
        scenario: what to play.
        machine: on which machine, None for the one that NEURONTOOLS_MACHINE names. One that does not run is started
            as the scenario's instance type and stopped again, at the latest when this process ends.
        speed: scenario seconds in a second of this computer.
        duration_s: scenario seconds after which to stop; None: the scenario's own.
        loop: start again at the end, with `duration_s` None for ever.
        on_event: told of everything that happens.
        on_progress: told at every tick how far it is.
        before_end: called when the last moment is shown and everything is still there.

    Raises:
        UsageError: the speed or the machine's name makes no sense.
        DaemonError: the machine under that name is of another type, or it refuses.
        NoMachineError: the machine was stopped.
    """
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise UsageError(f"a speed of {speed:g} makes no sense", f"give {MIN_SPEED:g} to {MAX_SPEED:g}")
    name = check_name(env.machine() if machine is None else machine)
    script = Script(scenario)
    make_room(len(scenario.processes))
    if launch.has_crashed(name):
        launch.start(launch.StartOptions(machine=name, resume=True))  # it is somebody's, not the player's own
    info = launch.start(_options(name, scenario))
    tell = on_event or _ignore
    again = launch.StartOptions(machine=name, resume=True) if info.was_running else _options(name, scenario)
    with Client.connect(name, start_again=lambda: _start_again(again)) as client:
        stage = Stage(client, script.instance, scenario.lnc, speed, tell)
        try:
            return _Play(script, stage, info, speed, duration_s, loop, tell, on_progress, before_end).run()
        finally:
            if not info.was_running:
                _stop(name)


class _Play:
    """One play: the clock, and the cues that are still to come."""

    def __init__(
        self,
        script: Script,
        stage: Stage,
        info: DaemonInfo,
        speed: float,
        duration_s: float | None,
        loop: bool,
        tell: Callable[[PlayEvent], None],
        on_progress: Callable[[Progress], None] | None,
        before_end: Callable[[], None] | None,
    ) -> None:
        self._script = script
        self._stage = stage
        self._info = info
        self._speed = speed
        self._round_s = script.scenario.duration_s
        self._length_s = duration_s if loop else min(duration_s or self._round_s, self._round_s)
        self._tell = tell
        self._on_progress = on_progress
        self._before_end = before_end
        self._started = 0
        self._tick_s = TICK_S
        self._next_cue = 0
        self._check_due_s = 0.0

    def run(self) -> Played:
        """Play to the end."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        scenario = self._script.scenario
        where = f"{scenario.name} on machine {self._info.machine!r} ({scenario.instance_type})"
        self._tell(PlayEvent(0.0, EventKind.PLAYING, "", None, where))
        rounds, total_s = 0, 0.0
        try:
            while self._length_s is None or total_s < self._length_s:
                if rounds:
                    self._tell(PlayEvent(0.0, EventKind.LOOPED))
                left_s = self._round_s if self._length_s is None else self._length_s - total_s
                end_s = min(self._round_s, left_s)
                self._round(total_s, end_s)
                total_s += end_s
                rounds += 1
                if self._length_s is not None and total_s >= self._length_s and self._before_end is not None:
                    self._before_end()
                self._stage.end(self._script.lives.at(end_s - 1e-9), time.monotonic_ns())
        finally:
            self._leave()
        self._tell(PlayEvent(total_s, EventKind.FINISHED))
        return Played(
            self._info.machine,
            total_s,
            rounds,
            time.monotonic() - began_s,
            time.process_time() - cpu_s,
            self._started,
        )

    def _round(self, before_s: float, end_s: float) -> None:
        start_s, self._next_cue = time.monotonic(), 0
        time_s = 0.0
        while True:
            began_s, cpu_s = time.monotonic(), time.process_time()
            time_s = min((began_s - start_s) * self._speed, end_s)
            self._cues_until(time_s, end_s)
            self._stage.show(time_s, time.monotonic_ns(), round(self._tick_s * 1e9))
            self._look_after(began_s, time_s)
            if self._on_progress is not None:
                self._on_progress(
                    Progress(before_s + time_s, self._length_s, self._stage.living, self._stage.waiting)
                )
            if time_s >= end_s:
                return
            used_s = time.process_time() - cpu_s
            self._tick_s = min(max(TICK_S, used_s / _CPU_SHARE), _LONGEST_TICK_S)
            self._sleep(start_s, end_s, began_s)

    def _sleep(self, start_s: float, end_s: float, began_s: float) -> None:
        due_s = began_s + self._tick_s
        coming_s = end_s
        if self._next_cue < len(self._script.cues):
            coming_s = min(coming_s, self._script.cues[self._next_cue].at_s)
        due_s = min(due_s, start_s + coming_s / self._speed)
        time.sleep(max(0.0, due_s - time.monotonic()))

    def _cues_until(self, time_s: float, end_s: float) -> None:
        # Ends at the very end stay for the last look at the machine. Starts that come together go in one call.
        starting: list[Life] = []
        while self._next_cue < len(self._script.cues):
            cue = self._script.cues[self._next_cue]
            if cue.at_s > time_s or cue.at_s >= end_s:
                break
            self._next_cue += 1
            if cue.ends:
                self._start(starting, time_s)
                starting = []
                self._stage.end(cue.ends, time.monotonic_ns())
            starting += cue.starts
            for fault in cue.faults:
                self._stage.inject(fault)
        self._start(starting, time_s)

    def _start(self, lives: list[Life], time_s: float) -> None:
        if lives:
            self._started += len(lives)
            self._stage.start(lives, time_s)

    def _look_after(self, now_s: float, time_s: float) -> None:
        if now_s >= self._check_due_s:
            self._check_due_s = now_s + _CHECK_S
            self._stage.check()
            self._stage.start_waiting(time_s)

    def _leave(self) -> None:
        try:
            self._stage.clear()
        except NoMachineError:
            pass  # it was stopped, and everything on it is gone


def _options(name: str, scenario: Scenario) -> launch.StartOptions:
    return launch.StartOptions(
        machine=name, instance_type=scenario.instance_type, lnc=scenario.lnc, parent_pid=os.getpid()
    )


def _start_again(options: launch.StartOptions) -> None:
    name = options.machine
    if wire.is_answering(name):
        return
    try:
        # A daemon that is being killed closes its connections a moment before it is gone.
        wait_for_end(launch.find(name).pid, _END_S)
    except NoMachineError:
        pass
    if not launch.has_crashed(name):
        raise NoMachineError(f"machine {name!r} was stopped", "play again to start it")
    launch.start(options)


def _stop(name: str) -> None:
    try:
        launch.stop(name)
    except (NoMachineError, DaemonError):
        pass  # stopped already, or somebody uses it: it ends with this process


def _ignore(_event: PlayEvent) -> None:
    """Nobody wants to be told."""
