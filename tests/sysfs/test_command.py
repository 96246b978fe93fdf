"""`neurontools sysfs` as people call it: real daemons, real writes, real ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.pages.page import PageWriter
from tests.support.waiting import wait_until

PROGRAM = [str(Path(sys.executable).parent / "neurontools"), "sysfs"]
DEVICE = "sys/class/neuron_device/neuron0"
ECC = f"{DEVICE}/stats/hardware/mem_ecc_uncorrected"


@pytest.fixture
def machine():
    return launch.start(StartOptions("default", "trn1.2xlarge"))


@pytest.fixture
def watching(home):
    """Start `sysfs export --watch` and wait until the tree is whole."""
    started = []

    def start(*words):
        command = [*PROGRAM, "export", str(home / "mirror"), "--watch", "--interval", "0.05", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def becomes(path, text):
    """Wait until a file has a text."""

    def has_text():
        with suppress(OSError):
            return path.read_text() == text

    wait_until(has_text)


def ended(process):
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def test_export_writes_the_tree_once(machine, tool, home):
    run = tool("neurontools", "sysfs", "export", "mirror")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "mirror: trn1.2xlarge, 1 device, 258 files, 258 written\n"
    assert (home / "mirror" / DEVICE / "info/architecture/device_name").read_text() == "Trainium1\n"
    again = tool("neurontools", "sysfs", "export", "mirror", "--json")
    assert json.loads(again.stdout) == {
        "path": "mirror",
        "machine": "default",
        "instance_type": "trn1.2xlarge",
        "device_count": 1,
        "file_count": 258,
        "written_count": 258,
    }


def test_export_refuses_what_is_not_its_own(machine, tool, home):
    (home / "thesis").mkdir()
    (home / "thesis" / "chapter1").write_text("x")
    run = tool("neurontools", "sysfs", "export", "thesis")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        "error: thesis is neither empty nor a sysfs mirror\nhint: choose an empty or a new directory\n"
    )
    assert os.listdir(home / "thesis") == ["chapter1"]


def test_without_a_machine_nothing_is_made(tool, home):
    run = tool("neurontools", "sysfs", "export", "mirror")
    assert run.returncode == 3
    assert not (home / "mirror").exists()


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "99999"])
def test_an_interval_out_of_range_is_a_usage_error(tool, interval):
    run = tool("neurontools", "sysfs", "export", "mirror", "--watch", f"--interval={interval}")
    assert run.returncode == 2
    assert "--interval" in run.stderr


def test_watching_shows_what_happens_and_resets(machine, watching, tool, home):
    process, first = watching()
    assert first == f"{home}/mirror: trn1.2xlarge, 1 device, 258 files, 258 written\n"
    counter = home / "mirror" / ECC
    with Client.connect() as client:
        client.call("count_hardware", device=0, counter="mem_ecc_uncorrected", amount=7)
        becomes(counter, "7\n")
        run = tool("neurontools", "sysfs", "reset")
        assert (run.returncode, run.stdout, run.stderr) == (0, "counters reset on 1 device\n", "")
        assert client.snapshot().devices[0].hardware.mem_ecc_uncorrected == 0
        becomes(counter, "0\n")
        client.call("count_hardware", device=0, counter="mem_ecc_uncorrected")
        becomes(counter, "1\n")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "", "")


def test_a_reset_zeroes_the_counters_of_the_chosen_device_alone(tool):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    with Client.connect() as client:
        for device in (0, 1):
            client.call("count_hardware", device=device, counter="sram_ecc_uncorrected", amount=2)
    run = tool("neurontools", "sysfs", "reset", "--device", "1", "--json")
    assert json.loads(run.stdout) == {"devices": [1]}
    shown = tool(
        "neurontools", "sysfs", "show", "neuron[01]/stats/hardware/sram_ecc_uncorrected", "--json"
    ).stdout
    assert list(json.loads(shown).values()) == ["2\n", "0\n"]


def test_executions_count_from_the_reset(machine, tool):
    path = "neuron0/neuron_core0/stats/other_info/inference_count/total"
    with Client.connect() as client:
        registered = client.register(command="python job.py", count=1)
        page = PageWriter(registered.page_fd)
        _execute(page, 5)
        assert tool("neurontools", "sysfs", "show", path).stdout == "5\n"
        tool("neurontools", "sysfs", "reset")
        assert tool("neurontools", "sysfs", "show", path).stdout == "0\n"
        _execute(page, 2)
        assert tool("neurontools", "sysfs", "show", path).stdout == "2\n"
        page.close()
        client.unregister()


def _execute(page, times):
    for _ in range(times):
        page.begin(0, 0)
        page.end(0, 0, 1_000, 1, 0)


def test_a_reset_of_an_unknown_device_is_an_error(machine, tool):
    run = tool("neurontools", "sysfs", "reset", "--device", "9")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: no device 9\nhint: this machine has device 0 only\n"
    assert tool("neurontools", "sysfs", "reset", "--device", "-1").returncode == 2


def test_a_machine_that_it_starts_is_not_a_warning(monkeypatch, watching):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    process, _ = watching()
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "", "")


def test_ctrl_c_ends_it(machine, watching, home, tool):
    process, _ = watching()
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "")
    assert tool("neurontools", "sysfs", "export", "mirror").returncode == 0


def test_a_killed_daemon_is_waited_for(machine, watching, home):
    process, _ = watching()
    os.kill(machine.pid, signal.SIGKILL)
    assert process.stderr is not None
    assert process.stderr.readline() == "warning: machine not running, waiting for it\n"
    launch.start(StartOptions("default", "trn1.2xlarge"))
    assert process.stderr.readline() == "warning: the machine is back\n"
    with Client.connect() as client:
        client.call("count_hardware", device=0, counter="mem_ecc_uncorrected", amount=3)
    becomes(home / "mirror" / ECC, "3\n")


def test_a_machine_of_another_type_under_the_name_replaces_the_tree(machine, watching, home):
    process, _ = watching()
    launch.stop("default")
    assert process.stderr is not None
    process.stderr.readline()
    launch.start(StartOptions("default", "inf2.24xlarge"))
    becomes(home / "mirror/sys/devices/virtual/dmi/id/product_name", "inf2.24xlarge\n")
    becomes(home / "mirror/sys/class/neuron_device/neuron5/info/architecture/arch_type", "NDv3\n")


@pytest.mark.parametrize("running", [True, False])
def test_a_deleted_directory_ends_it_with_one_line(machine, watching, home, running):
    process, _ = watching()
    if not running:
        launch.stop("default")
        assert process.stderr is not None
        process.stderr.readline()
    shutil.rmtree(home / "mirror", ignore_errors=True)
    shutil.rmtree(home / "mirror", ignore_errors=True)
    code, _, err = ended(process)
    assert code == 1
    assert f"error: {home}/mirror was deleted or replaced: the mirror stops\n" in err


def test_two_exporters_on_one_directory(machine, watching, tool, home):
    process, _ = watching()
    run = tool("neurontools", "sysfs", "export", "mirror")
    assert run.returncode == 1
    assert f"mirror is kept current by another process (pid {process.pid})" in run.stderr


def test_a_killed_exporter_leaves_a_directory_that_can_go_on(machine, watching, tool, home):
    process, _ = watching()
    process.kill()
    process.wait()
    assert tool("neurontools", "sysfs", "export", "mirror").returncode == 0


def test_show_prints_a_file_as_it_is(machine, tool):
    assert tool("neurontools", "sysfs", "show", "neuron0/core_count").stdout == "2\n"
    path = "/sys/class/neuron_device/neuron0/info/architecture/arch_type"
    assert tool("neurontools", "sysfs", "show", path).stdout == "NDv2\n"
    assert tool("neurontools", "sysfs", "show", "/proc/devices").stdout.startswith("Character devices:\n")


def test_show_prints_many_files_with_their_paths(machine, tool):
    lines = tool("neurontools", "sysfs", "show", "neuron0/info").stdout.splitlines()
    assert len(lines) == 5
    assert lines[0] == "/sys/devices/virtual/neuron_device/neuron0/info/architecture/arch_type: NDv2"
    found = json.loads(tool("neurontools", "sysfs", "show", "neuron*/core_count", "--json").stdout)
    assert found == {"/sys/devices/virtual/neuron_device/neuron0/core_count": "2"}


def test_show_says_when_there_is_no_such_file(machine, tool):
    run = tool("neurontools", "sysfs", "show", "neuron9/core_count")
    assert (run.returncode, run.stdout) == (1, "")
    assert "no file 'neuron9/core_count' in the tree" in run.stderr
