"""kill -9 of the daemon, deleted directories, stale files: processes keep what they hold."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.pages.page import PageWriter, page_size
from neurontools.machine.protocol import CoresBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    Workers = Callable[[], Any]
    Wait = Callable[[Callable[[], bool]], None]
    End = Callable[[DaemonInfo], None]


def start(**wishes: Any) -> DaemonInfo:
    return launch.start(StartOptions("default", **wishes))


def delete_runtime_dir() -> None:
    """Delete it at one stroke: the daemon may be writing its journal there."""
    gone = paths.runtime_dir() + "-gone"
    os.rename(paths.runtime_dir(), gone)
    shutil.rmtree(gone, ignore_errors=True)


def test_a_new_daemon_finds_the_living_and_forgets_the_dead(
    daemon: DaemonInfo, worker: Workers, end_daemon: End
) -> None:
    lives, dies = worker(), worker()
    lives.do("register", cores=[4, 5])
    lives.do("reserve", core=4, total_bytes=1000)
    lives.do("reserve", core=5, total_bytes=500)
    dies.do("register", cores=[6])
    end_daemon(daemon)
    dies.kill()
    again = start()
    assert (again.instance_type, again.was_running) == ("trn1.32xlarge", False)
    assert again.started_unix_s == daemon.started_unix_s
    with Client.connect() as client:
        snapshot = client.snapshot()
        (process,) = snapshot.processes
        assert (process.pid, [use.core for use in process.cores]) == (lives.pid, [4, 5])
        assert snapshot.devices[2].memory_used_bytes == 1500
        with pytest.raises(CoresBusyError):
            client.register(cores=(5,))
        assert dict(snapshot.lifetime)["processes"] == 2
    assert len(os.listdir(paths.pages_dir("default"))) == 2


def test_a_running_job_goes_on_by_itself(daemon: DaemonInfo, worker: Workers, end_daemon: End) -> None:
    job = worker()
    job.do("register", cores=[0])
    job.do("reserve", core=0, total_bytes=100)
    end_daemon(daemon)
    assert job.do("reserve", core=0, total_bytes=1)["error"] == "NoMachineError"
    start()
    assert job.do("reserve", core=0, total_bytes=50) is None
    assert job.do("cores")["registered"] == [0]
    assert job.do("reserve", core=0, total_bytes=0) is None


def test_a_job_starts_the_daemon_again_where_that_is_allowed(
    daemon: DaemonInfo, end_daemon: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client.connect() as client:
        client.register(count=1)
        end_daemon(daemon)
        monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
        client.reserve(0, 100)
        info = launch.find("default")
        assert (info.instance_type, info.idle_exit_s) == ("trn1.32xlarge", None)
        assert client.snapshot().devices[0].memory_used_bytes == 100


def test_telemetry_of_a_running_job_is_right_after_a_kill(daemon: DaemonInfo, end_daemon: End) -> None:
    with Client.connect() as client:
        writer = PageWriter(client.register(count=1).page_fd)
        writer.begin(0, -1)
        writer.end(0, 0, 10, 1, 0)
        end_daemon(daemon)
        writer.begin(0, -1)
        writer.end(0, 0, 10, 1, 0)
        start()
        (process,) = client.snapshot().processes
        assert (process.cores[0].executions, process.stale) == (2, False)
        writer.close()


def test_a_start_right_after_a_kill_does_not_take_the_dying_daemon_for_a_living_one(
    daemon: DaemonInfo,
) -> None:
    for _ in range(5):
        pid = start().pid
        with Client.connect() as client:
            os.kill(pid, signal.SIGKILL)
            again = start()
            assert (again.pid != pid, again.was_running) == (True, False)
            assert client.call("describe")["pid"] == again.pid


def test_watching_goes_on_after_a_kill(daemon: DaemonInfo, end_daemon: End) -> None:
    with Client.connect() as client:
        stream = client.watch(0.05)
        next(stream)
        end_daemon(daemon)
        again = start()
        assert again.pid != daemon.pid
        assert next(stream).instance_type == "trn1.32xlarge"
        stream.close()  # type: ignore[attr-defined]


def test_a_repeated_reservation_is_counted_once(daemon: DaemonInfo, end_daemon: End) -> None:
    with Client.connect() as client:
        client.register(count=1)
        client.reserve(0, 100)
        # The daemon handled this one, but was killed before its answer arrived.
        client.call("reserve", core=0, total_bytes=150)
        end_daemon(daemon)
        start()
        client.reserve(0, 150)
        assert client.snapshot().devices[0].memory_used_bytes == 150


def test_a_reconnected_process_is_still_the_registered_process(daemon: DaemonInfo, end_daemon: End) -> None:
    with Client.connect() as client:
        client.register(count=1)
        end_daemon(daemon)
        start()
        client.snapshot()
        with Client.connect() as second, pytest.raises(DaemonError, match="already registered"):
            second.register(count=2)


def test_restart_keeps_jobs_type_and_counters(daemon: DaemonInfo, worker: Workers) -> None:
    job = worker()
    job.do("register", cores=[8])
    again = launch.restart()
    assert again.pid != daemon.pid
    assert again.instance_type == "trn1.32xlarge"
    with Client.connect() as client:
        assert [process.pid for process in client.snapshot().processes] == [job.pid]
        assert dict(client.snapshot().lifetime) == {"processes": 1}


def test_a_daemon_of_another_protocol_version_can_be_restarted(
    daemon: DaemonInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neurontools.machine.connection.PROTOCOL_VERSION", 7)
    with pytest.raises(DaemonError, match="speaks protocol"):
        Client.connect()
    assert launch.restart().pid != daemon.pid


def test_a_daemon_that_hangs_can_be_stopped_by_force(
    daemon: DaemonInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_STOP_TIMEOUT_S", 0.2)
    os.kill(daemon.pid, signal.SIGSTOP)
    launch.stop(force=True)
    assert launch.list_machines() == ()


def test_living_jobs_keep_the_machine_s_type(daemon: DaemonInfo, worker: Workers, end_daemon: End) -> None:
    worker().do("register", cores=[0])
    end_daemon(daemon)
    with pytest.raises(DaemonError, match=r"is trn1\.32xlarge, not inf2\.xlarge") as caught:
        start(instance_type="inf2.xlarge")
    assert "--machine" in caught.value.remedy
    assert start(instance_type="trn1.32xlarge").was_running is False


def test_who_only_looks_does_not_keep_the_machine_s_type(
    daemon: DaemonInfo, worker: Workers, end_daemon: End
) -> None:
    worker().do("register", uses_device=False)
    end_daemon(daemon)
    assert start(instance_type="inf2.xlarge").instance_type == "inf2.xlarge"


def test_without_jobs_a_killed_machine_may_become_another(daemon: DaemonInfo, end_daemon: End) -> None:
    end_daemon(daemon)
    assert start(instance_type="inf2.xlarge").instance_type == "inf2.xlarge"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version":1}', b'{"version":9}', b"\xff" * 50, b"[" * 100_000],
)
def test_damaged_records_and_journals_stop_nothing(
    daemon: DaemonInfo, end_daemon: End, worker: Workers, content: bytes
) -> None:
    worker().do("register", cores=[0])
    end_daemon(daemon)
    for record in Path(paths.pages_dir("default")).glob("*.json"):
        record.write_bytes(content)
    Path(paths.state_dir(), "default", "journal.json").write_bytes(content)
    Path(paths.machine_dir("default"), "neurond.json").write_bytes(content)
    start()
    with Client.connect() as client:
        assert client.snapshot().processes == ()
    assert os.listdir(paths.pages_dir("default")) == []


def test_a_lost_page_costs_the_telemetry_but_not_the_claim(
    daemon: DaemonInfo, end_daemon: End, worker: Workers
) -> None:
    job = worker()
    job.do("register", cores=[3])
    end_daemon(daemon)
    for page in Path(paths.pages_dir("default")).glob("*.page"):
        page.write_bytes(b"nonsense")
    start()
    with Client.connect() as client:
        (process,) = client.snapshot().processes
        assert (process.pid, process.stale, process.cores[0].core) == (job.pid, True, 3)


def test_a_full_disk_costs_the_counters_after_a_kill_but_never_the_claim(
    worker: Workers, end_daemon: End
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (page_size(1) - 1, hard))
    try:
        daemon = start(instance_type="trn1.32xlarge")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    job = worker()
    assert job.do("register", cores=[4])["cores"] == [4]
    job.do("reserve", core=4, total_bytes=700)
    with Client.connect() as client:
        assert [process.stale for process in client.snapshot().processes] == [False]
        other = client.register(cores=(5,))
        writer = PageWriter(other.page_fd)
        writer.begin(0)
        writer.end(0, 0, 1000, flops=3)
        assert dict(client.snapshot().lifetime)["flops"] == 3
        writer.close()
        os.close(other.page_fd)
        client.unregister()
    warnings = [line for line in Path(daemon.log).read_text().splitlines() if "private page" in line]
    assert len(warnings) == 2
    assert f"process {job.pid} " in warnings[0]
    assert f"process {os.getpid()} " in warnings[1]
    end_daemon(daemon)
    start()
    with Client.connect() as client:
        snapshot = client.snapshot()
        (process,) = snapshot.processes
        assert ([use.core for use in process.cores], process.stale) == ([4], True)
        assert snapshot.devices[2].memory_used_bytes == 700
        with pytest.raises(CoresBusyError):
            client.register(cores=(4,))


def test_a_record_of_another_boot_or_of_a_reused_pid_is_stale(
    daemon: DaemonInfo, end_daemon: End, worker: Workers
) -> None:
    first, second = worker(), worker()
    first.do("register", cores=[0])
    second.do("register", cores=[1])
    end_daemon(daemon)
    directory = Path(paths.pages_dir("default"))
    (of_first,) = directory.glob(f"{first.pid}-*.json")
    (of_second,) = directory.glob(f"{second.pid}-*.json")
    record = json.loads(of_first.read_text())
    of_first.write_text(json.dumps({**record, "boot_id": "another"}))
    record = json.loads(of_second.read_text())
    record["key"]["start_ticks"] += 1
    of_second.write_text(json.dumps(record))
    start()
    with Client.connect() as client:
        assert client.snapshot().processes == ()


def test_a_deleted_runtime_directory_is_made_again_when_a_tool_comes(
    daemon: DaemonInfo, worker: Workers
) -> None:
    job = worker()
    job.do("register", cores=[0])
    delete_runtime_dir()
    with pytest.raises(NoMachineError):
        Client.connect()
    launch.ensure_running()
    with Client.connect() as client:
        assert client.call("describe")["pid"] == daemon.pid
        assert [process.pid for process in client.snapshot().processes] == [job.pid]
    assert [info.pid for info in launch.list_machines()] == [daemon.pid]
    assert start().was_running
    assert "was deleted or damaged; it was restored" in Path(daemon.log).read_text()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": "x"}', b"\xff" * 50])
def test_a_damaged_record_is_written_again_when_it_is_needed(daemon: DaemonInfo, content: bytes) -> None:
    Path(paths.machine_dir("default"), "neurond.json").write_bytes(content)
    assert launch.find("default").pid == daemon.pid
    assert [info.pid for info in launch.list_machines()] == [daemon.pid]


def test_a_deleted_runtime_directory_is_made_again_by_a_hangup(daemon: DaemonInfo, wait_until: Wait) -> None:
    delete_runtime_dir()
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: os.path.exists(f"{paths.machine_dir('default')}/neurond.json"))
    with Client.connect() as client:
        assert client.call("describe")["pid"] == daemon.pid


def test_claims_survive_a_deleted_directory_and_then_a_kill(
    daemon: DaemonInfo, worker: Workers, end_daemon: End
) -> None:
    job = worker()
    job.do("register", cores=[0])
    delete_runtime_dir()
    launch.ensure_running()
    end_daemon(daemon)
    start()
    with Client.connect() as client:
        assert [process.pid for process in client.snapshot().processes] == [job.pid]


def test_lifetime_counters_outlive_an_orderly_stop(daemon: DaemonInfo) -> None:
    with Client.connect() as client:
        client.register(count=1)
        client.unregister()
    assert launch.stop().pid == daemon.pid
    start(instance_type="inf2.xlarge")
    with Client.connect() as client:
        assert dict(client.snapshot().lifetime) == {"processes": 1}
