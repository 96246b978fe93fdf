"""The runtime on real machines: several processes, deaths, forks, full devices."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from neurontools.machine import launch
from neurontools.machine.pages.page import page_size
from neurontools.runtime.session import Runtime
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.machine.snapshot import Snapshot
    from tests.runtime.conftest import Job

    StartMachine = Callable[..., Callable[[], Snapshot]]
    NewJob = Callable[..., Job]

GIB = 1 << 30


def test_a_process_takes_all_cores_by_default(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine("trn1.32xlarge")
    job = new_job(NEURON_PROCESS_TAG="trainer")
    assert job.open() == list(range(32))
    (process,) = snapshot().processes
    assert (process.pid, process.tag, process.uses_device) == (job.pid, "trainer", True)
    assert process.command.startswith(sys.executable)
    assert [use.core for use in process.cores] == list(range(32))


def test_a_process_numbers_its_cores_from_zero(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine("trn1.32xlarge")
    job = new_job(NEURON_RT_VISIBLE_CORES="4-5")
    assert job.open() == [4, 5]
    job.ask(job.LOAD)
    assert job.ask("runtime.execute(m, lambda: 6 * 7)") == 42
    (process,) = snapshot().processes
    assert [(use.core, use.executions) for use in process.cores] == [(4, 1), (5, 0)]
    assert [(model.name, model.core) for model in process.models] == [("m", 4)]


def test_a_number_of_cores_gets_free_ones(start_machine: StartMachine, new_job: NewJob) -> None:
    start_machine("trn1.32xlarge")
    assert new_job(NEURON_RT_VISIBLE_CORES="0").open() == [0]
    assert new_job(NEURON_RT_NUM_CORES="2").open() == [1, 2]
    assert new_job(NEURON_RT_NUM_CORES="2").open() == [3, 4]


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (
            {"NEURON_RT_VISIBLE_CORES": "0"},
            "Requested:lnc0-lnc0 Available:0 Logical Core size:1 (cores busy, ret=-16)",
        ),
        ({"NEURON_RT_NUM_CORES": "2"}, "Requested:2 Available:1 Logical Core size:1"),
        ({}, "Requested:2 Available:1 Logical Core size:1"),
        (
            {"NEURON_RT_VISIBLE_CORES": "2-3"},
            "Requested:lnc2-lnc3 Available:2 Logical Core size:1 (no such cores, ret=-22)",
        ),
        ({"NEURON_RT_NUM_CORES": "3"}, "Requested:3 Available:2 Logical Core size:1"),
    ],
)
def test_cores_that_cannot_be_had(
    start_machine: StartMachine, new_job: NewJob, wish: dict[str, str], line: str
) -> None:
    start_machine()
    holder = new_job(NEURON_RT_VISIBLE_CORES="0")
    holder.open()
    refused = new_job(**wish)
    answer = refused.try_to("Runtime.open()")
    assert answer["kind"] == "NrtError"
    assert answer["error"] == f'nrt_init status=4 message="Logical Neuron Core(s) not available - {line}"'
    assert refused.end() == 0
    said = refused.stderr().splitlines()
    assert said[0].endswith(f" Logical Neuron Core(s) not available - {line}")
    assert " ERROR  NRT:nrt_allocate_neuron_cores " in said[0]
    block = [text.partition("NRT:nrt_infodump")[2].strip() for text in said if "NRT:nrt_infodump" in text]
    assert block[0] == "Neuron runtime information - please include in any support request:"
    assert block[1] == "------------->8------------[ cut here ]------------>8-------------"
    assert block[-1] == "-------------8<-----------[ cut to here ]-----------8<------------"
    assert "Failure: NRT_RESOURCE in nrt_init()" in block
    for name, value in wish.items():
        assert f"{name}={value}" in block
    holder.ask("runtime.allocate(0, 1)")


def test_the_remedy_names_the_holder(start_machine: StartMachine, new_job: NewJob) -> None:
    start_machine()
    holder = new_job()
    holder.open()
    answer = new_job(NEURON_RT_LOG_LEVEL="QUIET").try_to("Runtime.open()")
    assert f"process {holder.pid} holds cores 0-1" in answer["remedy"]


def test_an_invalid_request_needs_no_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NrtError, match="Neuron cores are not contiguous"):
        Runtime.open(environ={"NEURON_RT_VISIBLE_CORES": "3,5"})
    said = capsys.readouterr().err
    assert "Neuron cores are not contiguous" in said.splitlines()[0]
    assert "Failure: NRT_INVALID in nrt_init()" in said


def test_without_a_machine(new_job: NewJob) -> None:
    job = new_job()
    answer = job.try_to("Runtime.open()")
    assert (answer["kind"], answer["remedy"]) == ("NoMachineError", "start it: neurond start")
    assert job.end() == 0
    assert "TDRV:tdrv_get_dev_info" in job.stderr()
    assert "No neuron device available" in job.stderr()


def test_the_machine_starts_on_first_need_and_says_so_once(new_job: NewJob) -> None:
    job = new_job(NEURONTOOLS_AUTOSTART="1", NEURONTOOLS_INSTANCE="inf2.xlarge")
    job.ask("(said := [])")
    assert job.ask("(runtime := Runtime.open(on_notice=said.append)).instance.name") == "inf2.xlarge"
    (notice,) = job.ask("said")
    assert "inf2.xlarge" in notice


def test_a_full_disk_means_a_private_page_and_one_warning(
    start_machine: StartMachine, new_job: NewJob
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (page_size(2) - 1, hard))
    try:
        snapshot = start_machine()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    job = new_job(NEURON_RT_LOG_LEVEL="WARNING")
    assert job.open() == [0, 1]
    job.ask(job.LOAD)
    assert job.ask("runtime.execute(m, lambda: 6 * 7)") == 42
    (process,) = snapshot().processes
    assert ([use.executions for use in process.cores], process.stale) == ([1, 0], False)
    assert job.end() == 0
    (line,) = [line for line in job.stderr().splitlines() if "telemetry page" in line]
    assert " WARN " in line
    assert "private" in line
    assert snapshot().processes == ()


def test_opening_twice_is_refused_closing_makes_it_possible(
    start_machine: StartMachine, new_job: NewJob
) -> None:
    snapshot = start_machine()
    job = new_job()
    job.open()
    assert "open already" in job.try_to("Runtime.open()")["error"]
    job.ask("runtime.close()")
    assert snapshot().processes == ()
    assert job.open() == [0, 1]


def test_a_killed_owner_frees_its_cores(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine()
    owner = new_job()
    owner.open()
    owner.ask(f"runtime.allocate(0, {30 * GIB})")
    assert new_job(NEURON_RT_LOG_LEVEL="QUIET").try_to("Runtime.open()")["kind"] == "NrtError"
    owner.kill()
    heir = new_job()
    assert heir.open() == [0, 1]
    heir.ask(f"runtime.allocate(0, {30 * GIB})")
    assert [process.pid for process in snapshot().processes] == [heir.pid]


def test_an_owner_that_ends_leaves_nothing(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine()
    job = new_job()
    job.open()
    job.ask(job.LOAD)
    assert job.end() == 0
    assert job.stderr() == ""
    assert snapshot().processes == ()


def test_the_daemon_dies_while_a_model_executes(start_machine: StartMachine, new_job: NewJob) -> None:
    start_machine()
    job = new_job()
    job.open()
    job.ask(job.LOAD)
    pid = launch.list_machines()[0].pid
    assert job.ask(f"runtime.execute(m, lambda: os.kill({pid}, 9))") is None
    assert job.ask("runtime.execute(m, lambda: 5)") == 5
    job.ask(f"runtime.allocate(0, {GIB})")
    snapshot = start_machine()
    (process,) = snapshot().processes
    assert process.pid == job.pid
    assert [(use.core, use.executions) for use in process.cores] == [(0, 2), (1, 0)]
    job.ask("runtime.allocate(0, 1)")
    assert snapshot().devices[0].memory_used_bytes >= GIB + 1
    assert job.end() == 0
    assert snapshot().processes == ()


def test_two_processes_share_the_memory_of_a_device(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine()
    first, second = new_job(NEURON_RT_VISIBLE_CORES="0"), new_job(NEURON_RT_VISIBLE_CORES="1")
    first.open()
    second.open()
    first.ask(f"runtime.allocate(0, {20 * GIB})")
    answer = second.try_to(f"runtime.allocate(0, {13 * GIB})")
    assert answer["error"] == 'nrt_tensor_allocate status=4 message="Allocation Failure"'
    assert f"{20 * GIB} are in use and {13 * GIB} more are needed" in answer["remedy"]
    second.ask(f"runtime.allocate(0, {12 * GIB})")
    assert snapshot().devices[0].memory_used_bytes == 32 * GIB
    first.ask(f"runtime.free(0, {20 * GIB})")
    second.ask(f"runtime.allocate(0, {13 * GIB})")
    assert "neuron:mc_alloc: device mempool [0:0]" in second.stderr()


FORK = """
import os, sys
from neurontools.runtime.session import Runtime
from neurontools.runtime.status import NrtError
runtime = Runtime.open()
load = dict(uuid=bytes(16), neff=b"", code_bytes=1, constant_bytes=1, scratch_bytes=1, modelled_ns=1, flops=1)
model = runtime.load(0, name="m", **load)
runtime.execute(model, lambda: None)

def child():
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for call in (Runtime.open, lambda: runtime.allocate(0, 1), lambda: runtime.execute(model, lambda: None)):
        try:
            call()
        except NrtError as error:
            print(error.status.name, error)
        else:
            print("no error")
    runtime.free(0, 1)
    runtime.close()
    sys.exit(3)

print("child ended with", child(), flush=True)
runtime.execute(model, lambda: None)
print(runtime.execute(model, child))
runtime.allocate(0, 1 << 30)
from neurontools.machine.client import Client
with Client.connect() as client:
    (process,) = client.snapshot().processes
print(process.pid == os.getpid(), [use.executions for use in process.cores], client.snapshot().devices[0].memory_used_bytes)
"""


def test_a_forked_child_is_not_the_owner(start_machine: StartMachine) -> None:
    snapshot = start_machine()
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    forked = "Cannot re-initialize Neuron runtime in forked subprocess."
    lines = result.stdout.splitlines()
    errors = [line for line in lines if forked in line]
    assert [line.split()[0] for line in errors] == [
        *("NRT_FAILURE", "NRT_UNINITIALIZED", "NRT_UNINITIALIZED"),
        *("NRT_FAILURE", "NRT_UNINITIALIZED", "NRT_UNINITIALIZED"),
    ]
    rest = [line for line in lines if forked not in line]
    assert rest[:2] == ["child ended with 3", "3"]
    assert rest[2].startswith("True [3, 0] ")
    assert snapshot().processes == ()


LEAKS = """
import os
from neurontools.runtime.session import Runtime
def descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in map(str, range(3, 200)) if os.path.lexists(f"/proc/self/fd/{fd}"))
Runtime.open().close()
before = descriptors()
for _ in range(20):
    Runtime.open().close()
try:
    Runtime.open(environ={"NEURON_RT_VISIBLE_CORES": "77", "NEURON_RT_LOG_LEVEL": "QUIET"})
except Exception:
    pass
assert descriptors() == before, (before, descriptors())
with open("/proc/self/maps") as maps:
    assert ".page" not in maps.read()
"""


def test_open_and_close_leak_nothing(start_machine: StartMachine) -> None:
    start_machine()
    result = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", LEAKS], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_torchrun_like_workers_get_one_core_each(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine("trn1.2xlarge")
    jobs = [new_job(NEURON_RT_VISIBLE_CORES=str(rank)) for rank in range(2)]
    assert [job.open() for job in jobs] == [[0], [1]]
    owners = {use.core: process.pid for process in snapshot().processes for use in process.cores}
    assert owners == {0: jobs[0].pid, 1: jobs[1].pid}


def test_info_lines_tell_the_machine(start_machine: StartMachine, new_job: NewJob) -> None:
    start_machine("trn2.48xlarge")
    job = new_job(NEURON_RT_LOG_LEVEL="INFO", NEURON_RT_NUM_CORES="1")
    assert job.ask("(runtime := Runtime.open()).lnc") == 2
    said = job.stderr()
    assert "NRT:nrt_init" in said
    assert "Instance info:: device count:16 cores per device:4 architecture:TRN2" in said


def test_lines_can_go_to_a_file(home: Path, start_machine: StartMachine, new_job: NewJob) -> None:
    start_machine()
    new_job().open()
    log = home / "nrt.log"
    job = new_job(NEURON_RT_LOG_LOCATION=str(log))
    assert job.try_to("Runtime.open()")["kind"] == "NrtError"
    assert job.stderr() == ""
    assert "nrt_infodump" in log.read_text()


def test_every_status_shows_in_the_snapshot(start_machine: StartMachine, new_job: NewJob) -> None:
    snapshot = start_machine()
    job = new_job()
    job.open()
    job.ask(job.LOAD)
    assert job.try_to("runtime.execute(m, lambda: 1 / 0)")["kind"] == "ZeroDivisionError"
    job.ask("runtime.execute(m, lambda: None)")
    counts = snapshot().processes[0].status_counts
    assert counts == ((0, 1), (NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR, 1))
    json.dumps(snapshot().to_json())


def test_processes_that_ask_at_the_same_moment_get_different_cores(
    start_machine: StartMachine, new_job: NewJob
) -> None:
    start_machine("trn1.32xlarge")
    jobs = [new_job(NEURON_RT_NUM_CORES="8") for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        claims = list(pool.map(lambda job: job.open(), jobs))
    assert sorted(core for cores in claims for core in cores) == list(range(32))
    assert new_job(NEURON_RT_LOG_LEVEL="QUIET").try_to("Runtime.open()")["kind"] == "NrtError"
