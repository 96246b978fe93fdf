"""The shape of log lines, their levels and where they go."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from neurontools.runtime.log import Component, Level, RuntimeLog, format_line

if TYPE_CHECKING:
    from pathlib import Path

LINE = re.compile(
    r"\d{4}-(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)-\d\d \d\d:\d\d:\d\d\.\d{6} "
    r"(\d+):(\d+) (ERROR|WARN|INFO|DEBUG|TRACE) +(NRT|TDRV|NMGR):(\w+) +(.+)\n"
)


def test_a_line_has_the_real_shape() -> None:
    when = datetime(2025, 10, 1, 23, 48, 34, 2205, tzinfo=UTC)
    line = format_line(when, Level.ERROR, Component.TDRV, "func_name", "message")
    who = f"{os.getpid()}:{threading.get_native_id()}"
    assert line == f"2025-Oct-01 23:48:34.002205 {who} ERROR  TDRV:func_name                       message"
    assert LINE.fullmatch(line + "\n")


def said(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    log = RuntimeLog(environ)
    for component in Component:
        for level in list(Level)[1:]:
            log.write(level, component, "f", "text")
    matches = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines(keepends=True)]
    assert all(matches)
    return [(match[5], match[4]) for match in matches if match]


def test_errors_only_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert said({}, capsys) == [("NRT", "ERROR"), ("TDRV", "ERROR"), ("NMGR", "ERROR")]
    assert said({"NEURON_RT_LOG_LEVEL": "nonsense"}, capsys) == said({}, capsys)


@pytest.mark.parametrize(
    ("level", "count"),
    [("QUIET", 0), ("ERROR", 1), ("WARN", 2), ("WARNING", 2), ("info", 3), ("DEBUG", 4), ("TRACE", 5)],
)
def test_levels(level: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(said({"NEURON_RT_LOG_LEVEL": level}, capsys)) == 3 * count


def test_a_component_has_a_level_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"NEURON_RT_LOG_LEVEL": "QUIET", "NEURON_RT_LOG_LEVEL_TDRV": "INFO"}
    assert said(environ, capsys) == [("TDRV", "ERROR"), ("TDRV", "WARN"), ("TDRV", "INFO")]


def test_a_component_may_log_to_a_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "tdrv.log"
    path.write_text("before\n")
    assert said({"NEURON_RT_LOG_LOCATION_TDRV": str(path)}, capsys) == [("NRT", "ERROR"), ("NMGR", "ERROR")]
    before, line = path.read_text().splitlines(keepends=True)
    assert before == "before\n"
    assert LINE.fullmatch(line)


def test_a_file_that_cannot_be_written_does_not_swallow_lines(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(said({"NEURON_RT_LOG_LOCATION": str(home / "no" / "dir")}, capsys)) == 3


def test_syslog_keeps_the_console_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert said({"NEURON_RT_LOG_LOCATION": "syslog"}, capsys) == []


def test_without_stderr_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    RuntimeLog({}).write(Level.ERROR, Component.NRT, "f", "text")
