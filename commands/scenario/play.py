"""neurontools scenario play, record and replay."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING

from neurontools.base.text import plural, printable, printable_lines
from neurontools.base.units import format_duration
from neurontools.commands import console
from neurontools.commands.console import ProgressLine
from neurontools.errors import UsageError
from neurontools.scenario import recording
from neurontools.scenario.process_pool import PlayEvent, PlayEventKind, Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from neurontools.scenario.recording import DamagedLine

_STDIO = "-"
_SOURCES = ("sim", "real")
_MIN_SPEED, _MAX_SPEED = 0.001, 10_000.0
_WARNINGS = {PlayEventKind.WAITING, PlayEventKind.NO_MEMORY, PlayEventKind.FAULT_REFUSED}


def play(arguments: argparse.Namespace) -> int:
    """Play a scenario to its end, or until interrupted."""
    from neurontools.scenario import runner, schema

    console.exit_on_sigterm()
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
            console.out_now(f"playing {printable(event.detail)}")
        elif event.kind is PlayEventKind.FAULT:
            console.out_now(f"{when}: fault: {printable(event.detail)}")
        elif event.kind in _WARNINGS:
            name = f"{event.process}: " if event.process else ""
            console.warn(f"{when}: {name}{event.detail}")

    def progress(self, progress: Progress) -> None:
        """Show the progress on one line."""
        length = "" if progress.length_s is None else f" of {format_duration(progress.length_s)}"
        waiting = f", {progress.waiting} waiting for cores" if progress.waiting else ""
        processes = plural(progress.running, "process", "processes")
        self.line.show(f"{format_duration(int(progress.scenario_s))}{length}  {processes}{waiting}")


def record(arguments: argparse.Namespace) -> int:
    """Write a recording."""
    line = ProgressLine(enabled=arguments.output != _STDIO)
    lines = _lines(arguments)
    with _output(arguments.output, replace=arguments.force) as out, line:
        written, damaged = recording.record(
            lines,
            out,
            count=arguments.limit,
            duration_s=arguments.duration,
            on_line=lambda count, seconds: line.show(f"{count} lines, {format_duration(seconds)}"),
            on_damage=_warn,
        )
    if arguments.output != _STDIO:
        console.notice(f"{written} lines in {arguments.output}")
    return 1 if damaged or not written else 0


def _printable_line(data: bytes) -> bytes:
    line = data.strip(b"\r\n")
    shown = printable_lines(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return data.replace(line, shown) if shown != line else data


def replay(arguments: argparse.Namespace) -> int:
    """Print a recording at its pace."""
    if not _MIN_SPEED <= arguments.speed <= _MAX_SPEED:
        raise UsageError(
            f"speed {arguments.speed:g} is out of range", f"choose {_MIN_SPEED:g} to {_MAX_SPEED:g}"
        )
    if arguments.loop and arguments.file == _STDIO:
        raise UsageError("--loop cannot replay stdin", "give a file")
    speed = None if arguments.no_wait else arguments.speed
    damaged = 0
    last = b"\n"

    def write(data: bytes) -> None:
        nonlocal last
        if not last.endswith(b"\n"):
            data = b"\n" + data  # the file lacks its last newline and is replayed
        console.bytes_now(_printable_line(data))
        last = data

    while True:
        with _input(arguments.file) as file:
            written, more_damaged = recording.replay(file, write, _warn, speed=speed, again=arguments.loop)
        damaged += more_damaged
        if not arguments.loop or not written:
            return 1 if damaged or not written else 0


def _lines(arguments: argparse.Namespace) -> Iterator[bytes]:
    if arguments.offline:
        if arguments.scenario in {None, _STDIO}:
            raise UsageError(
                "--offline needs a scenario", "neurontools scenario list shows the bundled scenarios"
            )
        return _offline(arguments)
    if arguments.scenario == _STDIO:
        if arguments.interval is not None:
            raise UsageError(
                "--interval cannot change the lines on stdin", "set it in the monitor's configuration"
            )
        return iter(sys.stdin.buffer.readline, b"")
    if arguments.scenario is not None:
        raise UsageError(
            f"{arguments.scenario!r} needs --offline",
            "or play it (neurontools scenario play) and record the machine without naming a scenario",
        )
    if arguments.source not in _SOURCES:
        raise UsageError(f"unknown source {arguments.source!r}", f"choose {' or '.join(_SOURCES)}")
    return _monitored(arguments)


def _offline(arguments: argparse.Namespace) -> Iterator[bytes]:
    from neurontools.scenario import schema
    from neurontools.scenario.offline import offline_lines

    scenario = schema.load(arguments.scenario, arguments.seed)
    machine = arguments.machine or scenario.name
    for line in offline_lines(
        scenario, machine=machine, period_s=arguments.interval, duration_s=arguments.duration
    ):
        yield line.encode() + b"\n"


def _monitored(arguments: argparse.Namespace) -> Iterator[bytes]:
    from neurontools.monitor.codec import format_line
    from neurontools.monitor.collector import reports
    from neurontools.scenario.offline import monitor_config
    from neurontools.sources import open_source

    source = open_source(
        arguments.source,
        machine=arguments.machine,
        looker="neurontools scenario record",
        on_notice=console.notice,
    )
    with source:
        for report in reports(monitor_config(arguments.interval), source.snapshot):
            yield format_line(report).encode() + b"\n"


def _output(path: str, *, replace: bool) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdout.buffer) if path == _STDIO else recording.open_new(path, replace=replace)


def _input(path: str) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if path == _STDIO else recording.open_recording(path)


def _warn(damage: DamagedLine) -> None:
    console.warn(str(damage))
