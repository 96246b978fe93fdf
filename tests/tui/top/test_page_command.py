"""The pages of neuron-top as a command: as text and JSON, in a real terminal, over a scenario's processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.machine.client import Client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.machine.pages.page import PageWriter

Tool = Callable[..., subprocess.CompletedProcess[str]]
Top = Tool
PAGES = ("overview", "history", "processes", "devices", "events")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_prints_as_text_and_as_json(top: Top, working: PageWriter, page: str) -> None:
    done = top("--once", "--interval", "0.1", "--page", page)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(trn1.32xlarge)" in done.stdout.splitlines()[0]
    assert "\x1b" not in done.stdout
    done = top("--once", "--interval", "0.1", "--page", page, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["page"], found["machine"], found["instance_type"]) == (page, "default", "trn1.32xlarge")


def test_the_numbers_of_the_json(top: Top, working: PageWriter) -> None:
    def page(name: str, *more: str) -> dict[str, object]:
        done = top("--once", "--json", "--interval", "0.2", "--page", name, *more)
        return json.loads(done.stdout)

    (row,) = page("processes")["processes"]
    assert (row["pid"], row["tag"], row["cores"], row["origin"]) == (os.getpid(), "busy-job", [2, 3], "live")
    assert 0.25 < row["utilization"] <= 0.5
    assert row["host_resident_bytes"] > 1 << 20
    assert page("processes", "--filter", "tag=other")["processes"] == []
    devices = page("devices")["devices"]
    assert [core["utilization"] > 0.5 for core in devices[1]["cores"]] == [False, True]
    overview = page("overview")
    assert overview["devices"][1]["cores"][1]["utilization"] > 0.5
    core = next(core for core in page("history")["cores"] if core["core"] == 3)
    assert core["utilization"]["minute"]["mean"][-1] > 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--page", "dvices"), "--page: unknown page 'dvices'"),
        (("--theme", "pink"), "--theme: unknown theme 'pink'"),
        (("--json",), "--json needs --once"),
        (("--speed", "2"), "--speed needs --replay"),
        (
            ("--once", "--machine", "a,b", "--page", "history"),
            "--once prints only the list of several machines",
        ),
        (("--once", "--filter", "pid~4"), "--filter 'pid~4': pid does not support '~'"),
        (("--exec-on-alert", "'"), "--exec-on-alert"),
        (("--exec-on-alert", ""), "--exec-on-alert needs a command"),
        (("--exec-on-alert", "no-such-command-here -x"), "command not found: 'no-such-command-here'"),
    ],
)
def test_invalid_input_is_refused(top: Top, arguments: tuple[str, ...], said: str) -> None:
    done = top(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_names_of_the_keys_are_listed_without_a_machine(top: Top) -> None:
    done = top("--list-keys")
    assert done.returncode == 0
    assert any(line.split() == ["quit", "q", "quit"] for line in done.stdout.splitlines())
    assert "processes.sort-utilization" in done.stdout


def test_pages_in_a_real_terminal(terminal: Callable[..., Any], working: PageWriter) -> None:
    shown = terminal("--interval", "0.2", "--page", "processes", size=(150, 40))
    shown.read_until("busy-job")
    shown.press("\x1bOQ")
    shown.read_until("last minute")
    shown.press("v")
    shown.read_until("HBM")
    shown.press("t")
    shown.read_until("Links")
    shown.press("e")
    shown.read_until("Alerts")
    shown.press("p")
    shown.read_until("busy-job")
    shown.press("/")
    shown.read_until("filter (like neuron-ls")
    shown.press("tag=none\r")
    shown.read_until("no process matches the filter")
    shown.quit()


def test_an_unknown_theme_and_key_in_the_config_are_named_on_the_screen(
    terminal: Callable[..., Any], machine: object
) -> None:
    directory = os.path.join(os.environ["XDG_CONFIG_HOME"], "neurontools")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.yaml"), "w") as file:
        file.write("top:\n  theme: lihgt\n  page: devices\n  keys: {quit: Q, nonsense: z}\n")
    shown = terminal("--interval", "0.2", size=(150, 40))
    text = shown.read_until("--list-keys")
    assert "unknown theme 'lihgt'; did you mean 'light'?" in text
    shown.quit("qQ")


def test_a_machine_in_trouble_runs_the_command(
    terminal: Callable[..., Any], tool: Tool, machine: object, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    code = f"import os; open({str(said)!r}, 'a').write(os.environ['NEURONTOOLS_ALERT_TEXT'] + chr(10))"
    script = tmp_path / "alert.py"
    script.write_text(code)
    shown = terminal(
        "--interval",
        "0.2",
        "--page",
        "events",
        "--exec-on-alert",
        f"{sys.executable} {script}",
        size=(120, 40),
    )
    shown.read_until("no events")
    done = tool("neurontools", "fault", "inject", "device-lost", "--device", "3")
    assert done.returncode == 0, done.stderr
    shown.read_until("ND3 is lost")
    wait_until(lambda: said.exists() and said.read_text() == "ND3 is lost\n")
    shown.quit()


def test_a_command_that_went_away_is_named_on_the_screen(
    terminal: Callable[..., Any], tool: Tool, machine: object, tmp_path: Path
) -> None:
    script = tmp_path / "alert"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    shown = terminal("--interval", "0.2", "--exec-on-alert", str(script), size=(160, 40))
    shown.read_until("trn1.32xlarge")
    script.unlink()
    assert tool("neurontools", "fault", "inject", "device-lost", "--device", "3").returncode == 0
    shown.read_until("No such file or directory")
    shown.quit()


def test_synthetic_processes_count_as_users_of_the_vcpus(top: Top, machine: object) -> None:
    done = subprocess.Popen(
        [os.path.join(os.path.dirname(sys.executable), "neurontools"), "scenario", "play", "training-32"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with Client.connect() as client:
            wait_until(lambda: sum(process.uses_device for process in client.snapshot().processes) >= 32)
        found = json.loads(top("--once", "--json", "--interval", "1").stdout)
        runtime = found["vcpus"]["runtime"]
        assert runtime["user"] + runtime["system"] > 0
    finally:
        done.terminate()
        done.communicate(timeout=600)
