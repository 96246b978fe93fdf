"""Faults outlive a daemon that is killed, and end with the machine; only its owner makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.daemon.rpc import check_rights
from neurontools.machine.directory import KernelLog
from neurontools.machine.processes import Peer
from neurontools.machine.protocol import RefusedError
from tests.faults.conftest import EXECUTE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.machine.machine_config import DaemonInfo
    from tests.conftest import Tool
    from tests.runtime.conftest import Job

    EndDaemon = Callable[[DaemonInfo], None]
    NewVictim = Callable[..., Job]


def replaced(end_daemon: EndDaemon) -> None:
    end_daemon(launch.find("default"))
    launch.start(launch.StartOptions("default", resume=True))


def test_faults_and_what_is_left_of_them_survive_kill_9(
    client: Client, victim: NewVictim, end_daemon: EndDaemon
) -> None:
    job = victim()
    client.inject("generic", core=6, count=3)
    client.inject("ecc", device=1, count=2)
    client.inject("device-lost", device=5)
    client.inject("oob", core=6, after_s=3600.0)
    assert "status=1004" in job.try_to(EXECUTE)["error"]
    before = client.faults()
    assert before[0].hits == 1
    replaced(end_daemon)
    with Client.connect() as again:
        assert again.faults() == before
        assert again.snapshot().devices[5].lost
        assert again.snapshot().devices[1].hardware.mem_ecc_uncorrected == 2
        errors = [job.try_to(EXECUTE).get("error", "") for _ in range(3)]
        assert ["status=1004" in error for error in errors] == [True, True, False]
        assert again.inject("hang", core=0).id == 5


def test_a_fault_that_waits_is_armed_by_the_next_daemon(
    client: Client, victim: NewVictim, end_daemon: EndDaemon, wait_until: Callable[..., None]
) -> None:
    job = victim()
    client.inject("timeout", core=6, after_s=0.5, count=1)
    replaced(end_daemon)
    wait_until(lambda: job.ask("runtime._writer.armed_faults") == 1)
    assert "status=5" in job.try_to(EXECUTE)["error"]
    assert job.ask("runtime._writer.armed_faults") == 0


def test_a_hang_lasts_across_kill_9(
    client: Client, victim: NewVictim, end_daemon: EndDaemon, wait_until: Callable[..., None]
) -> None:
    job = victim()
    client.inject("hang", core=6, count=1)
    assert job.process.stdin is not None
    assert job.process.stdout is not None
    job.process.stdin.write(EXECUTE + "\n")
    job.process.stdin.flush()
    wait_until(lambda: [str(one.phase) for one in client.faults()] == ["holding"])
    replaced(end_daemon)
    with Client.connect() as again:
        (fault,) = again.faults()
        assert fault.held == ((job.pid, 6),)
        again.clear_faults()
    assert job.process.stdout.readline() == '{"value": "done"}\n'


def test_who_died_without_a_daemon_holds_nothing(
    client: Client, victim: NewVictim, end_daemon: EndDaemon, wait_until: Callable[..., None]
) -> None:
    job = victim()
    client.inject("hang", core=6, count=1)
    assert job.process.stdin is not None
    job.process.stdin.write(EXECUTE + "\n")
    job.process.stdin.flush()
    wait_until(lambda: [str(one.phase) for one in client.faults()] == ["holding"])
    end_daemon(launch.find("default"))
    job.kill()
    launch.start(launch.StartOptions("default", resume=True))
    with Client.connect() as again:
        assert again.faults() == ()


def test_a_fault_that_ended_between_two_daemons_is_not_rung_any_more(
    client: Client, victim: NewVictim, end_daemon: EndDaemon
) -> None:
    job = victim()
    client.inject("generic", core=6, duration_s=0.3)
    end_daemon(launch.find("default"))
    job.ask("__import__('time').sleep(0.3)")
    launch.start(launch.StartOptions("default", resume=True))
    assert job.ask("runtime._writer.armed_faults") == 0
    assert job.ask(EXECUTE) == "done"


def test_a_process_on_a_lost_device_is_adopted_with_its_cores(
    client: Client, victim: NewVictim, end_daemon: EndDaemon
) -> None:
    job = victim()
    client.inject("device-lost", device=3)
    replaced(end_daemon)
    with Client.connect() as again:
        (process,) = again.snapshot().processes
        assert (process.pid, process.cores[0].core) == (job.pid, 6)
        assert "status=101" in job.try_to(EXECUTE)["error"]
        again.clear_faults()
    assert job.ask(EXECUTE) == "done"


def test_a_machine_that_was_stopped_starts_without_faults(client: Client) -> None:
    client.inject("device-lost", device=0)
    launch.stop("default", force=True)
    launch.start(launch.StartOptions("default", "trn1.32xlarge"))
    with Client.connect() as again:
        assert again.faults() == ()
        assert not again.snapshot().devices[0].lost


def test_a_machine_of_another_kind_starts_without_faults(client: Client, end_daemon: EndDaemon) -> None:
    client.inject("device-lost", device=9)
    end_daemon(launch.find("default"))
    launch.start(launch.StartOptions("default", "trn1.2xlarge"))
    with Client.connect() as again:
        assert again.faults() == ()


def test_a_job_goes_on_without_faults_while_there_is_no_daemon(
    client: Client, victim: NewVictim, end_daemon: EndDaemon
) -> None:
    job = victim()
    client.inject("generic", core=6)
    end_daemon(launch.find("default"))
    assert job.ask(EXECUTE) == "done"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("inject_fault", "inject faults into"),
        ("clear_faults", "remove faults from"),
        ("reset_device", "reset devices of"),
    ],
)
def test_faults_are_for_the_owner_and_root(method: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match=f"uid 1234 may not {words} machine 'shared'"):
        check_rights(Peer(1, 1234), method, "shared")
    check_rights(Peer(1, 0), method, "shared")


def test_what_a_fault_means_is_for_its_own_process_only() -> None:
    check_rights(Peer(1, 1234), "take_fault", "shared")
    check_rights(Peer(1, 1234), "list_faults", "shared")


def test_the_kernel_log_stays_small(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "kern.log"))
    for _ in range(12):
        log.write("x" * 100_000)
    assert (tmp_path / "kern.log.1").stat().st_size > 1 << 20
    assert (tmp_path / "kern.log").stat().st_size < 1 << 20


def test_invalid_input_from_a_client_harms_nothing(client: Client, tool: Tool) -> None:
    for method, params in [
        ("inject_fault", {}),
        ("inject_fault", {"kind": 4}),
        ("inject_fault", {"kind": "hang", "core": "0"}),
        ("inject_fault", {"kind": "hang", "core": 1 << 80}),
        ("inject_fault", {"kind": "ecc", "device": 0, "ecc": "x"}),
        ("inject_fault", {"kind": "hang", "depth": 4}),
        ("inject_fault", {"kind": "hang", "after_s": 1e300}),
        ("take_fault", {"core": 32}),
        ("take_fault", {"core": 0, "action": "sleep"}),
        ("clear_faults", {"ids": ["a"]}),
        ("reset_device", {"device": -1}),
    ]:
        with pytest.raises(Exception, match=r"parameter|no core|no device|kind|ecc|action|delay|too large"):
            client.call(method, **params)
    assert client.faults() == ()
