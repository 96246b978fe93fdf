"""Profiles of a part of a program: the recorder of `neuron-run --profile`, started and stopped in between."""

# ruff: noqa: ARG002
# The documented signature.

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from neurontools.profiler.capture.observer import Capture, describe_run
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.xla import api
from neurontools.xla.host_events import attach

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_captures: list[Capture] = []


def start_trace(log_dir: str | os.PathLike[str], options: CaptureOptions | None = None) -> str:
    """Begin a profile; `neuron-profile view` shows it.

    Args:
        log_dir: gets a directory for this process.
        options: what to record; by default every execution with its schedule, and the host.

    Returns:
        The directory of this process.

    Raises:
        RuntimeError: a profile is being taken.
        ProfileError: the directory cannot be made.
        MissingDependencyError: numpy is not installed.
    """
    with _lock:
        if _captures:
            raise RuntimeError("Profile has already been started. Only one profile may be run at a time.")
        runtime = api.runtime()
        options = options or CaptureOptions(device=DeviceProfile.SESSION)
        capture = Capture(os.fspath(log_dir), describe_run(runtime, options), options)
        attach(capture, runtime)
        _captures.append(capture)
        return capture.directory


def stop_trace() -> None:
    """End the profile; what was recorded before has run.

    Raises:
        RuntimeError: there is no profile.
    """
    with _lock:
        if not _captures:
            raise RuntimeError("No profile started")
        api.engine().sync(cause="end of the profile")
        capture = _captures.pop()
        capture.on_close()
        api.runtime().remove_observer(capture)


@contextmanager
def profile_block(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Profile a block; without the device nothing happens. `neurontools.profile` is this."""
    if not api.is_active():
        yield
        return
    start_trace(directory)
    try:
        yield
    finally:
        stop_trace()


class profile:  # noqa: N801 # the documented name
    """A profile of a block, or, with `auto_start=False`, from `start()` to its end.

    Args:
        port: accepted; there is no server.
        ms_duration: the profile ends after this time, in milliseconds.
        neuron_tensorboard_plugin_dir: gets a directory for this process.
        profile_type: accepted; both levels are recorded.
        auto_start: whether the profile starts with the block.
        delete_working: accepted.
        traced_only: accepted.

    Source: AWS Neuron documentation, "PyTorch NeuronX Profiling API".
    """

    def __init__(
        self,
        port: int = 9012,
        ms_duration: int = 60_000,
        neuron_tensorboard_plugin_dir: str = "logs/plugins/neuron",
        profile_type: str = "operator",
        auto_start: bool = True,
        delete_working: bool = True,
        traced_only: bool = False,
    ) -> None:
        self._directory = neuron_tensorboard_plugin_dir
        self._auto_start = auto_start
        self._duration_s = ms_duration / 1000
        self._timer: threading.Timer | None = None
        self._runs = False

    def start(self) -> None:
        """Begin the profile, unless it has begun."""
        if self._runs:
            return
        start_trace(self._directory)
        self._runs = True
        self._timer = threading.Timer(self._duration_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        if self._auto_start:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._runs:
            self._runs = False
            stop_trace()
        if self._timer is not None:
            self._timer.cancel()
