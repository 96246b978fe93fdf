"""neurontools scenario play."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, NoReturn

from neurontools.base.text import plural
from neurontools.base.units import format_duration
from neurontools.commands import console
from neurontools.commands.progress import ProgressLine
from neurontools.scenario.process_pool import PlayEvent, PlayEventKind, Progress

if TYPE_CHECKING:
    import argparse
    from types import FrameType

_WARNINGS = {PlayEventKind.WAITING, PlayEventKind.NO_MEMORY, PlayEventKind.FAULT_REFUSED}


def play(arguments: argparse.Namespace) -> int:
    """Play a scenario to its end, or until interrupted."""
    from neurontools.scenario import runner, schema

    signal.signal(signal.SIGTERM, _terminated)
    scenario = schema.load(arguments.scenario, arguments.seed)
    screen = _Screen(as_json=arguments.json)
    try:
        played = runner.play(
            scenario,
            machine=arguments.machine,
            speed=arguments.speed,
            duration_s=arguments.duration,
            loop=arguments.loop,
            on_event=screen.event,
            on_progress=screen.progress if screen.line.is_enabled else None,
        )
    finally:
        screen.line.clear()
    if not arguments.json:
        processes = plural(played.started, "process", "processes")
        console.out(
            f"played {format_duration(played.scenario_s)} of {scenario.name} in {format_duration(played.wall_s)}: "
            f"{processes} started; the runner used {played.cpu_s:.1f} s of CPU"
        )
    return 0


class _Screen:
    """The output of a play: events on stdout, warnings and progress on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.line = ProgressLine(enabled=not as_json)

    def event(self, event: PlayEvent) -> None:
        """Print an event."""
        if self._as_json:
            console.out_now(json.dumps(event.to_json(), separators=(",", ":")))
            return
        when = f"at {format_duration(event.scenario_s)}"
        self.line.clear()
        if event.kind is PlayEventKind.PLAYING:
            console.out_now(f"playing {event.detail}")
        elif event.kind is PlayEventKind.FAULT:
            console.out_now(f"{when}: fault: {event.detail}")
        elif event.kind in _WARNINGS:
            name = f"{event.process}: " if event.process else ""
            console.warn(f"{when}: {name}{event.detail}")

    def progress(self, progress: Progress) -> None:
        """Show the progress on one line."""
        length = "" if progress.length_s is None else f" of {format_duration(progress.length_s)}"
        waiting = f", {progress.waiting} waiting for cores" if progress.waiting else ""
        processes = plural(progress.running, "process", "processes")
        self.line.show(f"{format_duration(int(progress.scenario_s))}{length}  {processes}{waiting}")


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
