"""Starting and ending daemons: handshake, one per machine, names and types, idle and private machines."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.directory import MachineDirectory
from neurontools.machine.instances.catalogue import UnknownInstanceError
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.processes import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    End = Callable[[DaemonInfo], None]
    Wait = Callable[[Callable[[], bool]], None]


def start(machine: str = "default", **wishes: Any) -> DaemonInfo:
    return launch.start(StartOptions(machine, **wishes))


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def test_nothing_is_started_where_that_is_forbidden() -> None:
    with pytest.raises(NoMachineError, match="no machine 'default' is running") as caught:
        launch.ensure_running()
    assert caught.value.remedy == "start it: neurond start"
    assert launch.list_machines() == ()


def test_the_first_need_starts_the_default_machine_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    said: list[str] = []
    launch.ensure_running(on_notice=said.append)
    launch.ensure_running(on_notice=said.append)
    assert said == ["started machine 'default' (trn1.2xlarge); it ends after 30 minutes without clients"]
    (info,) = launch.list_machines()
    assert (info.instance_type, info.idle_exit_s) == ("trn1.2xlarge", 1800)


def test_a_runtime_directory_that_is_a_file_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", str(home / "file"))
    with pytest.raises(NeuronToolsError, match=r"refusing directory \S+/file: it is not a real directory"):
        launch.start(StartOptions("default"))


def test_another_system_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname="Darwin"))
    with pytest.raises(NeuronToolsError, match="need Linux, this is Darwin") as caught:
        launch.start(StartOptions("default"))
    assert "WSL2" in caught.value.remedy


def test_a_type_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    monkeypatch.setenv("NEURONTOOLS_INSTANCE", "inf2.xlarge")
    launch.ensure_running()
    assert [(info.machine, info.instance_type) for info in launch.list_machines()] == [
        ("default", "inf2.xlarge")
    ]


def test_a_misspelt_name_starts_nothing_and_the_running_one_is_suggested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    with pytest.raises(NoMachineError, match="no machine 'clustr' is running") as caught:
        launch.ensure_running("clustr")
    assert caught.value.remedy == "start it: neurond start --machine clustr"
    launch.start(StartOptions("cluster"))
    monkeypatch.setenv("NEURONTOOLS_MACHINE", "clustr")
    with pytest.raises(NoMachineError) as caught:
        launch.ensure_running()
    assert caught.value.remedy == "did you mean 'cluster'?"
    assert [info.machine for info in launch.list_machines()] == ["cluster"]


def test_a_named_machine_that_crashed_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    killed = launch.start(StartOptions("cluster"))
    with os.fdopen(os.pidfd_open(killed.pid)) as pidfd:
        os.kill(killed.pid, signal.SIGKILL)
        select.select([pidfd], [], [], 60)
    launch.ensure_running("cluster")
    (info,) = launch.list_machines()
    assert info.pid != killed.pid


@pytest.mark.parametrize(
    "line",
    [
        "neuron-top --once --machine x",
        "neuron-run --machine x -- true",
        "neuron-monitor --limit 1 --machine x",
    ],
)
def test_a_command_starts_no_other_machine(tool, line, monkeypatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    program, *words = line.split()
    run = tool(program, *words)
    assert (run.returncode, run.stdout) == (3, "")
    assert run.stderr == "error: no machine 'x' is running\nhint: start it: neurond start --machine x\n"
    assert launch.list_machines() == ()


def test_two_starters_at_once_make_one_daemon() -> None:
    code = "from neurontools.machine import launch; print(launch.start(launch.StartOptions('default')).pid)"

    def run(_: int) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(4) as pool:
        pids = set(pool.map(run, range(4)))
    assert len(pids) == 1
    assert len(launch.list_machines()) == 1


@pytest.mark.usefixtures("new_daemons")
def test_a_daemon_leaves_its_starter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    pid = start().pid
    assert os.getsid(pid) != os.getsid(0)
    assert int(status_of(pid)["PPid"]) != os.getpid()
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


def test_a_relative_runtime_directory_stays_where_it_is(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", "run")
    assert start().socket == str(home / "run/default/neurond.sock")


@pytest.mark.usefixtures("new_daemons")
def test_a_daemon_is_small_and_sleeps_without_requests(daemon: DaemonInfo, wait_until: Wait) -> None:
    status = status_of(daemon.pid)
    assert int(status["VmRSS"].split()[0]) < 30 * 1024
    assert int(status["Threads"]) == 1

    def wakeups() -> str:
        return status_of(daemon.pid)["voluntary_ctxt_switches"]

    import time

    wait_until(lambda: status_of(daemon.pid)["State"].startswith("S"))
    time.sleep(0.7)  # the journal's sync after the start
    before = wakeups()
    time.sleep(0.5)
    assert wakeups() == before


@pytest.mark.usefixtures("new_daemons")
def test_a_daemon_imports_nothing_heavy(daemon: DaemonInfo) -> None:
    code = "import sys, neurontools.machine.daemon.daemon; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split()) - set(bare.stdout.split())
    heavy = {"torch", "numpy", "rich", "textual", "psutil", "yaml"}
    assert not {name.partition(".")[0] for name in loaded} & heavy
    with open(f"/proc/{daemon.pid}/maps") as maps:
        assert "/_ssl." not in maps.read()


def test_the_same_type_succeeds_and_another_one_is_refused(daemon: DaemonInfo) -> None:
    assert start(instance_type="trn1.32xlarge") == DaemonInfo(**{**daemon.to_json(), "was_running": True})
    assert start().was_running
    with pytest.raises(DaemonError) as caught:
        start(instance_type="trn1.2xlarge")
    assert caught.value.message == "machine 'default' is trn1.32xlarge, not trn1.2xlarge"
    assert "--machine" in caught.value.remedy
    assert start("other", instance_type="trn1.2xlarge").was_running is False


def test_another_lnc_is_another_machine() -> None:
    assert start(instance_type="trn2.48xlarge").lnc == 2
    assert start(instance_type="trn2.48xlarge", lnc=2).was_running
    with pytest.raises(DaemonError, match=r"with LNC 2, not .* with LNC 1"):
        start(lnc=1)
    assert start("one", instance_type="trn2.48xlarge", lnc=1).core_count == 128


@pytest.mark.parametrize(
    "name", ["a/b", "../up", "", ".hidden", "-x", "with space", "x" * 49, "state", "ü", "a\0b"]
)
def test_names_that_can_not_be_directories_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="invalid machine name"):
        start(name)


def test_bad_types_and_lncs_are_named_before_anything_starts() -> None:
    with pytest.raises(UnknownInstanceError, match=r"'trn9\.huge'"):
        start(instance_type="trn9.huge")
    with pytest.raises(NeuronToolsError, match=r"configuration 2 does not exist on trn1\.2xlarge"):
        start(instance_type="trn1.2xlarge", lnc=2)
    assert launch.list_machines() == ()


def test_a_bad_type_from_the_environment_comes_back_through_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURONTOOLS_INSTANCE", "trn9.huge")
    with pytest.raises(NeuronToolsError, match=r"unknown instance type 'trn9\.huge'"):
        start()


def test_a_daemon_that_dies_at_once_points_to_the_log(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    broken = home / "broken"
    broken.mkdir()
    (broken / "asyncio.py").write_text("raise SystemExit('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(DaemonError, match="ended before it was ready") as caught:
        start()
    assert "broken on purpose" in Path(caught.value.remedy.removeprefix("see ")).read_text()


def test_a_starter_that_does_not_wait_leaves_a_good_daemon(wait_until: Wait) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [
        sys.executable,
        "-m",
        "neurontools.machine.daemon",
        "default",
        '{"machine": "default"}',
        str(write),
    ]
    subprocess.run(command, pass_fds=(write,), check=True)
    os.close(write)
    wait_until(lambda: len(launch.list_machines()) == 1)
    with Client.connect() as client:
        assert client.register(count=1).cores == (0,)
    descriptors = Path(f"/proc/{launch.list_machines()[0].pid}/fd").iterdir()
    assert not [file for file in map(os.readlink, descriptors) if file.startswith("pipe:")]


def test_stale_files_of_a_killed_daemon_are_no_obstacle(daemon: DaemonInfo, end_daemon: End) -> None:
    end_daemon(daemon)
    assert os.path.exists(daemon.socket)
    assert os.path.exists(f"{paths.machine_dir('default')}/neurond.json")
    assert launch.list_machines() == ()
    with pytest.raises(NoMachineError):
        launch.stop()
    assert start().pid != daemon.pid


def test_a_record_with_the_pid_of_another_process_is_stale(daemon: DaemonInfo, end_daemon: End) -> None:
    end_daemon(daemon)
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # start times have that resolution: the next one must differ
    with subprocess.Popen(["sleep", "60"]) as innocent:
        forged = DaemonInfo(**{**daemon.to_json(), "pid": innocent.pid})
        MachineDirectory("default").write_record(forged)
        assert launch.list_machines() == ()
        with pytest.raises(NoMachineError):
            launch.stop(force=True)
        assert innocent.poll() is None
        innocent.kill()


def test_a_file_in_the_place_of_the_socket_is_replaced() -> None:
    os.makedirs(paths.machine_dir("default"), mode=0o700)
    os.chmod(paths.runtime_dir(), 0o700)
    Path(paths.machine_dir("default"), "neurond.sock").write_text("not a socket")
    assert start().pid


def test_directories_that_others_can_enter_are_refused() -> None:
    os.makedirs(paths.runtime_dir(), mode=0o755)
    with pytest.raises(NeuronToolsError, match="others can enter it"):
        start()


def test_a_link_in_the_place_of_a_directory_is_refused(home: Path) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "run").symlink_to(home / "elsewhere")
    with pytest.raises(NeuronToolsError, match="not a real directory"):
        start()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make somebody else's directory")
def test_somebody_else_s_directory_is_refused(home: Path) -> None:
    (home / "run").mkdir(mode=0o700)
    os.chown(home / "run", 65534, 65534)
    with pytest.raises(NeuronToolsError, match="belongs to uid 65534"):
        start()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is not a daemon."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory to another user needs root")
@pytest.mark.parametrize("directory", ["run", "run/default"])
def test_a_record_in_another_user_s_directory_is_not_read(
    home: Path, daemon: DaemonInfo, bystander: subprocess.Popen[bytes], directory: str
) -> None:
    record = home / "run" / "default" / "neurond.json"
    key = key_of(bystander.pid)
    record.write_text(json.dumps({**daemon.to_json(), "pid": key.pid, "start_ticks": key.start_ticks}))
    os.chown(home / directory, 65534, 65534)
    assert launch.list_machines() == ()
    assert not launch.has_crashed("default")
    for ask in (launch.find, launch.restart, lambda name: launch.stop(name, force=True)):
        with pytest.raises(NeuronToolsError, match="belongs to uid 65534"):
            ask("default")
    assert bystander.poll() is None


def test_a_record_in_a_directory_that_others_can_write_is_not_read(daemon: DaemonInfo, home: Path) -> None:
    (home / "run" / "default").chmod(0o770)
    assert launch.list_machines() == ()
    with pytest.raises(NeuronToolsError, match=r"others can write to it \(mode 770\)"):
        launch.find("default")


def test_only_the_process_that_listens_is_stopped(
    home: Path, daemon: DaemonInfo, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_STOP_TIMEOUT_S", 0.1)
    record = home / "run" / "default" / "neurond.json"
    key = key_of(bystander.pid)
    record.write_text(json.dumps({**daemon.to_json(), "pid": key.pid, "start_ticks": key.start_ticks}))
    with pytest.raises(DaemonError, match=f"process {bystander.pid} does not listen on its socket") as caught:
        launch.stop(force=True)
    assert caught.value.remedy == f"if that process is neurond, end it: kill {bystander.pid}"
    assert bystander.poll() is None


def test_a_daemon_that_does_not_answer_is_not_running_already(
    daemon: DaemonInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neurontools.machine.connection.ANSWER_TIMEOUT_S", 0.1)
    os.kill(daemon.pid, signal.SIGSTOP)
    with pytest.raises(DaemonError, match="'default' does not answer") as caught:
        start()
    assert caught.value.remedy == "restart it: neurond restart"


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
def test_the_age_of_a_daemon_does_not_depend_on_the_wall_clock(
    daemon: DaemonInfo, tool: Callable[..., Any], home: Path, jump_s: float
) -> None:
    changed = {**daemon.to_json(), "started_unix_s": daemon.started_unix_s + jump_s}
    (home / "run" / "default" / "neurond.json").write_text(json.dumps(changed))
    (row,) = tool("neurond", "list").stdout.splitlines()[1:]
    assert re.search(r" \d+s$", row)
    assert re.search(rf"pid {daemon.pid}, up \d+s\n", tool("neurond", "status").stdout)


def test_without_proc_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "shows_this_process", lambda: False)
    with pytest.raises(NeuronToolsError, match="/proc is not mounted or shows another pid namespace"):
        start()


def test_a_log_is_private_whatever_the_umask(home: Path) -> None:
    umask = os.umask(0)
    try:
        info = start()
    finally:
        os.umask(umask)
    assert os.stat(info.log).st_mode & 0o777 == 0o600


def test_a_long_path_gets_a_short_socket(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    deep = home / ("long-" * 20) / "run"
    monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", str(deep))
    info = start()
    assert len(info.socket) < 108
    assert (deep / "default" / "socket").read_text().strip() == info.socket == paths.socket_path("default")
    with Client.connect() as client:
        assert client.call("describe")["pid"] == info.pid
    launch.stop()
    assert not os.path.exists(info.socket)


def test_stop_refuses_while_cores_are_claimed_and_force_leaves_the_jobs_alone(
    daemon: DaemonInfo, worker: Callable[[], Any]
) -> None:
    job = worker()
    job.do("register", cores=[1])
    with pytest.raises(DaemonError, match=f"in use: process {job.pid} holds core 1"):
        launch.stop()
    assert launch.stop(force=True).pid == daemon.pid
    assert launch.list_machines() == ()
    assert job.process.poll() is None
    assert not os.path.exists(daemon.socket)
    assert start().instance_type == "trn1.32xlarge"
    with Client.connect() as client:
        assert [process.pid for process in client.snapshot().processes] == [job.pid]


def test_who_only_looks_does_not_keep_a_machine_from_stopping(client: Client) -> None:
    client.register("", "neuron-top", uses_device=False)
    launch.stop()
    assert launch.list_machines() == ()


def test_an_idle_machine_ends_by_itself(wait_until: Wait) -> None:
    info = start(idle_exit_s=0.1)
    wait_until(lambda: launch.list_machines() == ())
    assert "no client for" in Path(info.log).read_text()
    assert not os.path.exists(info.socket)


def test_a_client_or_a_job_keeps_an_idle_machine(worker: Callable[[], Any], wait_until: Wait) -> None:
    info = start(idle_exit_s=0.3)
    with Client.connect() as client:
        job = worker()
        job.do("register")
        child = client.call("describe")["process_count"]
    assert child == 1
    import time

    time.sleep(0.5)
    assert [found.pid for found in launch.list_machines()] == [info.pid]
    job.kill()
    wait_until(lambda: launch.list_machines() == ())


def test_a_private_machine_ends_with_its_process_and_leaves_nothing(wait_until: Wait, home: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as parent:
        info = start("run-1", instance_type="inf2.xlarge", parent_pid=parent.pid)
        assert info.parent_pid == parent.pid
        parent.kill()
    wait_until(lambda: not os.path.exists(home / "run/run-1"))
    wait_until(lambda: not os.path.exists(home / "run/state/run-1"))


def test_a_private_machine_of_a_process_that_is_gone_does_not_start() -> None:
    with subprocess.Popen(["true"]) as parent:
        pid = parent.pid
    with pytest.raises(NeuronToolsError, match="run-2"):
        start("run-2", parent_pid=pid)


def test_signals_end_a_daemon_in_order(daemon: DaemonInfo, wait_until: Wait) -> None:
    os.kill(daemon.pid, signal.SIGINT)
    wait_until(lambda: not os.path.exists(daemon.socket))
    wait_until(lambda: launch.list_machines() == ())


def test_the_descriptor_limit_is_raised(daemon: DaemonInfo) -> None:
    for line in Path(f"/proc/{daemon.pid}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            soft, hard = line.split()[3:5]
            assert soft == hard


def test_an_address_that_another_program_holds_is_not_an_obstacle() -> None:
    """Someone else's listener on the abstract address only costs the guard against deleted directories."""
    from neurontools.machine import directory

    address = directory.recovery_address(paths.machine_dir("default"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(address)  # not listening: nobody answers there
        assert start().pid


def test_a_client_that_exits_while_it_asks_for_recovery_leaves_no_trace(wait_until: Wait) -> None:
    from neurontools.machine import directory

    daemon = start()
    os.kill(daemon.pid, signal.SIGSTOP)
    wait_until(lambda: status_of(daemon.pid)["State"].startswith("T"))
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(directory.recovery_address(paths.machine_dir("default")))
    os.kill(daemon.pid, signal.SIGCONT)
    assert directory.request_recovery(paths.machine_dir("default"))
    log = Path(paths.state_dir(), "default", "neurond.log").read_text()
    assert "Traceback" not in log
