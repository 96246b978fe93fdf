"""Records snapshots into a file of neuron-monitor lines, each with every group."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.monitor.codec import format_line
from neurontools.monitor.collector import Collector, PsutilHost
from neurontools.monitor.config import default_config
from neurontools.monitor.report import SystemGroup

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot
    from neurontools.monitor.collector import HostReader
    from neurontools.monitor.config import MonitorConfig


class SnapshotRecorder:
    """Writes a new file, as `neurontools scenario record` does; one thread passes snapshots, any may close.

    Args:
        path: the file, which must not exist.
        reader: reads the host's counters.

    Raises:
        NeuronToolsError: the file exists or cannot be created.
    """

    def __init__(self, path: str, reader: HostReader | None = None) -> None:
        self.path = path
        self.lines = 0
        """How many lines were written."""
        self.problem = ""
        """Why nothing more is written, "" while all is well."""
        self._reader = reader or PsutilHost()
        self._config = default_config()
        self._collector: Collector | None = None
        self._last_ns = 0
        self._closing = threading.Lock()
        try:
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115  open as long as the recorder
        except FileExistsError as error:
            raise NeuronToolsError(
                f"{path} already exists", "record into another file, or delete it"
            ) from error
        except OSError as error:
            raise NeuronToolsError(f"cannot write {path}: {error.strerror}") from error

    def take(self, snapshot: Snapshot) -> None:
        """Write a line; the first snapshot only starts the first interval; snapshots after `close` are ignored."""
        with self._closing:
            if not self._file.closed:
                self._take(snapshot)

    def close(self) -> None:
        """Close the file, and remove it if it is empty. Closing again does nothing."""
        with self._closing:
            if self._file.closed:
                return
            if not self.lines:
                self._take_away()
            self._file.close()

    def _take_away(self) -> None:
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path)):
                os.unlink(self.path)

    def _take(self, snapshot: Snapshot) -> None:
        if self.problem or (self._collector is not None and snapshot.taken_ns == self._last_ns):
            return
        if self._collector is None or snapshot.taken_ns < self._last_ns:
            self._config = _config_for(snapshot)
            self._collector = Collector(self._config, snapshot, self._reader)
        else:
            due = frozenset(self._config.periods())
            self._write(format_line(self._collector.collect(due, snapshot)).encode() + b"\n")
        self._last_ns = snapshot.taken_ns

    def _write(self, line: bytes) -> None:
        begin = self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")  # noqa: TRY301  a short write says no more
        except (OSError, ValueError) as error:
            self.problem = f"recording stopped: {getattr(error, 'strerror', None) or error}"
            self._cut(begin)
        else:
            self.lines += 1

    def _cut(self, size: int) -> None:
        # Readers would report half a line at the end as damage.
        try:
            os.ftruncate(self._file.fileno(), size)
        except (OSError, ValueError):
            return


def _config_for(snapshot: Snapshot) -> MonitorConfig:
    """Return what to record: everything, except this host's vCPUs and memory for a remote machine."""
    config = default_config()
    if snapshot.source != "remote":
        return config
    local_groups = {SystemGroup.VCPU_USAGE, SystemGroup.MEMORY_INFO}
    return replace(
        config, system=tuple(metric for metric in config.system if metric.group not in local_groups)
    )
