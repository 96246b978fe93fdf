"""neurond, the command: what it prints and returns."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.commands.neurond import build_parser
from neurontools.machine.codec import convert
from neurontools.machine.directory import MachineDirectory, lines
from neurontools.machine.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.client import Client
    from neurontools.machine.machine_config import DaemonInfo

    Tool = Callable[..., subprocess.CompletedProcess[str]]


def words(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, with what differs from run to run replaced."""
    out = re.sub(r"pid \d+", "pid PID", done.stdout)
    return done.returncode, out, done.stderr


def test_a_machine_s_whole_life(tool: Tool) -> None:
    size = "trn1.32xlarge (16 devices, 32 NeuronCores), pid PID\n"
    start = ("neurond", "start", "--instance", "trn1.32xlarge", "--machine", "ci")
    assert words(tool(*start)) == (0, f"machine 'ci' started: {size}", "")
    assert words(tool(*start)) == (0, f"machine 'ci' is already running: {size}", "")
    assert tool("neurond", "list").stdout.splitlines()[1].split()[:4] == ["ci", "trn1.32xlarge", "16", "32"]
    assert words(tool("neurond", "restart", "--machine", "ci")) == (0, f"machine 'ci' restarted: {size}", "")
    assert words(tool("neurond", "stop", "--machine", "ci")) == (0, f"machine 'ci' stopped: {size}", "")
    assert tool("neurond", "list").stdout == "NAME  INSTANCE  DEVICES  CORES  PID  UP\n"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["status"], 3, "error: no machine 'default' is running\nhint: start it: neurond start\n"),
        (
            ["stop", "--machine", "x"],
            3,
            "error: no machine 'x' is running\nhint: start it: neurond start --machine x\n",
        ),
        (["start", "--machine", "a/b"], 2, "error: invalid machine name 'a/b': "),
        (["start", "--machine", ""], 2, "error: invalid machine name '': "),
        (
            ["start", "--instance", "trn1"],
            2,
            "error: unknown instance type 'trn1'\nhint: the known types are ",
        ),
        (
            ["start", "--instance", "trn2.48xlarge", "--lnc", "3"],
            1,
            "error: logical NeuronCore configuration 3",
        ),
        (["start", "--lnc", "two"], 2, "error: argument --lnc: invalid int value: 'two'\n"),
        (["dance"], 2, "error: unknown command 'dance'\nhint: see 'neurond --help' for the commands\n"),
        ([], 2, "error: no command given\n"),
        (["logs"], 1, "error: no log at "),
    ],
)
def test_what_can_not_be_done_says_why_and_what_to_do(
    tool: Tool, arguments: list[str], code: int, error: str
) -> None:
    done = tool("neurond", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(error)


def test_status_shows_the_machine_and_its_processes(
    tool: Tool, daemon: DaemonInfo, worker: Callable[[], Any]
) -> None:
    job = worker()
    job.do("register", cores=[0, 1])
    job.do("reserve", core=0, total_bytes=1 << 30)
    rows = dict(line.split(maxsplit=1) for line in tool("neurond", "status").stdout.splitlines())
    assert rows["devices"] == "16, 512 GiB of memory, 1.00 GiB reserved"
    assert rows["cores"] == "2 of 32 claimed"
    assert rows["process"] == f"{job.pid} python job.py (2 cores)"
    assert rows["ends"] == "with neurond stop"
    assert rows["socket"] == daemon.socket
    done = tool("neurond", "stop")
    assert done.returncode == 4
    assert f"process {job.pid} holds cores 0-1" in done.stderr
    assert "--force" in done.stderr


def test_status_lets_no_command_line_write_to_the_terminal(tool: Tool, client: Client) -> None:
    client.register("", "python -c \x1b[2J\nprint(1)" + "x" * 100, count=1)
    (row,) = [line for line in tool("neurond", "status").stdout.splitlines() if line.startswith("process")]
    assert row.endswith("python -c \\u001b[2J\\nprint(1).." + "x" * 29 + " (1 core)")


def test_json_is_the_same_everywhere(tool: Tool) -> None:
    started = json.loads(tool("neurond", "start", "--instance", "trn2.48xlarge", "--json").stdout)
    assert (started["lnc"], started["core_count"], started["was_running"]) == (2, 64, False)
    (listed,) = json.loads(tool("neurond", "list", "--json").stdout)
    status = json.loads(tool("neurond", "status", "--json").stdout)
    assert started == listed == status["daemon"]
    assert convert(status["machine"], Snapshot).instance_type == "trn2.48xlarge"
    assert json.loads(tool("neurond", "stop", "--json").stdout)["pid"] == started["pid"]
    assert json.loads(tool("neurond", "list", "--json").stdout) == []


def test_the_log_is_there_after_the_end(tool: Tool) -> None:
    tool("neurond", "start")
    tool("neurond", "stop")
    logged = tool("neurond", "logs").stdout.splitlines()
    assert "is ready" in logged[0]
    assert logged[-1].endswith("machine default ends")


def test_a_log_is_not_followed_for_a_reader_that_went_away(daemon: DaemonInfo) -> None:
    command = [str(Path(sys.executable).parent / "neurond"), "logs", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stdout
        assert follower.stderr
        assert "is ready" in follower.stdout.readline()
        follower.stdout.close()
        assert follower.wait(20) == 0
        assert follower.stderr.read() == ""


def test_a_log_that_was_renamed_is_followed_until_it_has_a_successor(home: Path) -> None:
    directory = MachineDirectory("default")
    directory.make()
    log = Path(directory.log)
    log.write_text("first\n")

    def write_late() -> None:
        with open(f"{log}.1", "a") as renamed:
            renamed.write("late\n")

    steps = iter(
        [
            lambda: log.rename(f"{log}.1"),
            write_late,
            lambda: log.write_text("second\n"),
            lambda: shutil.rmtree(log.parent),
        ]
    )
    assert list(lines(follow=True, pause=lambda _: next(steps)())) == ["first", "late", "second"]
    assert list(steps) == []


def test_the_log_is_followed_as_it_grows_and_across_rotation(tool: Tool, daemon: DaemonInfo) -> None:
    command = [str(Path(sys.executable).parent / "neurond"), "logs", "-f"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as follower:
        assert follower.stdout
        assert "is ready" in follower.stdout.readline()
        os.rename(daemon.log, daemon.log + ".1")
        Path(daemon.log).write_text("after rotation\n")
        assert follower.stdout.readline() == "after rotation\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130


def test_a_foreground_machine_stays_and_ends_with_an_interrupt() -> None:
    command = [
        str(Path(sys.executable).parent / "neurond"),
        "start",
        "--foreground",
        "--instance",
        "inf2.xlarge",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr
        assert "machine default (inf2.xlarge) is ready" in daemon.stderr.readline()
        from neurontools.machine import launch

        assert [info.pid for info in launch.list_machines()] == [daemon.pid]
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(20) == 0


def test_help_has_examples(tool: Tool) -> None:
    done = tool("neurond", "--help")
    assert done.returncode == 0
    assert "neurond start --instance trn1.32xlarge" in done.stdout
    assert {"start", "status", "stop", "restart", "list", "logs"} <= set(done.stdout.split())
    assert build_parser().prog == "neurond"
