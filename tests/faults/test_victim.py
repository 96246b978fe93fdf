"""What faults do to a real process on a real machine."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from neurontools.machine.faults.kinds import KINDS, FaultKind, Reach
from neurontools.runtime.status import NrtStatus
from tests.faults.conftest import EXECUTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.client import Client
    from neurontools.machine.snapshot import DeviceState, ProcessState
    from tests.conftest import Tool
    from tests.runtime.conftest import Job

    NewVictim = Callable[..., Job]

GONE_BY_ITSELF = [
    kind
    for kind, facts in KINDS.items()
    if facts.reach is Reach.EXECUTION and facts.status and not facts.runs and kind is not FaultKind.HANG
]


def process_of(client: Client) -> ProcessState:
    (process,) = client.snapshot().processes
    return process


def device(client: Client, index: int) -> DeviceState:
    return client.snapshot().devices[index]


def message(status: int) -> str:
    return f'nrt_execute status={status} message="{NrtStatus(status).text}"'


def test_an_execution_fails_with_the_status_of_each_kind_and_the_next_one_works(
    client: Client, victim: NewVictim
) -> None:
    job = victim()
    for kind in GONE_BY_ITSELF:
        fault = client.inject(kind, core=6, count=1)
        status = KINDS[kind].status
        failure = job.try_to(EXECUTE)
        assert failure["error"] == message(status)
        assert failure["remedy"] == f"fault {fault.id} ({kind}) was injected: see `neurontools fault list`"
        assert job.ask(EXECUTE) == "done"
        assert client.faults() == ()
        log = KINDS[kind].log
        assert log is not None
        line = log.text.format(nd=3, nc=0, model=10001, timeout_ms=600000)
        source = f"{log.component}:{log.function}"
        assert f" ERROR  {source:<36} {line}\n" in job.stderr()
        assert f"lnc6:h_model.id10001: {NrtStatus(status).text} ({NrtStatus(status).name})\n" in job.stderr()
    counts = dict(process_of(client).status_counts)
    assert counts.pop(0) == len(GONE_BY_ITSELF)
    assert counts == dict.fromkeys((KINDS[kind].status for kind in GONE_BY_ITSELF), 1)
    (use,) = process_of(client).cores
    assert dict(use.failures) == counts


def test_the_lines_of_the_real_runtime_are_its_own(client: Client, victim: NewVictim) -> None:
    job = victim(NEURON_RT_EXEC_TIMEOUT="30")
    client.inject("timeout", core=6, count=1)
    client.inject("oob", core=6, count=1)
    job.try_to(EXECUTE)
    job.try_to(EXECUTE)
    assert (
        "TDRV:exec_consume_infer_status_notifications (FATAL-RT-UNDEFINED-STATE) inference timeout (30000 ms) on "
        "Neuron Device 3 NC 0, waiting for execution completion notification\n" in job.stderr()
    )
    assert (
        "TDRV:generate_custom_notification_msg nd3:nc0:h_model.id10001: Received notification generated at runtime: "
        "failed to run scatter/gather (indirect memory copy), due to out-of-bound access.\n" in job.stderr()
    )


def test_who_is_not_aimed_at_notices_nothing(client: Client, victim: NewVictim) -> None:
    aimed, other = victim(NEURON_PROCESS_TAG="a"), victim(NEURON_RT_VISIBLE_CORES="7")
    client.inject("generic", pid=aimed.pid)
    client.inject("hang", tag="b")
    client.inject("timeout", core=8)
    client.inject("oob", device=2)
    assert other.ask("runtime._writer.armed_faults") == 0
    assert aimed.ask("runtime._writer.armed_faults") == 1
    assert other.ask(EXECUTE) == "done"
    assert aimed.try_to(EXECUTE)["error"] == message(1004)


@pytest.mark.parametrize(
    ("environ", "fails"),
    [
        ({}, False),
        ({"NEURON_FAIL_ON_NAN": "1"}, True),
        ({"NEURON_RT_NUMERICAL_ERRORS_VERBOSITY": "critical"}, True),
        ({"NEURON_RT_NUMERICAL_ERRORS_VERBOSITY": "warning"}, False),
    ],
)
def test_numerical_errors_fail_only_where_the_environment_says_so(
    client: Client, victim: NewVictim, environ: dict[str, str], fails: bool
) -> None:
    job = victim(**environ)
    client.inject("numerical", core=6, count=1)
    answer = job.try_to(EXECUTE)
    assert answer == {"value": "done"} if not fails else answer["error"] == message(1003)
    assert dict(process_of(client).status_counts) == {1003: 1}


def test_a_hang_goes_on_where_it_was_when_it_is_cleared(
    client: Client, victim: NewVictim, wait_until: Callable[..., None]
) -> None:
    job = victim()
    fault = client.inject("hang", core=6, count=1)
    assert job.process.stdin is not None
    job.process.stdin.write(EXECUTE + "\n")
    job.process.stdin.flush()
    wait_until(lambda: [str(one.phase) for one in client.faults()] == ["holding"])
    (use,) = process_of(client).cores
    assert use.executing
    assert use.executions == 0
    client.clear_faults(fault)
    assert job.process.stdout is not None
    assert json.loads(job.process.stdout.readline()) == {"value": "done"}
    assert dict(process_of(client).status_counts) == {0: 1}


def test_a_hang_ends_when_its_fault_does_though_others_are_armed(client: Client, victim: NewVictim) -> None:
    job = victim()
    client.inject("hang", core=6, count=1, duration_s=0.2)
    client.inject("oom", core=6)
    assert job.ask(EXECUTE) == "done"


def test_a_hang_times_out(client: Client, victim: NewVictim) -> None:
    job = victim(NEURON_RT_EXEC_TIMEOUT="1")
    client.inject("hang", core=6, count=1)
    assert job.try_to(EXECUTE)["error"] == message(5)
    assert "inference timeout (1000 ms) on Neuron Device 3 NC 0" in job.stderr()
    assert client.faults() == ()
    assert job.ask(EXECUTE) == "done"


def test_who_is_killed_while_it_hangs_is_forgotten(
    client: Client, victim: NewVictim, wait_until: Callable[..., None]
) -> None:
    job = victim()
    client.inject("hang", core=6, count=1)
    assert job.process.stdin is not None
    job.process.stdin.write(EXECUTE + "\n")
    job.process.stdin.flush()
    wait_until(lambda: [str(one.phase) for one in client.faults()] == ["holding"])
    os.kill(job.pid, signal.SIGKILL)
    wait_until(lambda: client.faults() == ())


def test_who_is_interrupted_while_it_hangs_can_go_on(
    client: Client, victim: NewVictim, wait_until: Callable[..., None]
) -> None:
    job = victim()
    client.inject("hang", core=6, count=1)
    assert job.process.stdin is not None
    assert job.process.stdout is not None
    job.ask("__import__('signal').signal(2, lambda *_: (_ for _ in ()).throw(OSError('interrupted'))) and 0")
    job.process.stdin.write(EXECUTE + "\n")
    job.process.stdin.flush()
    wait_until(lambda: [str(one.phase) for one in client.faults()] == ["holding"])
    job.process.send_signal(signal.SIGINT)
    assert json.loads(job.process.stdout.readline())["error"] == "interrupted"
    assert client.faults() == ()
    assert job.ask(EXECUTE) == "done"


def test_an_execution_on_a_slow_core_lasts_as_many_times_as_long(client: Client, victim: NewVictim) -> None:
    job = victim()
    timed = (
        "[t := time.monotonic_ns(), runtime.execute(m, lambda: time.sleep(0.05)), time.monotonic_ns() - t][2]"
    )
    job.ask("globals().update(time=__import__('time'))")
    client.inject("slow-core", core=6, factor=4, count=1)
    assert job.ask(timed) >= 4 * 50_000_000
    (use,) = process_of(client).cores
    assert use.busy_ns >= 4 * 50_000_000
    assert dict(process_of(client).status_counts) == {0: 1}


def test_memory_seems_full_though_the_machine_has_granted_more(client: Client, victim: NewVictim) -> None:
    job = victim()
    assert job.ask("runtime.allocate(0, 4096)") is None
    client.inject("oom", core=6, after_executions=1, count=2)
    assert job.ask("runtime.allocate(0, 4096)") is None
    failure = job.try_to("runtime.allocate(0, 4096)")
    assert failure["error"] == 'nrt_tensor_allocate status=4 message="Allocation Failure"'
    assert job.try_to(job.LOAD)["error"] == 'nrt_load status=4 message="Allocation Failure"'
    assert job.ask("runtime.allocate(0, 4096)") is None
    pool = "device mempool [3:0] total 34359738368 occupied 34359738368 needed 4096 available 0"
    assert f"TDRV:mc_alloc                        neuron:mc_alloc: {pool}\n" in job.stderr()
    assert "TDRV:dmem_alloc                      Failed to allocate 4096 bytes on ND 3:NC 6\n" in job.stderr()
    assert process_of(client).status_counts == ()


def test_memory_errors_break_a_device_until_it_is_reset(client: Client, victim: NewVictim) -> None:
    job = victim()
    client.inject("ecc", device=3, count=2)
    assert device(client, 3).hardware.mem_ecc_uncorrected == 2
    assert device(client, 3).unhealthy == ("hbm",)
    errors = [job.try_to(EXECUTE)["error"] for _ in range(3)]
    assert errors == [message(1201), message(1201), message(101)]
    with pytest.raises(Exception, match="device 3 is in use: process"):
        client.reset_device(3)
    client.reset_device(3, force=True)
    assert job.ask(EXECUTE) == "done"
    assert device(client, 3).unhealthy == ()
    assert device(client, 3).hardware.mem_ecc_uncorrected == 2


def test_a_restarted_job_finds_its_cores_reset_unless_it_forbids_that(
    client: Client, victim: NewVictim
) -> None:
    client.inject("ecc", device=3, ecc="sram-uncorrected")
    kept = victim(NEURON_RT_RESET_CORES="0")
    assert [kept.try_to(EXECUTE)["error"] for _ in range(2)] == [message(1202), message(101)]
    kept.end()
    assert victim().ask(EXECUTE) == "done"


def test_a_lost_device_fails_its_processes_and_takes_no_new_ones(client: Client, victim: NewVictim) -> None:
    job = victim()
    client.inject("device-lost", device=3)
    assert job.try_to(EXECUTE)["error"] == message(101)
    allocated = job.try_to("runtime.allocate(0, 1)")
    assert allocated["error"] == 'nrt_tensor_allocate status=6 message="Hardware failure"'
    assert job.try_to(job.LOAD)["error"] == 'nrt_load status=6 message="Hardware failure"'
    job.ask("runtime.close()")
    with pytest.raises(AssertionError, match="Could not open the nd3"):
        victim()
    with pytest.raises(AssertionError, match="Could not open the nd3"):
        victim(NEURON_RT_VISIBLE_CORES="")
    assert victim(NEURON_RT_VISIBLE_CORES="", NEURON_RT_NUM_CORES="8").ask("runtime.cores") == list(
        range(8, 16)
    )
    client.clear_faults()
    assert victim().ask(EXECUTE) == "done"


def test_the_failed_start_says_what_the_real_runtime_says(
    client: Client, new_job: Callable[..., Job]
) -> None:
    client.inject("device-lost", device=1)
    job = new_job(NEURON_RT_VISIBLE_CORES="2")
    assert job.try_to("Runtime.open()")["error"] == 'nrt_init status=1 message="Could not open the nd1"'
    lines = job.stderr().splitlines()
    assert lines[0].endswith(" Could not open the nd1")
    assert lines[1].endswith("nrt_init failed. Status = 1")
    assert any("Failure: NRT_FAILURE in nrt_init()" in line for line in lines)


def test_a_broken_link_shows_on_both_ends_and_stops_who_spans_it(client: Client, victim: NewVictim) -> None:
    job = victim(NEURON_RT_VISIBLE_CORES="0-3")
    beside = victim(NEURON_RT_VISIBLE_CORES="4")
    client.inject("link-down", device=0, to=1)
    ends = [device(client, index) for index in (0, 1)]
    assert [end.links_down for end in ends] == [(1,), (0,)]
    assert 1 not in (ends[0].connected_to or ())
    assert [end.unhealthy for end in ends] == [("link_intraserver",)] * 2
    assert job.try_to(EXECUTE)["error"] == message(1200)
    assert "link nd0-nd1 is down" in job.stderr()
    assert beside.ask(EXECUTE) == "done"
    client.clear_faults()
    assert 1 in (device(client, 0).connected_to or ())
    assert job.ask(EXECUTE) == "done"


def test_who_takes_faults_for_a_process_without_a_runtime_gets_them(client: Client) -> None:
    client.inject("hang", core=0, pid=4_200_000, count=1)
    assert client.take_fault(0) is None
    hit = client.take_fault(0, pid=4_200_000)
    assert hit is not None
    assert client.holds_fault(hit.fault, 0, pid=4_200_000)
    client.release_fault(0, pid=4_200_000)
    assert client.faults() == ()


TRAINING = """
import torch, torch_xla.core.xla_model as xm
from neurontools.machine.client import Client
device = xm.xla_device()
weights = torch.ones(4, 4, device=device)
xm.mark_step()
with Client.connect() as client:
    client.inject("ecc", device=0, count=1)
caught = []
for _ in range(3):
    weights = weights @ weights.T / 4
    try:
        xm.mark_step()
        caught.append("fine")
    except RuntimeError as error:
        caught.append(str(error))
        weights = torch.ones(4, 4, device=device)
        with Client.connect() as client:
            if len(caught) == 2:
                client.reset_device(0, force=True)
print(caught)
print(weights.sum().item())
"""


def test_a_training_script_catches_it_as_a_runtime_error(tool: Tool, torch_python: str) -> None:
    done = tool("neuron-run", "--instance", "trn1.2xlarge", "--", torch_python, "-c", TRAINING)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == str([message(1201), message(101), "fine"])
    assert said[1] == "16.0"
    assert "NRT:nrt_execute" in done.stderr
