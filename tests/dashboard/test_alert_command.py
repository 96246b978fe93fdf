"""The command of an alert: its words, its environment, one at a time, never waited for."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.dashboard.alerts import (
    MOST_AT_ONCE,
    Alert,
    AlertCommand,
    Condition,
    alert_environment,
    check_command,
    split_command,
)
from neurontools.errors import UsageError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

ECC = Alert(Condition.ECC, "ND3: uncorrected memory errors", 1.0, device=3)
IDLE = Alert(Condition.IDLE_CLAIM, "process 7 holds 2 cores idle", 1.0, pid=7)


def test_words_are_split_as_by_a_shell_and_nothing_else_is_done() -> None:
    assert split_command("logger -t 'a b' $HOME; rm *") == ("logger", "-t", "a b", "$HOME;", "rm", "*")
    for text in ("", "  ", "'open"):
        with pytest.raises(UsageError):
            split_command(text)


def test_the_environment_says_which_alert() -> None:
    assert alert_environment(ECC) == {
        "NEURONTOOLS_ALERT": "ecc",
        "NEURONTOOLS_ALERT_TEXT": "ND3: uncorrected memory errors",
        "NEURONTOOLS_ALERT_DEVICE": "3",
    }
    assert alert_environment(IDLE)["NEURONTOOLS_ALERT_PID"] == "7"


def writer(path: Path, then: str = "") -> tuple[str, ...]:
    code = f"import os; open({str(path)!r}, 'a').write(os.environ['NEURONTOOLS_ALERT'] + ' '); {then}"
    return (sys.executable, "-c", code)


def wait_for(path: Path, text: str) -> None:
    wait_until(lambda: path.exists() and path.read_text() == text)


def test_it_is_run_for_each_alert_and_once_at_a_time_for_the_same(tmp_path: Path) -> None:
    fifo, said = tmp_path / "fifo", tmp_path / "said"
    os.mkfifo(fifo)
    command = AlertCommand(writer(said, f"open({str(fifo)!r}).read()"))
    command.run(ECC)
    wait_for(said, "ecc ")
    command.run(ECC)
    command.run(IDLE)
    wait_for(said, "ecc idle-claim ")
    command.close()
    assert command.started == 2
    with fifo.open("w"):
        pass
    for process in command._running.values():
        process.wait(timeout=600)


def test_a_command_that_is_not_there_is_reported_once_and_harms_nothing() -> None:
    told: list[str] = []
    command = AlertCommand(("/nowhere/at-all",), told.append)
    command.run(ECC)
    command.run(IDLE)
    command.close()
    assert told == ["--exec-on-alert: /nowhere/at-all: No such file or directory"]
    with pytest.raises(UsageError, match="command not found: '/nowhere/at-all'"):
        check_command(("/nowhere/at-all",))
    check_command((sys.executable,))
    assert (command.started, command.failure) == (0, "/nowhere/at-all: No such file or directory")


def test_a_storm_of_alerts_starts_a_limited_number(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = AlertCommand(tuple(shlex.split(f"{sys.executable} -S -c 'open(\"{fifo}\").read()'")))
    for pid in range(100):
        command.run(Alert(Condition.IDLE_CLAIM, "", 1.0, pid=pid))
    command.close()
    assert command.started == MOST_AT_ONCE
    for process in command._running.values():
        process.kill()
        process.wait()
