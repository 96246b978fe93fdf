"""neuron-ls and a real daemon: everything a user does with it."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurontools import paths
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.listing.text import render
from tests.support.waiting import wait_until
from tests.tui.terminal import read_to_end

NEURON_LS = str(Path(sys.executable).parent / "neuron-ls")
HOLDER = """
import sys
from neurontools.machine.client import Client
client = Client.connect()
cores = tuple(int(core) for core in sys.argv[1].split(",")) if sys.argv[1] else None
client.register(tag="t", command=sys.argv[2], uses_device=cores is not None, cores=cores, count=None,
                runtime_version=sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
"""


def start(instance, name="default", lnc=None):
    return launch.start(launch.StartOptions(machine=name, instance_type=instance, lnc=lnc))


@contextmanager
def holder(cores, command, version="2.34.10"):
    """A process that claims cores until the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, cores, command, version],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("words", [[], ["-j"], ["-wt"], ["--csv", "--device=3,5-6"], ["-j", "--device", "0"]])
def test_the_tool_prints_what_the_renderer_makes_of_the_daemons_snapshot(tool, words):
    start("trn1.32xlarge")
    with Client.connect() as client:
        code, out, err = render(client.snapshot(), words, "2.32")
    run = tool("neuron-ls", *words)
    assert (run.returncode, run.stdout.encode(), run.stderr.encode()) == (code, out, err)
    assert run.returncode == 0


def test_processes_come_and_go(tool):
    start("trn1.2xlarge")
    with holder("0", "python train.py") as first, holder("1", "python eval.py") as second:
        rows = json.loads(tool("neuron-ls", "-j").stdout)[0]["neuron_processes"]
        assert {(row["pid"], row["command"]) for row in rows} == {
            (first.pid, "python train.py"),
            (second.pid, "python eval.py"),
        }
        assert "python train.py" in tool("neuron-ls").stdout
        first.send_signal(signal.SIGKILL)
        first.wait()
        wait_until(lambda: len(json.loads(tool("neuron-ls", "-j").stdout)[0]["neuron_processes"]) == 1)
    wait_until(lambda: "COMMAND" not in tool("neuron-ls").stdout)


def test_who_only_looks_on_is_shown_with_all_procs(tool):
    start("inf2.24xlarge")
    with holder("", "neuron-monitor", "") as monitor:
        assert str(monitor.pid) not in tool("neuron-ls", "-j").stdout
        devices = json.loads(tool("neuron-ls", "-a", "-j", "--filter", f"pid={monitor.pid}").stdout)
        row = {"pid": monitor.pid, "command": "neuron-monitor", "neuron_runtime_version": "NA"}
        assert [device["neuron_processes"] for device in devices] == [[row]] * 6


def test_with_all_procs_it_lists_itself_as_the_real_tool_does():
    start("inf2.24xlarge")
    with subprocess.Popen([NEURON_LS, "-aj"], stdout=subprocess.PIPE) as process:
        devices = json.loads(process.communicate()[0])
    itself = {"pid": process.pid, "command": "neuron-ls -aj", "neuron_runtime_version": "NA"}
    assert [device["neuron_processes"] for device in devices] == [[itself]] * 6


def test_the_release_can_be_chosen(tool, monkeypatch):
    start("trn2.48xlarge", lnc=1)
    monkeypatch.setenv("NEURONTOOLS_EMULATE", "2.28")
    device = json.loads(tool("neuron-ls", "-j").stdout)[0]
    assert next(iter(device)) == "neuron_device"
    assert (device["nc_count"], device["logical_neuroncore_config"]) == (8, 1)
    monkeypatch.setenv("NEURONTOOLS_EMULATE", "3.0")
    run = tool("neuron-ls")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: cannot emulate release '3.0' of the tools\n")


def test_a_hundred_at_once_all_get_the_same(make):
    start("trn1.32xlarge")
    with holder("0,1,5", "python train.py"):
        with Client.connect() as client:
            expected = render(client.snapshot(), ["-j"], "2.32")[1]
        asking = [
            subprocess.Popen([NEURON_LS, "-j"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(100)
        ]
        said = [(*process.communicate(), process.returncode) for process in asking]
    assert set(said) == {(expected, b"", 0)}


def test_the_first_call_starts_the_machine_and_says_nothing_into_a_pipe(tool, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.setenv("NEURONTOOLS_INSTANCE", "inf2.xlarge")
    run = tool("neuron-ls")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("instance-type: inf2.xlarge\n")
    assert tool("neuron-ls").stdout == run.stdout


def test_a_deleted_runtime_directory_of_a_living_machine_is_made_again_though_nothing_may_be_started(tool):
    info = start("inf2.xlarge")
    before = tool("neuron-ls")
    os.rename(paths.runtime_dir(), paths.runtime_dir() + "-gone")
    shutil.rmtree(paths.runtime_dir() + "-gone")
    assert os.environ["NEURONTOOLS_AUTOSTART"] == "0"
    run = tool("neuron-ls")
    assert (run.returncode, run.stdout, run.stderr) == (0, before.stdout, "")
    assert [found.pid for found in launch.list_machines()] == [info.pid]


def test_several_first_calls_start_one_machine(tool, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: tool("neuron-ls"), range(4)))
    assert {(run.returncode, run.stdout, run.stderr) for run in runs} == {(0, runs[0].stdout, "")}
    assert len(launch.list_machines()) == 1


def test_on_a_terminal_the_first_call_says_once_that_it_started_a_machine(monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    assert "started machine 'default' (trn1.2xlarge)" in on_terminal()
    assert on_terminal() == ""


def on_terminal():
    """What neuron-ls writes to a terminal's stderr."""
    main, side = pty.openpty()
    run = subprocess.run([NEURON_LS], stdout=subprocess.DEVNULL, stderr=side, check=True)
    assert run.returncode == 0
    os.close(side)
    said = read_to_end(main)
    os.close(main)
    return said.decode()


def test_an_unknown_instance_type_is_an_error_with_the_nearest(tool, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.setenv("NEURONTOOLS_INSTANCE", "trn1.2xlage")
    run = tool("neuron-ls")
    assert run.returncode != 0
    assert run.stdout == ""
    assert "unknown instance type 'trn1.2xlage'" in run.stderr
    assert "did you mean 'trn1.2xlarge'?" in run.stderr
    assert "Traceback" not in run.stderr


def test_after_kill_9_of_the_daemon_the_next_call_is_right_again(tool, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    daemon = start("inf2.48xlarge")
    with holder("4,5", "./a.out") as process:
        before = tool("neuron-ls").stdout
        assert str(process.pid) in before
        os.kill(daemon.pid, signal.SIGKILL)
        assert tool("neuron-ls").stdout == before


def test_another_machine_by_its_flag(tool):
    start("trn1.2xlarge")
    start("inf2.xlarge", "ci")
    assert tool("neuron-ls").stdout.startswith("instance-type: trn1.2xlarge\n")
    for words in (["--machine", "ci"], ["--machine=ci"], ["-w", "--machine", "ci", "-a"]):
        assert tool("neuron-ls", *words).stdout.startswith("instance-type: inf2.xlarge\n")
    assert tool("neuron-ls", "--machine", "other").returncode == 3


def test_csv_has_a_line_for_every_process(tool):
    start("inf2.48xlarge")
    command = 'python -c "import a, b" ' + "x" * 100
    with holder("0,1,2", command) as process:
        rows = list(csv.DictReader(io.StringIO(tool("neuron-ls", "--csv").stdout)))
    assert [row["neuron_device"] for row in rows] == [str(device) for device in range(12)]
    assert [(row["pid"], row["command"]) for row in rows[:3]] == [(str(process.pid), command)] * 2 + [
        ("", "")
    ]
    assert (rows[1]["connected_to"], rows[1]["neuroncore_ids"], rows[1]["nc_count"]) == ("0 2", "2 3", "2")


def test_a_device_that_does_not_exist_is_an_error(tool):
    start("inf2.24xlarge")
    run = tool("neuron-ls", "--device", "6")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: no device 6\nhint: this machine has devices 0-5\n"


def test_the_hint_on_a_machine_with_one_device_does_not_sound_like_none(tool):
    start("trn1.2xlarge")
    assert tool("neuron-ls", "--device", "1").stderr.endswith("hint: this machine has device 0 only\n")


def test_watching_prints_a_line_of_json_whenever_something_changed():
    start("trn1.2xlarge")
    with subprocess.Popen(
        [NEURON_LS, "-j", "--watch", "--interval", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())[0]["neuron_processes"] == []
        with holder("0", "python train.py") as process:
            assert json.loads(watching.stdout.readline())[0]["neuron_processes"][0]["pid"] == process.pid
        assert json.loads(watching.stdout.readline())[0]["neuron_processes"] == []
        watching.send_signal(signal.SIGINT)
        assert watching.communicate() == ("", "")
        assert watching.returncode == 130


def test_watching_ends_when_it_cannot_write():
    start("trn1.2xlarge")
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [NEURON_LS, "--watch", "--interval=0.05"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
    assert (run.returncode, run.stderr) == (1, "error: cannot write the output: No space left on device\n")


IMPATIENT = "from neurontools.commands.ls import forms, main; forms.RESTART_S = 0.2; raise SystemExit(main())"


def test_watching_ends_when_the_machine_does():
    start("trn1.2xlarge")
    with subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "--watch", "--interval=0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "instance-type: trn1.2xlarge\n"
        launch.stop()
        assert watching.wait() == 1
        assert watching.stderr is not None
        assert watching.stderr.read().endswith('error="failed to discover Neuron devices"\n')


@contextmanager
def watcher(*words):
    """A neuron-ls that watches until the end of the block, which reads its lines of JSON."""
    with subprocess.Popen(
        [NEURON_LS, "-j", "--watch", "--interval=0.05", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        yield lambda: json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        assert watching.communicate()[1] == ""
        assert watching.returncode == 130


def test_watching_goes_on_when_the_runtime_directory_was_deleted():
    start("trn1.2xlarge")
    with watcher() as frame:
        assert frame()[0]["neuron_processes"] == []
        os.rename(paths.runtime_dir(), paths.runtime_dir() + "-gone")
        shutil.rmtree(paths.runtime_dir() + "-gone")
        wait_until(lambda: os.path.exists(paths.socket_path("default")))  # the watcher knocked
        with holder("0", "python train.py") as process:
            assert frame()[0]["neuron_processes"][0]["pid"] == process.pid


def test_watching_goes_on_through_a_restart_of_the_daemon():
    start("trn1.2xlarge")
    with watcher("--filter=state=busy", "--owner=me") as frame:
        assert frame() == []
        launch.restart()
        with holder("0", "python train.py") as process:
            assert frame()[0]["neuron_processes"][0]["pid"] == process.pid
        assert frame() == []


def test_watching_replaces_a_daemon_that_was_killed(monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    daemon = start("trn1.2xlarge")
    with holder("0", "python train.py") as process, watcher() as frame:
        assert frame()[0]["neuron_processes"][0]["pid"] == process.pid
        os.kill(daemon.pid, signal.SIGKILL)
        wait_until(lambda: [info.pid for info in launch.list_machines()] not in ([], [daemon.pid]))
        process.send_signal(signal.SIGKILL)
        assert frame()[0]["neuron_processes"] == []


def test_watching_ends_when_its_reader_goes():
    start("trn1.2xlarge")
    with subprocess.Popen(
        [NEURON_LS, "--watch", "--interval=3600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "instance-type: trn1.2xlarge\n"
        watching.stdout.close()
        assert watching.wait() == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == ""


def test_with_verbose_it_says_where_the_list_is_from(tool):
    start("trn1.2xlarge", "ci")
    run = tool("neuron-ls", "--verbose", "--machine=ci", "--source=sim", "-j")
    assert (run.returncode, run.stderr) == (0, "source: sim:ci\n")
    assert run.stdout == tool("neuron-ls", "--machine=ci", "-j").stdout


def test_colours_only_on_the_flag(tool, monkeypatch):
    start("trn1.2xlarge")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in tool("neuron-ls").stdout
    assert "\x1b[1m" in tool("neuron-ls", "--color").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in tool("neuron-ls", "--color").stdout
    assert "\x1b[1m" in tool("neuron-ls", "--color=always").stdout
    assert "\x1b[1m" in tool("neuron-ls", "--color", "always").stdout
    assert "\x1b" not in tool("neuron-ls", "--color", "never").stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--watch=1"], "bool flag `--watch' cannot have an argument"),
        (["--watch", "--interval=1e9"], "flag `--interval' expects 0.05 to 86400 seconds, not `1e9'"),
        (["--watch", "--interval", "0"], "flag `--interval' expects 0.05 to 86400 seconds, not `0'"),
        (["--interval", "1s"], "flag `--interval' needs `--watch'"),
        (["--device", "3-1"], "flag `--device' expects devices such as 0,2 or 0-3, not `3-1'"),
        (["--device"], "expected argument for flag `--device'"),
        (["--machine"], "expected argument for flag `--machine'"),
        (["--machine="], "expected argument for flag `--machine'"),
        (["--csv=1"], "bool flag `--csv' cannot have an argument"),
    ],
)
def test_wrong_values_of_our_flags_are_reported_like_wrong_flags(tool, words, text):
    run = tool("neuron-ls", *words)
    assert (run.returncode, run.stdout, run.stderr) == (1, f"{text}\n", "")
