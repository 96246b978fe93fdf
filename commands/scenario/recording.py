"""neurontools scenario record and replay."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from neurontools.base.units import format_duration
from neurontools.commands import console
from neurontools.commands.progress import ProgressLine
from neurontools.errors import UsageError
from neurontools.scenario import recording

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from neurontools.scenario.recording import DamagedLine

_STDIO = "-"
_SOURCES = ("sim", "real")
_MIN_SPEED, _MAX_SPEED = 0.001, 10_000.0


def record(arguments: argparse.Namespace) -> int:
    """Write a recording."""
    duration_s, period_s = arguments.duration, arguments.period
    line = ProgressLine(enabled=arguments.out != _STDIO)
    if arguments.count is not None and arguments.count < 1:
        raise UsageError(f"--count {arguments.count} is less than 1", "give the number of lines")
    lines = _lines(arguments, period_s, duration_s)
    with _output(arguments.out, replace=arguments.force) as out, line:
        written, damaged = recording.record(
            lines,
            out,
            count=arguments.count,
            duration_s=duration_s,
            on_line=lambda count, seconds: line.show(f"{count} lines, {format_duration(seconds)}"),
            on_damage=_warn,
        )
    if arguments.out != _STDIO:
        console.notice(f"{written} lines in {arguments.out}")
    return 1 if damaged or not written else 0


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
        console.bytes_now(data)
        last = data

    while True:
        with _input(arguments.file) as file:
            written, more_damaged = recording.replay(file, write, _warn, speed=speed, again=arguments.loop)
        damaged += more_damaged
        if not arguments.loop or not written:
            return 1 if damaged or not written else 0


def _lines(
    arguments: argparse.Namespace, period_s: float | None, duration_s: float | None
) -> Iterator[bytes]:
    if arguments.offline:
        if arguments.scenario in {None, _STDIO}:
            raise UsageError(
                "--offline needs a scenario", "neurontools scenario list shows the bundled scenarios"
            )
        return _offline(arguments, period_s, duration_s)
    if arguments.scenario == _STDIO:
        if period_s is not None:
            raise UsageError(
                "--period cannot change the lines on stdin", "set it in the monitor's configuration"
            )
        return iter(sys.stdin.buffer.readline, b"")
    if arguments.scenario is not None:
        raise UsageError(
            f"{arguments.scenario!r} needs --offline",
            "or play it (neurontools scenario play) and record the machine without naming a scenario",
        )
    if arguments.source not in _SOURCES:
        raise UsageError(f"unknown source {arguments.source!r}", f"choose {' or '.join(_SOURCES)}")
    return _monitored(arguments, period_s)


def _offline(
    arguments: argparse.Namespace, period_s: float | None, duration_s: float | None
) -> Iterator[bytes]:
    from neurontools.scenario import schema
    from neurontools.scenario.offline import offline_lines

    scenario = schema.load(arguments.scenario, arguments.seed)
    machine = arguments.machine or scenario.name
    for line in offline_lines(scenario, machine=machine, period_s=period_s, duration_s=duration_s):
        yield line.encode() + b"\n"


def _monitored(arguments: argparse.Namespace, period_s: float | None) -> Iterator[bytes]:
    from neurontools.monitor.codec import format_line
    from neurontools.monitor.sampling import reports
    from neurontools.scenario.offline import monitor_config
    from neurontools.sources import open_source

    source = open_source(
        arguments.source,
        machine=arguments.machine,
        looker="neurontools scenario record",
        on_notice=console.notice,
    )
    with source:
        for report in reports(monitor_config(period_s), source.snapshot):
            yield format_line(report).encode() + b"\n"


@contextmanager
def _output(path: str, *, replace: bool) -> Iterator[IO[bytes]]:
    if path == _STDIO:
        yield sys.stdout.buffer
        return
    with recording.open_new(path, replace=replace) as file:
        yield file


@contextmanager
def _input(path: str) -> Iterator[IO[bytes]]:
    if path == _STDIO:
        yield sys.stdin.buffer
        return
    with recording.open_recording(path) as file:
        yield file


def _warn(damage: DamagedLine) -> None:
    console.warn(str(damage))
