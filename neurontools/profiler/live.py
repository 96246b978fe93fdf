"""Watching a running process: it profiles itself into a bounded ring as long as there is a viewer, without a restart.

    viewer     makes a private directory, locks it (shared), asks the daemon
    daemon     checks the user, rings the doorbell in the process's telemetry page
    process    notices at its next execution, profiles into the directory (`capture.live`)
    viewer     opens the newest records with the reader of profiles, as often as it likes

The lock is the lease: the kernel releases it when the viewer ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.locks import SHARED, flock, is_same_file
from neurontools.base.text import plural, printable
from neurontools.errors import NeuronToolsError
from neurontools.machine.client import Client
from neurontools.machine.processes import ProcessKey, is_alive
from neurontools.profiler.capture.format import ProfileError, require_numpy
from neurontools.profiler.capture.live import LIVE_NAME, is_live_directory, is_watched

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from neurontools.machine.snapshot import ProcessState
    from neurontools.profiler.analysis.live import LiveNumbers
    from neurontools.profiler.capture.format import NeffProgram

    Reading = LiveNumbers | str

WINDOW_NS = 10_000_000_000
_TRIES = 5
_SHOWN = 5
_ASKED_S = 5.0
_START = "start one with neuron-run -- python train.py, or choose another machine with --machine"


class LiveProfile:
    """What a running process of this user does; it profiles itself until `close`, or until this process ends.

    Args:
        client: of the machine.
        process: the process.

    Raises:
        NeuronToolsError: no such process, another user's, or a process that executes nothing.
        MissingDependencyError: numpy is not installed.
    """

    def __init__(self, client: Client, process: ProcessKey) -> None:
        require_numpy()
        self._client = client
        self._key = process
        self.pid = process.pid
        self._programs: dict[str, NeffProgram | None] = {}
        self._directory, self._descriptor = self._ask()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return is_alive(self._key)

    def read(self) -> LiveNumbers:
        """Return the numbers of the last seconds."""
        from neurontools.profiler.analysis.live import LiveNumbers, live_numbers
        from neurontools.profiler.trace.open import merge
        from neurontools.profiler.trace.reader import open_captures

        try:
            captures = open_captures(self._directory, known=self._programs)
        except ProfileError:
            try:  # a file of the ring may have gone
                captures = open_captures(self._directory, known=self._programs)
            except ProfileError:  # nothing yet, or a new daemon does not know of the request
                self._renew()
                return LiveNumbers(self.pid)
        self._programs = captures[-1].programs
        trace = merge(captures[-1:])
        return live_numbers(trace, time.time_ns(), WINDOW_NS)

    def close(self) -> None:
        """Stop watching; the process stops profiling unless others watch it. Further calls do nothing."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        if is_watched(self._directory):
            return
        try:
            self._client.end_profile(self.pid, self._directory)
        except NeuronToolsError:
            pass  # the process notices by itself
        shutil.rmtree(self._directory, ignore_errors=True)

    def _renew(self) -> None:
        try:
            directory = self._client.profile(self.pid, self._directory)
        except NeuronToolsError:
            return  # the process has ended
        descriptor = None if directory == self._directory else self._lock_other(directory)
        if descriptor is not None:  # another viewer was faster
            _discard(self._directory, self._descriptor)
            self._directory, self._descriptor = directory, descriptor

    def _ask(self) -> tuple[str, int]:
        """Return the directory into which the process profiles itself, and a descriptor with its lock."""
        own = _make_directory(self._client.machine)
        for _ in range(_TRIES):
            try:
                directory = self._client.profile(self.pid, own[0])
            except BaseException:
                _discard(*own)
                raise
            if directory == own[0]:
                return own
            descriptor = self._lock_other(directory)
            if descriptor is not None:
                _discard(*own)
                return directory, descriptor
            self._client.end_profile(self.pid, directory)  # its viewer has ended
        _discard(*own)
        raise NeuronToolsError(f"cannot watch process {self.pid}", "try again")

    def _lock_other(self, directory: str) -> int | None:
        """Lock the directory of another viewer of this user; the daemon, which names it, may be another user's."""
        return _lock(directory) if is_live_directory(directory, self._client.machine) else None


class LiveWatch:
    """Reads the numbers of one process after the other in a thread of its own, as long as they are asked for.

    Args:
        period_s: time between two readings.
    """

    def __init__(self, period_s: float = 1.0) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted = "", ProcessKey(0, 0)
        self._until_s = 0.0
        self._newest: tuple[ProcessKey, Reading] | None = None

    def newest(self, machine: str, process: ProcessKey) -> Reading | None:
        """Return the newest numbers of a process or the reason why there are none; None before the first reading."""
        with self._lock:
            self._wanted = machine, process
            self._until_s = time.monotonic() + _ASKED_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live profile", daemon=True)
                self._thread.start()
            return self._newest[1] if self._newest and self._newest[0] == process else None

    def _run(self) -> None:
        while self._goes_on():
            machine, process = wanted = self._wanted
            try:
                with Client.connect(machine) as client, LiveProfile(client, process) as profile:
                    while self._wanted == wanted and time.monotonic() < self._until_s and profile.is_running:
                        self._newest = process, profile.read()
                        time.sleep(self._period_s)
            except NeuronToolsError as error:
                self._newest = process, error.message
                time.sleep(self._period_s)

    def _goes_on(self) -> bool:
        """Return whether numbers are still asked for; if not, the next who asks starts another thread."""
        with self._lock:
            if time.monotonic() < self._until_s:
                return True
            self._thread = None
            return False


def choose_process(processes: Sequence[ProcessState], pid: int | None) -> ProcessState:
    """Return the process to watch: the one with a pid, or the only one of this user that uses a NeuronCore.

    Raises:
        NeuronToolsError: no or several matching processes.
    """
    jobs = [process for process in processes if process.uses_device and process.origin == "live"]
    if pid is not None:
        found = next((process for process in processes if process.pid == pid), None)
        if found is None:
            raise NeuronToolsError(f"process {pid} is not on this machine", _running(jobs))
        return found
    own = [process for process in jobs if process.uid == os.getuid()]
    if not own:
        raise NeuronToolsError("no process of this user runs on this machine", _running(jobs))
    if len(own) > 1:
        raise NeuronToolsError(f"{plural(len(own), 'process', 'processes')} run", f"name one: {_list(own)}")
    return own[0]


def _running(jobs: Sequence[ProcessState]) -> str:
    return f"these run: {_list(jobs)}" if jobs else _START


def _list(jobs: Sequence[ProcessState]) -> str:
    named = [f"{job.pid} ({printable(job.tag or job.command)[:40]})" for job in jobs[:_SHOWN]]
    return ", ".join(named) + (", ..." if len(jobs) > _SHOWN else "")


def _make_directory(machine: str) -> tuple[str, int]:
    """Make a private directory, and remove those of viewers that died; return its path and a descriptor with its lock."""
    parent = paths.ensure_private(paths.live_dir(machine))
    try:
        for name in os.listdir(parent):
            path = f"{parent}/{name}"
            if LIVE_NAME.fullmatch(name) and not is_watched(path):
                shutil.rmtree(path, ignore_errors=True)
        for number in range(_TRIES):
            path = f"{parent}/{os.getpid()}-{time.monotonic_ns()}-{number}"
            os.mkdir(path, 0o700)
            descriptor = _lock(path)
            if descriptor is not None:
                return path, descriptor
    except OSError as error:
        raise NeuronToolsError(f"cannot use {parent}: {error.strerror}", "free space there") from error
    raise NeuronToolsError(f"cannot keep a directory in {parent}", "try again")


def _lock(directory: str) -> int | None:
    """Lock a directory as a viewer; return the descriptor, None if it is gone or about to be removed."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if flock(descriptor, SHARED, wait=False) and is_same_file(directory, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _discard(directory: str, descriptor: int) -> None:
    os.close(descriptor)
    shutil.rmtree(directory, ignore_errors=True)
