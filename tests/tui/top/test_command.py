"""neuron-top as a command: in a pipe, with a daemon, and in a real terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.machine import launch
from neurontools.machine.launch import StartOptions
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from neurontools.machine.pages.page import PageWriter

Tool = Callable[..., subprocess.CompletedProcess[str]]
PATIENCE_S = 30.0
ENTER_SCREEN = b"\x1b[?1049h"


def test_in_a_pipe_it_prints_one_screen_and_says_why(tool: Tool, machine: launch.DaemonInfo) -> None:
    done = tool("neuron-top", "--interval", "0.1")
    assert done.returncode == 0
    assert re.match(r" sim:default +neuron-top \S+ running on i-\w{17} \(trn1\.32xlarge\)\n", done.stdout)
    assert [f" ND{index}" in done.stdout for index in range(16)] == [True] * 16
    assert "\x1b" not in done.stdout
    assert done.stderr.startswith("warning: not a terminal")
    assert done.stderr.count("\n") == 1


def test_once_shows_what_a_process_really_does(tool: Tool, working: PageWriter) -> None:
    done = tool("neuron-top", "--once", "--interval", "0.3")
    assert (done.returncode, done.stderr) == (0, "")
    row = next(line for line in done.stdout.splitlines() if line.startswith(" ND1 "))
    idle, busy = re.findall(r"\[ ?([\d.]+)%\]", row)
    assert float(idle) == 0.0
    assert 50 < float(busy) <= 100
    tree = [line.split() for line in done.stdout.splitlines() if "3.0GB" in line]
    assert ["[-]", "ND", "1", "3.0GB", "0.0B"] in tree
    assert ["Tensors", "3.0GB", "0.0B"] in tree


def test_it_shows_the_machine_that_is_named(tool: Tool, machine: launch.DaemonInfo) -> None:
    launch.start(StartOptions(machine="ci", instance_type="inf2.xlarge"))
    done = tool("neuron-top", "--once", "--interval", "0.1", "--machine", "ci")
    assert "(inf2.xlarge)" in done.stdout


def test_without_a_machine_it_says_so_in_one_line(tool: Tool) -> None:
    done = tool("neuron-top", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: no machine 'default'")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bogus",),
        ("extra",),
        ("--interval", "0"),
        ("--interval", "nan"),
        ("--interval", "-3"),
        ("--interval", "1e9"),
        ("--interval", "soon"),
        ("--machine",),
        ("--once", "--machine", "../../etc"),
    ],
)
def test_invalid_input_is_refused(tool: Tool, arguments: tuple[str, ...]) -> None:
    done = tool("neuron-top", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_examples_and_needs_no_textual() -> None:
    code = (
        "import sys; from neurontools.commands import top\n"
        "try: top.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(name.split('.')[0] in {'textual', 'rich', 'psutil', 'torch'} for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "neuron-top --once" in done.stdout


def test_one_screen_needs_no_textual(machine: launch.DaemonInfo) -> None:
    code = (
        "import sys; from neurontools.commands import top\n"
        "assert top.main(['--once', '--interval', '0.1']) == 0\n"
        "sys.exit(any(name.split('.')[0] in {'textual', 'torch', 'asyncio'} for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert " ND15 " in done.stdout


def test_live_it_starts_takes_keys_and_leaves_the_terminal_as_it_was(
    terminal: Callable[..., Any], working: PageWriter
) -> None:
    shown = terminal("--interval", "0.2")
    shown.read_until("trn1.32xlarge")
    shown.read_until("100%")
    shown.press("2")
    shown.read_until("of busy-job")
    shown.press("f")
    shown.read_until("total")
    shown.quit()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGINT, 130),
        (signal.SIGQUIT, 131),
        (None, 130),
    ],
    ids=["TERM", "HUP", "INT", "QUIT", "ctrl-c"],
)
def test_however_it_ends_the_terminal_is_restored(
    terminal: Callable[..., Any], number: signal.Signals | None, code: int
) -> None:
    shown = terminal(size=(80, 24))
    shown.read_until("trn1.32xlarge")
    if number is None:
        shown.press("\x03")
    else:
        shown.process.send_signal(number)
    assert shown.exit_code() == code
    assert shown.is_restored()


def test_a_signal_that_comes_while_it_starts_restores_the_terminal_too(terminal: Callable[..., Any]) -> None:
    shown = terminal()
    shown.read_until_bytes(ENTER_SCREEN)
    shown.process.send_signal(signal.SIGTERM)
    assert shown.exit_code() == 143
    assert shown.is_restored()


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("interval", ["0.1", "5"])
def test_it_ends_when_its_terminal_is_gone(
    terminal: Callable[..., Any], controls: bool, interval: str
) -> None:
    shown = terminal("--interval", interval, controls=controls)
    shown.read_until("trn1.32xlarge")
    shown.hang_up()
    assert shown.process.wait(timeout=PATIENCE_S) == 129


def test_it_ends_when_its_terminal_is_closed_while_it_is_stopped(terminal: Callable[..., Any]) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press("\x1a")
    assert shown.has_stopped()
    shown.hang_up()
    shown.process.send_signal(signal.SIGCONT)
    assert shown.process.wait(timeout=PATIENCE_S) == 129


def test_a_terminal_that_takes_nothing_does_not_keep_it_from_ending(terminal: Callable[..., Any]) -> None:
    shown = terminal("--interval", "0.1", size=(200, 60))
    shown.read_until("trn1.32xlarge")
    shown.press("phdeo" * 40)
    time.sleep(1)  # nothing tells that a writer waits
    shown.process.send_signal(signal.SIGTERM)
    assert shown.process.wait(timeout=PATIENCE_S) == 143


def test_a_terminal_that_takes_everything_again_gets_the_newest_screen(terminal: Callable[..., Any]) -> None:
    shown = terminal("--interval", "0.1", size=(200, 60))
    shown.read_until("trn1.32xlarge")
    shown.press("phdeo" * 40 + "p")
    time.sleep(1)
    shown.read_until("Processes (")
    shown.quit()


def test_it_may_get_any_size_while_it_runs(terminal: Callable[..., Any]) -> None:
    shown = terminal("--interval", "0.2")
    shown.read_until("trn1.32xlarge")
    for width, height in ((10, 3), (1, 1), (300, 100), (59, 15)):
        shown.resize(width, height)
        shown.press("po")
    shown.read_until("has 59x15")
    shown.resize(300, 100)
    shown.read_until("ND15 ")
    shown.quit()


def test_a_signal_to_continue_without_a_stop_changes_nothing(terminal: Callable[..., Any]) -> None:
    shown = terminal("--interval", "0.2")
    shown.read_until("trn1.32xlarge")
    for _ in range(3):
        shown.process.send_signal(signal.SIGCONT)
    shown.press("f")
    shown.read_until("total")
    shown.quit()


def test_ctrl_z_gives_the_terminal_back_and_fg_paints_all_of_it(terminal: Callable[..., Any]) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press("\x1a")
    assert shown.has_stopped()
    assert termios.tcgetattr(shown.slave) == shown.before
    shown.drain()
    shown.process.send_signal(signal.SIGCONT)
    whole = shown.read_until("q quit")
    assert all(f"ND{index} " in whole for index in range(16))
    shown.quit()


def test_the_daemon_may_die_and_come_back(terminal: Callable[..., Any], machine: launch.DaemonInfo) -> None:
    shown = terminal("--interval", "0.2")
    shown.read_until("trn1.32xlarge")
    os.kill(machine.pid, signal.SIGKILL)
    shown.read_until("machine not running, waiting for it")
    launch.start(StartOptions(machine="default", instance_type="trn1.32xlarge"))
    shown.read_until("data is back")
    launch.stop(force=True)
    shown.read_until("machine not running, waiting for it")
    assert launch.list_machines() == ()
    shown.press("x")
    shown.quit()


def test_a_daemon_that_crashed_is_replaced_and_a_stopped_daemon_is_not(
    terminal: Callable[..., Any], machine: launch.DaemonInfo
) -> None:
    shown = terminal("--interval", "0.2", NEURONTOOLS_AUTOSTART="1")
    shown.read_until("trn1.32xlarge")
    os.kill(machine.pid, signal.SIGKILL)
    assert not launch.has_crashed("other")
    wait_until(lambda: [new.pid for new in launch.list_machines()] not in ([], [machine.pid]))
    assert launch.list_machines()[0].instance_type == "trn1.32xlarge"
    assert not launch.has_crashed("default")
    launch.stop(force=True)
    shown.read_until("machine not running, waiting for it")
    assert launch.list_machines() == ()
    shown.quit()


def test_no_color_writes_no_colours(terminal: Callable[..., Any], working: PageWriter) -> None:
    shown = terminal("--interval", "0.2", NO_COLOR="1")
    shown.read_until("▇")
    shown.quit()
    codes = {
        code for found in re.findall(rb"\x1b\[([\d;]*)m", shown.output) for code in re.split(rb";", found)
    }
    assert codes <= {b"", b"0", b"1", b"2", b"4", b"7", b"39", b"49"}
