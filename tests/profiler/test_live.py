"""Watching a running process: it begins and ends to profile itself with its viewers, and never for longer."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from neurontools import paths
from neurontools.errors import NeuronToolsError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.daemon.methods import Methods
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.processes import Peer, ProcessKey, key_of
from neurontools.machine.protocol import RefusedError
from neurontools.machine.requests import ProfileRequest
from neurontools.machine.snapshot import MemoryUse, ProcessState
from neurontools.profiler.analysis.live import LiveNumbers, live_numbers, to_json, to_text
from neurontools.profiler.live import LiveProfile, LiveWatch, choose_process
from neurontools.profiler.trace.open import load
from neurontools.runtime.host_activity import HostEvent
from neurontools.tui.top.pages.live import LiveLines
from neurontools.tui.widgets.lines import printed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]

JOB = """
import json, sys
from conftest import Maker
from neurontools.profiler.capture import live
from neurontools.runtime.session import Runtime
live._MOST_BYTES = int(sys.argv[1])
runtime = Runtime.open()
runtime.on_profile_request = live.LiveProfiler(runtime, lambda capture, runtime: runtime.add_observer(capture)).follow_request
def load(name):
    neff = Maker().neff((Maker.operation(name, "Tensor", 0, 20_000),))
    return runtime.load(0, name=name, uuid=bytes(16), neff=neff, code_bytes=10, constant_bytes=0, scratch_bytes=0,
                        modelled_ns=25_000, flops=1)
model = load("mlp")
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    if line.startswith("load"):
        runtime.unload(model)
        model = load(line.strip())
    runtime.execute(model, lambda: None)
    print(json.dumps(len(runtime.observers)), flush=True)
"""
VIEWER = """
import sys
from neurontools.machine.client import Client
from neurontools.machine.processes import key_of
from neurontools.profiler.live import LiveProfile
profile = LiveProfile(Client.connect(), key_of(int(sys.argv[1])))
print("watching", flush=True)
sys.stdin.read()
"""
PATIENCE_S = 60.0


class Job:
    """A process on the machine that executes when it is told to."""

    def __init__(self, most_bytes: int = 1 << 24) -> None:
        environ = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(most_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert self._line() == "ready"

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def execute(self, word: str = "") -> int:
        """Execute once; return the number of observers of the runtime."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return int(self._line())

    def execute_until(self, reached: Callable[[int], bool]) -> None:
        """Execute until something is true of the number of observers."""
        give_up = time.monotonic() + PATIENCE_S
        while not reached(self.execute()):
            assert time.monotonic() < give_up

    @property
    def key(self) -> ProcessKey:
        return key_of(self.process.pid)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    launch.start(StartOptions("default", instance_type="trn1.2xlarge"))
    with Client.connect() as found:
        yield found
    launch.stop("default")


@pytest.fixture
def job(client: Client) -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def kept() -> list[str]:
    """Return the directories of live profiles."""
    return os.listdir(paths.live_dir("default"))


def test_a_running_process_shows_its_last_seconds_and_stops_with_the_viewer(client: Client, job: Job) -> None:
    assert job.execute() == 0
    with LiveProfile(client, job.key) as profile:
        assert profile.read().idle_ns is None
        job.execute_until(lambda _: profile.read().executions >= 3)
        numbers = profile.read()
        assert numbers.pid == job.process.pid
        assert numbers.steps is not None
        assert [each.name for each in numbers.steps.operators] == ["mlp"]
        assert os.stat(paths.live_dir("default")).st_mode & 0o777 == 0o700
        (directory,) = kept()
        assert os.stat(f"{paths.live_dir('default')}/{directory}").st_mode & 0o777 == 0o700
    assert kept() == []
    job.execute_until(lambda observers: observers == 0)
    assert kept() == []


def test_the_process_stops_when_its_viewer_is_killed(client: Client, job: Job) -> None:
    viewer = subprocess.Popen(
        [sys.executable, "-c", VIEWER, str(job.process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert viewer.stdout is not None
    assert viewer.stdout.readline() == "watching\n"
    assert job.execute() == 2
    viewer.kill()
    viewer.communicate()
    job.execute_until(lambda observers: observers == 0)
    assert kept() == []
    assert client.profile(job.process.pid, "/x") == "/x"  # the former request is withdrawn


@pytest.mark.parametrize("place", ["elsewhere", "other name", "link", "nested"])
def test_a_directory_that_no_viewer_made_is_left_alone(
    client: Client, job: Job, home: Path, place: str
) -> None:
    private = home / "1-2-3"
    live = Path(paths.ensure_private(paths.live_dir("default")))
    asked = {
        "elsewhere": private,
        "other name": live / "mine",
        "link": live / "1-2-3",
        "nested": live / "1-2-3" / "4-5-6",
    }[place]
    kept_in = private if place == "link" else asked
    kept_in.mkdir(0o700, parents=True)
    (kept_in / "thesis.txt").write_text("years of work")
    if place == "link":
        asked.symlink_to(private)
    client.profile(job.process.pid, str(asked))
    assert job.execute() == 0
    assert job.execute() == 0
    assert os.listdir(kept_in) == ["thesis.txt"]


def test_only_what_the_process_made_is_removed_from_a_viewers_directory(client: Client, job: Job) -> None:
    directory = Path(paths.live_dir("default"), "1-2-3")
    paths.make_private(str(directory))
    (directory / "own.txt").write_text("x")
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    client.profile(job.process.pid, str(directory))
    job.execute_until(lambda observers: observers > 0)
    (capture,) = (path for path in directory.iterdir() if path.is_dir())
    (capture / "nested").mkdir()
    (capture / "nested" / "meta.json").write_text("x")
    os.close(lock)
    job.execute_until(lambda observers: observers == 0)
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*")}
    assert left == {"own.txt", capture.name, f"{capture.name}/nested", f"{capture.name}/nested/meta.json"}


def test_a_viewer_does_not_take_a_directory_that_a_daemon_names(
    client: Client, job: Job, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = home / "private"
    private.mkdir(0o700)
    (private / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(client, "profile", lambda _pid, _directory: str(private))
    with pytest.raises(NeuronToolsError, match="cannot watch"):
        LiveProfile(client, job.key)
    assert os.listdir(private) == ["thesis.txt"]


def test_two_viewers_share_a_profile_that_ends_with_the_last(client: Client, job: Job) -> None:
    with LiveProfile(client, job.key) as second:
        with LiveProfile(client, job.key) as first:
            assert len(kept()) == 1
            job.execute_until(lambda _: second.read().executions > 0)
            assert first.read().executions > 0
        assert job.execute() == 2
        assert len(kept()) == 1
    assert kept() == []


def test_a_job_that_ends_leaves_its_last_numbers_and_no_files(client: Client, job: Job) -> None:
    with LiveProfile(client, job.key) as profile:
        job.execute()
        assert job.process.stdin is not None
        job.process.stdin.close()
        job.process.wait()
        job.process.stdin = None
        assert not profile.is_running
        assert profile.read().executions == 1
    assert kept() == []


def test_what_a_killed_viewer_and_a_killed_job_leave_is_removed_by_the_next_viewer(
    client: Client, job: Job
) -> None:
    paths.make_private(f"{paths.live_dir('default')}/1-2-3/old")
    with LiveProfile(client, job.key):
        assert len(kept()) == 1


def test_a_new_daemon_is_asked_again(client: Client, job: Job) -> None:
    with LiveProfile(client, job.key) as profile:
        job.execute_until(lambda _: profile.read().executions > 0)
        os.kill(launch.find("default").pid, signal.SIGKILL)
        launch.start(StartOptions("default", instance_type="trn1.2xlarge"))
        job.execute_until(lambda observers: observers == 0)
        job.execute_until(lambda _: profile.read().executions > 0)


def test_programs_and_names_do_not_grow_without_end(client: Client) -> None:
    job = Job(most_bytes=100)
    with LiveProfile(client, job.key) as profile:
        job.execute()
        place = Path(paths.live_dir("default"), *kept())
        job.execute("load next")
        job.execute_until(lambda _: len(list(place.glob("*/*.neff"))) == 1)
        assert len(list(place.iterdir())) == 1
        job.execute_until(lambda _: profile.read().executions > 0)
    job.close()


def test_a_watch_reads_as_long_as_it_is_asked(client: Client, job: Job) -> None:
    watch = LiveWatch(period_s=0.05)

    def has_numbers(_: int) -> bool:
        found = watch.newest("default", job.key)
        assert not isinstance(found, str)
        return found is not None and found.executions > 0

    job.execute_until(has_numbers)
    watch._until_s = 0.0
    job.execute_until(lambda observers: observers == 0)
    assert kept() == []


def state(pid: int, **more: Any) -> ProcessState:
    """Return a process as a snapshot has it."""
    fields = {
        "uid": os.getuid(),
        "origin": "live",
        "uses_device": True,
        "tag": "",
        "command": f"python {pid}.py",
    }
    fields |= more
    return ProcessState(
        pid=pid,
        start_ticks=1,
        runtime_version="",
        cores=(),
        host_memory=MemoryUse(),
        models=(),
        status_counts=(),
        latency_counts=(),
        registered_ns=0,
        stale=False,
        **fields,
    )


def test_the_only_process_of_the_user_is_chosen() -> None:
    others = (state(1, uid=os.getuid() + 1), state(2, origin="synthetic"), state(3, uses_device=False))
    assert choose_process((*others, state(4)), None).pid == 4
    assert choose_process((*others, state(4)), 1).pid == 1
    with pytest.raises(NeuronToolsError) as none:
        choose_process((), None)
    assert "neuron-run" in str(none.value.remedy)
    with pytest.raises(NeuronToolsError, match="2 processes") as several:
        choose_process((state(4, tag="a"), state(5)), None)
    assert several.value.remedy == "name one: 4 (a), 5 (python 5.py)"
    with pytest.raises(NeuronToolsError, match="process 9 is not on this machine") as unknown:
        choose_process((state(4),), 9)
    assert unknown.value.remedy == "these run: 4 (python 4.py)"


@pytest.mark.parametrize(
    ("process", "directory", "reason"),
    [
        ({"uid": 12}, "/x", "belongs to uid 12"),
        ({"player": ProcessKey(1, 1)}, "/x", "part of a scenario"),
        ({"uses_device": False}, "/x", "uses no NeuronCore"),
        ({}, "x", "absolute path"),
        (None, "/x", "not on this machine"),
    ],
)
def test_the_daemon_refuses(process: dict[str, Any] | None, directory: str, reason: str) -> None:
    found = {"uid": 7, "player": None, "uses_device": True, "key": ProcessKey(5, 1)} | (process or {})
    processes = {} if process is None else {ProcessKey(5, 1): SimpleNamespace(**found)}
    service: Any = SimpleNamespace(machine=SimpleNamespace(processes=processes))
    methods = Methods(service, *[cast("Any", None)] * 4)
    connection: Any = SimpleNamespace(peer=Peer(9, 7))
    with pytest.raises(RefusedError, match=reason):
        methods.call(connection, ProfileRequest(5, directory))


def test_the_window_has_only_the_newest_steps(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    model = maker.model()
    capture.on_load(model, maker.start_ns, maker.start_ns + 1)
    second = 1_000_000_000
    for number in range(1, 21):
        start_ns = maker.start_ns + number * second
        capture.on_execute(model, number, start_ns, start_ns + number * 1_000_000, 0)
        end_ns = start_ns + second // 2
        capture.host.on_host_event((HostEvent.STEP, end_ns, end_ns, 0, "mark_step", "", 0, 0))
        compiled = (HostEvent.COMPILE, end_ns, end_ns + 7, 0, "graph", "", 0, 0)
        capture.host.on_host_event(compiled)
    capture.on_close()
    trace = load(str(home / "p"))
    numbers = live_numbers(trace, trace.origin_unix_ns + trace.end_ns, 5 * second)
    assert (numbers.executions, numbers.compiles, numbers.compile_ns) == (5, 5, 35)
    steps = numbers.steps
    assert steps is not None
    assert (steps.summary.count, steps.last_ns, steps.p95_ns) == (5, second, second)
    assert steps.summary.execute_ns == 18_000_000
    assert steps.bound.startswith("limited by: the host")
    assert steps.gaps.count == 4
    assert sum(each.count for each in steps.operators) == 5 * len(maker.mlp())
    text = to_text(numbers, "python train.py", 80)
    assert "last 1.000 s, median 1.000 s, p95 1.000 s (5 steps)" in text
    assert "compiles  5 compiles, 35 ns" in text
    assert max(map(len, text.splitlines())) <= 80
    assert steps.device is not None
    assert f"device {steps.device.text} (modelled)" in " ".join(to_text(numbers, "", 40).split())
    assert json.loads(json.dumps(to_json(numbers)))["steps"]["summary"]["count"] == 5
    late = live_numbers(trace, trace.origin_unix_ns + trace.end_ns + 60 * second, 5 * second)
    assert late.executions == 0
    assert late.steps is not None
    assert "no execution for 60" in to_text(late, "", 80)


def test_neuron_top_shows_the_numbers_in_the_details_of_a_process(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", steps=5)
    trace = load(str(home / "p"))
    readings: dict[int, Any] = {
        4: live_numbers(trace, trace.origin_unix_ns + trace.end_ns, 5_000_000_000),
        5: "process 5 belongs to uid 12",
        6: LiveNumbers(6),
        7: None,
    }
    shown = LiveLines()
    shown._watch = cast("Any", SimpleNamespace(newest=lambda _machine, process: readings[process.pid]))
    snapshot = SimpleNamespace(source="sim", machine="default")
    model: Any = SimpleNamespace(shown=SimpleNamespace(snapshot=snapshot))

    def text(process: ProcessState) -> str:
        lines = [printed(line) for line in shown.lines(model, process, 100)]
        assert max(map(len, lines)) <= 100
        return "\n".join(lines)

    assert "median 350.0 us" in text(state(4))
    assert "aten.mm" in text(state(4))
    assert "belongs to uid 12" in text(state(5))
    assert "waiting for the next execution" in text(state(6))
    assert "asking the process" in text(state(7))
    assert "nothing to profile" in text(state(4, origin="synthetic"))


def test_the_command_names_what_is_missing(client: Client, tool: Tool) -> None:
    none = tool("neuron-profile", "live", "--once")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr.startswith(
        "error: no process of this user runs on this machine\nhint: start one with neuron-run"
    )
    assert tool("neuron-profile", "live", "--interval", "0").returncode == 2
    assert tool("neuron-profile", "live", "0").returncode == 2
    assert tool("neuron-profile", "live", "--machine", "other", "--once").returncode == 3


def test_the_command_prints_a_line_of_json_until_the_job_ends(client: Client, job: Job) -> None:
    program = os.path.join(os.path.dirname(sys.executable), "neuron-profile")
    command = [program, "live", str(job.process.pid), "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout is not None
        assert viewer.stderr is not None
        assert json.loads(viewer.stdout.readline())["executions"] == 0
        while job.execute() == 0:
            pass
        while json.loads(viewer.stdout.readline())["executions"] == 0:
            job.execute()
        job.close()
        rest = viewer.stdout.read().splitlines()  # none if the job ended right after an update
        assert {json.loads(line)["pid"] for line in rest} <= {job.process.pid}
        assert viewer.stderr.read() == f"process {job.process.pid} has ended\n"
    assert viewer.returncode == 0
    assert kept() == []
