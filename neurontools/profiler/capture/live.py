"""Profiling a process for a viewer: the part that runs inside that process.

Every viewer holds a shared lock of the profile's directory. When no viewer is left, even after a crash, the process
stops profiling and removes the files that it made. Only the newest records are kept, so that a long look costs no disk.

The path of the directory comes from the daemon, which may be another user's: only the directory of a viewer of this
user is accepted, and nothing else in it is ever removed.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.locks import is_locked
from neurontools.errors import NeuronToolsError
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.capture.observer import Capture, describe_run
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.runtime.models import Model
    from neurontools.runtime.session import Runtime
    from neurontools.runtime.status import NrtStatus

_log = logging.getLogger("neurontools.profiler")
_OPTIONS = CaptureOptions(device=DeviceProfile.SESSION, max_events_per_nc=32_768)
LIVE_NAME = re.compile(r"[0-9]+-[0-9]+-[0-9]+")
"""Names of directories that viewers make: pid, time, number."""
_LOOK_NS = 250_000_000
_MOST_BYTES = 16 << 20
"""What names and NEFFs may take beyond those of the start, before a new profile begins."""


class LiveProfiler:
    """Profiles this process while there is a viewer; an `ExecutionObserver` that looks whether there still is.

    Nothing here raises: the program goes on whatever happens to its profile.

    Args:
        runtime: of this process.
        attach: lets a capture record this process.
    """

    def __init__(self, runtime: Runtime, attach: Callable[[Capture, Runtime], None]) -> None:
        self._runtime = runtime
        self._attach = attach
        self._lock = threading.Lock()
        self._capture: Capture | None = None
        self._directory = ""
        self._request = 0
        self._look_at_ns = 0
        self._most_bytes = 0

    def follow_request(self) -> None:
        """Begin the profile that the daemon asks for; called by the runtime before an execution."""
        with self._lock:
            self._end()
            self._request = self._runtime.profile_request
            try:
                self._directory = self._runtime.profile_directory()
                if self._directory:
                    self._check_directory()
                    self._begin()
                    self._runtime.add_observer(self)
            except (NeuronToolsError, OSError) as error:
                self._directory = ""
                _log.warning("cannot profile for a viewer: %s", error)

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        """Do nothing."""

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: NrtStatus) -> None:  # noqa: ARG002
        """Look from time to time whether there is a viewer."""
        if end_ns < self._look_at_ns or not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at_ns = end_ns + _LOOK_NS
            self._look()
        finally:
            self._lock.release()

    def on_unload(self, model: Model) -> None:
        """Do nothing."""

    def on_close(self) -> None:
        """End the profile with the runtime."""
        with self._lock:
            capture, self._capture = self._capture, None
            if capture is not None:
                capture.on_close()
            self._leave()

    def _look(self) -> None:
        capture = self._capture
        if capture is None:
            return
        if self._runtime.profile_request != self._request:
            self._end()
        elif not is_watched(self._directory):
            self._end()
            try:
                self._runtime.withdraw_profile(self._directory)
            except NeuronToolsError as error:
                _log.debug("cannot withdraw the profile: %s", error)
        elif capture.stored_bytes > self._most_bytes:
            self._discard()
            try:
                self._begin()
            except ProfileError as error:
                _log.warning("cannot go on to profile for a viewer: %s", error)
                self._end()

    def _begin(self) -> None:
        capture = Capture(
            self._directory, describe_run(self._runtime, _OPTIONS), _OPTIONS, on_warning=_log.debug
        )
        self._attach(capture, self._runtime)
        self._capture = capture
        self._most_bytes = capture.stored_bytes + _MOST_BYTES

    def _end(self) -> None:
        self._discard()
        self._leave()

    def _discard(self) -> None:
        """End the profile and remove it."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.on_close()
            self._runtime.remove_observer(capture)
            capture.remove()

    def _check_directory(self) -> None:
        directory = self._directory
        if not is_live_directory(directory, self._runtime.machine):
            raise ProfileError(f"{directory} is not a directory of a viewer")
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ProfileError(f"{directory} is not a private directory of this user")

    def _leave(self) -> None:
        self._runtime.remove_observer(self)
        if self._directory and not is_watched(self._directory):
            with suppress(OSError):  # something else is in it
                os.rmdir(self._directory)


def is_live_directory(directory: str, machine: str) -> bool:
    """Return whether a viewer of this user makes such a path for the profile of a process on a machine."""
    parent, name = os.path.split(directory)
    return LIVE_NAME.fullmatch(name) is not None and parent == paths.live_dir(machine)


def is_watched(directory: str) -> bool:
    """Return whether the profile in a directory has a viewer."""
    return is_locked(directory, os.O_DIRECTORY)
