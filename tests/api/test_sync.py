"""Machines for Python programs: start, connect, snapshot, watch, stop."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neurontools import machine
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError, UsageError
from neurontools.machine.api import StartChoices
from neurontools.machine.faults.params import FaultParams, FaultSpec
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.processes import wait_for_end


def test_a_machine_is_started_as_asked_for():
    with machine.start("trn2.48xlarge", name="big", lnc=1, visible_devices="13") as big:
        found = big.snapshot()
        assert (found.instance_type, found.lnc, len(found.devices)) == ("trn2.48xlarge", 1, 1)
        assert [info.machine for info in machine.list_machines()] == ["big"]
        assert big.name == "big"
        assert not big.info.was_running
    assert machine.list_machines() == ()


def test_a_machine_that_ran_before_goes_on_after_the_block(running):
    with machine.start(name="api") as again:
        assert again.info.was_running
    assert running.snapshot().machine == "api"
    with machine.connect("api") as connected:
        assert connected.info.pid == running.info.pid
    assert running.snapshot().machine == "api"


def test_a_machine_may_be_stopped_inside_of_the_block():
    with machine.start(name="short") as short:
        assert short.stop().machine == "short"
    assert machine.list_machines() == ()


def test_the_block_stops_a_machine_whose_cores_are_held(home):
    code = "import os; from neurontools.machine import Client; Client.connect('held').register(); os.write(1, b'x'); os.read(0, 1)"
    with (
        machine.start(name="held") as held,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user,
    ):
        assert user.stdout is not None
        assert user.stdout.read(1) == b"x"
        with pytest.raises(DaemonError, match="is in use"):
            held.stop()
        held.__exit__()
        assert machine.list_machines() == ()
        user.kill()


def test_connecting_starts_no_machine():
    with pytest.raises(NoMachineError, match="no machine 'nobody' is running"):
        machine.connect("nobody")
    assert machine.list_machines() == ()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: machine.start("trn9.large"), NeuronToolsError, "trn9.large"),
        (lambda: machine.start(name="../x"), UsageError, "invalid machine name"),
        (lambda: machine.start("trn1.2xlarge", lnc=2), NeuronToolsError, "configuration 2 does not exist"),
        (lambda: machine.start("trn1.2xlarge", cores=2), TypeError, "cores"),
        (
            lambda: machine.start("trn1.2xlarge", name="api"),
            DaemonError,
            "is trn1.32xlarge, not trn1.2xlarge",
        ),
    ],
)
def test_an_invalid_value_is_an_error(running, call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_watching_yields_at_once_and_goes_on(running):
    taken = []
    for snapshot in running.watch(0.05):
        taken.append(snapshot.taken_ns)
        if len(taken) == 3:
            break
    assert taken == sorted(set(taken))


def test_calls_and_watches_survive_the_daemon(running, end_daemon):
    stream = running.watch(0.05)
    first = next(stream)
    end_daemon("api")
    assert running.snapshot().instance_type == "trn1.32xlarge"
    assert next(found for found in stream if found.taken_ns > first.taken_ns).machine == "api"
    stream.close()


def test_a_private_machine_ends_with_its_process(home):
    code = (
        "import os\nfrom neurontools import machine\n"
        "with_it = machine.start(name='mine', private=True)\n"
        "os.write(1, str(with_it.info.pid).encode())\nos.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    wait_for_end(int(run.stdout), 600)
    assert machine.list_machines() == ()
    assert not (home / "run" / "mine").exists()
    assert not (home / "run" / "state" / "mine").exists()


def test_the_package_offers_its_names_and_nothing_else():
    for name in (
        "Client",
        "DaemonInfo",
        "Machine",
        "Snapshot",
        "aio",
        "connect",
        "list_machines",
        "start",
        "stop",
    ):
        assert name in dir(machine)
        assert getattr(machine, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'begin'"):
        _ = machine.begin


def test_the_package_loads_nothing_before_a_name_is_used():
    code = "import sys; import neurontools.machine; print(*sorted(name for name in sys.modules if name.startswith('neurontools')))"
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.split() == ["neurontools", "neurontools.machine"]


def test_every_choice_of_the_launcher_is_offered():
    offered = {*StartChoices.__annotations__} - {"name", "private"}
    assert offered | {"machine", "instance_type", "parent_pid", "foreground", "resume"} == {
        *StartOptions.__struct_fields__
    }


def test_private_means_this_process():
    with machine.start(name="mine", private=True) as mine:
        assert mine.info.parent_pid == os.getpid()


def test_faults_are_injected_listed_and_cleared(running):
    fault = running.inject("hang", core=3, after_executions=2)
    slow = running.inject("slow-core", core=4, factor=4.0)
    assert [each.kind for each in running.faults()] == ["hang", "slow-core"]
    assert (fault.spec.core, fault.spec.after_executions, slow.spec.factor) == (3, 2, 4.0)
    assert running.clear_faults(fault) == (fault.id,)
    assert running.clear_faults() == (slow.id,)
    assert running.faults() == ()


def test_a_device_is_reset(running):
    running.inject("ecc", device=1)
    running.reset_device(1)
    assert running.faults() == ()
    with pytest.raises(DaemonError, match="99"):
        running.reset_device(99)


def test_an_invalid_fault_is_refused(running):
    with pytest.raises(DaemonError, match="unknown kind 'hangg'") as caught:
        running.inject("hangg")
    assert caught.value.remedy == "did you mean 'hang'?"
    with pytest.raises(DaemonError):
        running.inject("hang", core=99)


def test_every_parameter_of_a_fault_is_an_argument():
    assert {*FaultParams.__annotations__} == {*FaultSpec.__struct_fields__} - {"kind"}
