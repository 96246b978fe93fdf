"""The host's own neuron-monitor as a running program: found, started, and its lines taken in as they come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from typing import IO, TYPE_CHECKING

from neurontools.monitor.codec import DamagedLineError, parse_line
from neurontools.monitor.report import RuntimeGroup, SystemGroup

if TYPE_CHECKING:
    from neurontools.sources.reported_machine import ReportedMachine

PROGRAM = "neuron-monitor"
REAL_DIRECTORY = "/opt/aws/neuron/bin"

_OURS = b"neurontools"
_LOOKED_AT_BYTES = 1 << 16
_END_TIMEOUT_S = 5.0


def find_monitor(root: str = "") -> str | None:
    """Return the path of the host's neuron-monitor, None where there is none; our own does not count.

    Args:
        root: where `opt` is looked for first, "" for the host's own.
    """
    directories = [f"{root}{REAL_DIRECTORY}", *os.environ.get("PATH", "").split(os.pathsep)]
    for directory in directories:
        path = os.path.join(directory, PROGRAM)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK) and not _is_ours(path):
            return path
    return None


class HostMonitor:
    """A neuron-monitor that runs until this is closed.

    Args:
        path: the program.
        period_s: time between two of its lines.
        reported: takes in the reports; read it under `lock`.

    Raises:
        OSError: the program can't be started.
    """

    def __init__(self, path: str, period_s: float, reported: ReportedMachine) -> None:
        self.lock = threading.Condition()
        self.count = 0
        """How many reports were taken in."""
        self.problem = ""
        """Why the last line was no report, "" when it was one."""
        self._reported = reported
        self._config = tempfile.NamedTemporaryFile("w", prefix="neurontools-", suffix=".json")  # noqa: SIM115  closed in close
        json.dump(configuration(period_s), self._config)
        self._config.flush()
        self._process = subprocess.Popen(
            [path, "-c", self._config.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.ended = False
        self._thread = threading.Thread(target=self._read, name="neuron-monitor", daemon=True)
        self._thread.start()

    def wait(self, count: int, timeout_s: float) -> bool:
        """Wait for a number of reports; return whether they came in time. The exit of the program ends the wait."""
        with self.lock:
            self.lock.wait_for(lambda: self.count >= count or self.ended, timeout_s)
            return self.count >= count

    def close(self) -> None:
        """End the program. A second time does nothing."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGTERM)
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            except ProcessLookupError:
                self._process.wait()
        self._thread.join(_END_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._config.close()

    def _read(self) -> None:
        stdout: IO[bytes] | None = self._process.stdout
        for line in stdout or ():
            try:
                report = parse_line(line)
            except DamagedLineError as error:
                with self.lock:
                    self.problem = error.message
                continue
            with self.lock:
                self._reported.take(report)
                self.problem = ""
                self.count += 1
                self.lock.notify_all()
        with self.lock:
            self.ended = True
            self.lock.notify_all()


def configuration(period_s: float) -> dict[str, object]:
    """Return a configuration that asks for every group (AWS Neuron documentation, neuron-monitor user guide)."""
    return {
        "period": f"{round(period_s * 1000)}ms",
        "neuron_runtimes": [
            {"tag_filter": ".*", "metrics": [{"type": str(group)} for group in RuntimeGroup]}
        ],
        "system_metrics": [{"type": str(group)} for group in SystemGroup],
    }


def _is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _OURS in file.read(_LOOKED_AT_BYTES)
    except OSError:
        return False
