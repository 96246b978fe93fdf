"""nccom-test and a real daemon: claims, what other tools see, and every way to end."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurontools.collectives.fabric import find_fabric
from neurontools.commands import nccom_test
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.instances.catalogue import instance_names

NCCOM_TEST = str(Path(sys.executable).parent / "nccom-test")
HOLDER = """
import sys
from neurontools.machine.client import Client
client = Client.connect()
client.register(command="holder", cores=(1,))
print("ready", flush=True)
sys.stdin.read()
"""
# Iterations last as long as the model says, so this line takes minutes.
LONG = ["-r", "2", "-b", "1GB", "-e", "1GB", "-n", "20000", "allr"]


@pytest.fixture
def machine():
    """A running trn1.2xlarge."""
    return launch.start(launch.StartOptions(machine="default", instance_type="trn1.2xlarge"))


@contextmanager
def running(*words):
    """A run of nccom-test that has claimed its cores, and a stream of snapshots."""
    environ = {**os.environ, "NEURONTOOLS_PACE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([NCCOM_TEST, *words], env=environ, text=True, **pipes) as process:
        try:
            with Client.connect() as client:
                seen = client.watch(0.05)
                next(one for one in seen if any(owner.pid == process.pid for owner in one.processes))
                yield process, seen
        finally:
            process.kill()


def owners():
    with Client.connect() as client:
        return [process.pid for process in client.snapshot().processes]


def test_a_run_prints_the_table_and_frees_the_cores(tool, machine):
    run = tool("nccom-test", "-r", "2", "allr")
    assert run.returncode == 0
    assert run.stdout.splitlines()[1].split()[:3] == ["33554432", "33554432", "uint8"]
    assert run.stderr == ""
    assert owners() == []


def test_the_umbrella_runs_it(tool, machine):
    one = tool("nccom-test", "-r", "2", "sendrecv")
    assert tool("neurontools", "nccom-test", "-r", "2", "sendrecv").stdout == one.stdout


def test_the_first_run_starts_the_machine(tool, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.setenv("NEURONTOOLS_INSTANCE", "trn2.3xlarge")
    run = tool("nccom-test", "-r", "4", "allg", "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["config"]["instance_type"] == "trn2.3xlarge"


def test_without_a_machine_it_says_what_the_real_tool_says(tool):
    run = tool("nccom-test", "-r", "2", "allr")
    assert run.returncode == 1
    assert run.stdout.startswith(
        "Neuron DKMS Driver is not running! Read the troubleshooting guide at: https://"
    )
    assert run.stdout.count("\n") == 1
    assert run.stderr == ""


@pytest.mark.parametrize("name", instance_names())
def test_every_instance_type_has_a_model(name, capsys):
    cores = find_fabric(name).core_count
    assert nccom_test.main(["--instance", name, "-r", str(cores), "allr"]) == 0
    assert float(capsys.readouterr().out.split("\t")[1].removesuffix("GB/s\n")) > 0.5


def test_other_tools_see_the_run(tool, machine):
    with running(*LONG) as (process, seen):
        counted = next(one for one in seen if any(core.executions for core in one.processes[0].cores))
        owner = counted.processes[0]
        assert [core.core for core in owner.cores] == [0, 1]
        assert owner.runtime_version == "2.34.10"
        assert "nccom-test -r 2" in owner.command
        assert f"| {process.pid} |" in " ".join(tool("neuron-ls").stdout.split())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, -15)]
)
def test_an_end_by_a_signal_frees_the_cores(machine, number, code):
    with running(*LONG) as (process, seen):
        process.send_signal(number)
        assert process.wait() == code
        assert next(one for one in seen if not one.processes)
        assert process.stdout.read() == ""


def test_an_interrupted_check_ends_with_130(machine):
    with running("-r", "2", "-c", "-n", "20000", "allr") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.stderr.read()


def test_a_killed_daemon_does_not_end_the_run(machine):
    with running("-r", "2", "-b", "1GB", "-e", "1GB", "-n", "40", "allr") as (process, _):
        os.kill(machine.pid, signal.SIGKILL)
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert "Avg bus bandwidth" in out


def test_a_busy_core_is_a_failure_with_a_log(tool, machine, home, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(home))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER], text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        run = tool("nccom-test", "-r", "2", "allr", "--report-to-json-file", "report.json")
        process.stdin.close()
    assert run.returncode == 1
    lines = run.stdout.splitlines()
    assert lines[0].startswith("size(B)")
    found = re.fullmatch(r"Failure running neuron-bench - log file (\S+/nccom_test_log_\w{8}\.log)", lines[1])
    assert found
    assert lines[2:] == ["1 errors found - test failed"]
    assert f"process {process.pid} holds core 1" in Path(found[1]).read_text()
    assert json.loads((home / "report.json").read_text())["results"] == []


def test_two_runs_share_a_machine_by_visible_cores(tool):
    launch.start(launch.StartOptions(machine="default", instance_type="inf2.24xlarge"))
    with running("-r", "4", *LONG[2:]) as (_, seen):
        assert [core.core for core in next(seen).processes[0].cores] == [0, 1, 2, 3]
        environ = {**os.environ, "NEURON_RT_VISIBLE_CORES": "4-11"}
        assert tool("nccom-test", "-r", "8", "allr", env=environ).returncode == 0
        assert tool("nccom-test", "-r", "8", "allr").returncode == 1


@pytest.mark.parametrize(
    ("instance", "visible", "line", "words"),
    [
        ("trn1.2xlarge", "1", "-r 2 allr", "trn1.2xlarge has 1 available"),
        ("trn1.2xlarge", "7", "-r 2 allr", "names cores that do not exist"),
        ("trn1.2xlarge", "x", "-r 2 allr", "is malformed"),
        ("trn1.32xlarge", "4-11", "-r 8 allr", "8 ranks cannot start at core 4"),
    ],
)
def test_visible_cores_that_do_not_fit(tool, monkeypatch, instance, visible, line, words):
    launch.start(launch.StartOptions(machine="default", instance_type=instance))
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", visible)
    run = tool("nccom-test", *line.split())
    assert (run.returncode, run.stdout) == (2, "")
    assert words in run.stderr


def test_another_configuration_than_the_machines_is_refused(tool):
    launch.start(launch.StartOptions(machine="default", instance_type="trn2.3xlarge", lnc=1))
    assert tool("nccom-test", "-r", "8", "allr").returncode == 0
    environ = {**os.environ, "NEURON_LOGICAL_NC_CONFIG": "2"}
    run = tool("nccom-test", "-r", "4", "allr", env=environ)
    assert run.returncode == 2
    assert "neurond start --instance trn2.3xlarge --lnc 2 --machine NAME" in run.stderr


def test_another_machine_by_name(tool, machine):
    launch.start(launch.StartOptions(machine="big", instance_type="trn1.32xlarge"))
    run = tool("nccom-test", "--machine", "big", "-r", "32", "allr", "--json")
    assert json.loads(run.stdout)["config"]["machine"] == "big"


def test_a_check_says_what_it_verified(tool, machine):
    run = tool(
        "nccom-test",
        "-r",
        "2",
        "-b",
        "1MB",
        "-e",
        "4MB",
        "-f",
        "4",
        "-c",
        "-d",
        "bf16",
        "--check-bytes",
        "9MB",
        "allr",
    )
    assert run.returncode == 0
    assert run.stderr.splitlines() == [
        "size 1048576: verified 2 of 2 ranks, 1048576 of 1048576 bytes each, mesh",
        "size 4194304: verified 2 of 2 ranks, 1048576 of 4194304 bytes each, mesh",
    ]


def test_a_wrong_result_fails_the_test(machine, monkeypatch, capsys):
    from neurontools.collectives import running as library
    from neurontools.collectives.checking import check

    def broken(*arguments, **settings):
        return check(*arguments, tamper=lambda step, transfer, piece, data: data ^ 1, **settings)

    monkeypatch.setattr(library, "check", broken)
    assert nccom_test.main(["-r", "2", "-b", "1kb", "-e", "2kb", "-f", "2", "--check", "allr"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "2 errors found - test failed"
    assert "size 1024: verified 0 of 2 ranks, 1024 of 1024 bytes each, mesh; wrong: rank 0, 1" in err
    assert owners() == []


def test_a_terminal_shows_that_times_are_modelled(machine):
    label = "modelled: times come from a cost model of trn1.2xlarge (LNC 1), not from hardware\r\n"
    assert _on_a_terminal(["-r", "2", "-b", "1kb", "-e", "1kb", "allr"]) == label


def test_help_says_that_times_are_modelled(tool):
    assert "Times and bandwidths are modelled" in tool("nccom-test", "--help").stdout


def test_a_long_run_shows_progress_on_a_terminal_only(machine):
    words = ["-r", "2", "-b", "1GB", "-e", "5GB", "-i", "1GB", "-n", "5", "-w", "1", "allr"]
    shown = _on_a_terminal(words)
    assert re.search(r"size \d+: \d of 5", shown)
    assert "size" not in _on_a_terminal([*words, "--non-interactive"])


def _on_a_terminal(words):
    master, slave = pty.openpty()
    environ = {**os.environ, "NEURONTOOLS_PACE": "1"}
    with subprocess.Popen(
        [NCCOM_TEST, *words], env=environ, stdout=subprocess.DEVNULL, stderr=slave
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            select.select([master], [], [])
            try:
                data = os.read(master, 1 << 16)
            except OSError:  # the terminal's other end is closed
                break
            shown += data
        assert process.wait() == 0
    os.close(master)
    return shown.decode()


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom neurontools.commands.nccom_test import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'yaml', 'psutil', 'rich', 'asyncio'} & set(sys.modules)\n"
        "sys.stderr.write(','.join(heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    base = subprocess.run(
        [sys.executable, "-c", "import sys; sys.stderr.write(','.join({'yaml', 'numpy'} & set(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stderr == base.stderr
    assert "examples:" in run.stdout


def test_a_run_without_a_check_does_not_load_numpy():
    code = (
        "import sys\nfrom neurontools.commands.nccom_test import main\n"
        "main('--instance trn1.2xlarge -r 2 allr'.split())\n"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
