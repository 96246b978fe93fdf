"""A host with the Neuron driver as a source: its sysfs tree, /dev, /proc, and the stream of its own neuron-monitor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, Self

from msgspec.structs import replace

from neurontools import env
from neurontools.base.procfs import read_boot_time, read_stat
from neurontools.errors import NeuronToolsError, NoMachineError
from neurontools.machine.snapshot import CoreUse, Snapshot
from neurontools.monitor.codec import DamagedLineError, parse_line
from neurontools.monitor.report import RuntimeGroup, SystemGroup
from neurontools.sources.host_devices import HostDevices
from neurontools.sources.reported_machine import ReportedMachine, unknown_process
from neurontools.sysfs.reading import read_driver
from neurontools.sysfs.tree import NODES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neurontools.machine.snapshot import ProcessState
    from neurontools.sysfs.reading import DriverReading

PROGRAM = "neuron-monitor"
REAL_DIRECTORY = "/opt/aws/neuron/bin"

_OURS = b"neurontools"
_LOOKED_AT_BYTES = 1 << 16
_END_TIMEOUT_S = 5.0

# The tools hold devices to look at them; they have no Neuron runtime (AWS Neuron documentation, neuron-ls user guide).
_TOOL_PREFIX = "neuron-"
_ORIGIN = "live"
_SNAPSHOT_PERIOD_S = 1.0
_FIRST_REPORT_S = 3.0
_SECOND_REPORT_S = 2.0
_LATE_PERIODS = 5
_HOLDERS_EVERY_S = 5.0


def find_monitor(root: str = "") -> str | None:
    """Return the path of the host's neuron-monitor, None without one; our own does not count.

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
        self._config = tempfile.NamedTemporaryFile(prefix="neurontools-", suffix=".json")  # noqa: SIM115  closed in close
        self._config.write(json.dumps(configuration(period_s)).encode())
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


class NoDriverError(NoMachineError):
    """The host has no Neuron driver, or no device."""


class RealSource:
    """The Neuron devices of this host.

    Raises:
        NoDriverError: there are none.
    """

    name = "real"
    live = True

    def __init__(self) -> None:
        self.notices: tuple[str, ...] = ()
        self._root = env.sysfs_root()
        self._boot_unix_s = read_boot_time(self._root)
        self._reported = ReportedMachine(lambda pid, tag: read_process(self._root, pid, tag))
        self._monitor: HostMonitor | None = None
        self._monitor_path = find_monitor(self._root)
        self._devices: HostDevices | None = None
        self._holders: dict[int, frozenset[int]] = {}
        self._holders_read_s = float("-inf")
        self._driver()
        if self._monitor_path is None:
            self._notice(f"no {PROGRAM} on this host: the use of its cores is not known")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the host's neuron-monitor if this started it."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def snapshot(self) -> Snapshot:
        """Return the host at this moment; waits for the first lines of its neuron-monitor.

        Raises:
            NoDriverError: the driver is gone.
        """
        self._start_monitor(_SNAPSHOT_PERIOD_S)
        if self._monitor is not None and self._monitor.count < 2:
            if not self._monitor.wait(1, _FIRST_REPORT_S):
                self._notice(f"{self._monitor_path} sends no report{self._monitor_problem()}")
            elif self._is_vague():
                self._monitor.wait(2, _SECOND_REPORT_S)
        return self._snapshot(counters=True)

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now, then one every `period_s` seconds, with each line of the host's neuron-monitor.

        Raises:
            NoDriverError: the driver is gone.
            NeuronToolsError: the host's neuron-monitor ended or sends no more reports.
        """
        self.close()
        self._start_monitor(period_s)
        monitor, count = self._monitor, 0
        while True:
            if monitor is None:
                yield self._snapshot(counters=count == 0)
                time.sleep(period_s)
            else:
                if not monitor.wait(count + 1, _FIRST_REPORT_S + _LATE_PERIODS * period_s):
                    state = "ended" if monitor.ended else "sends no report"
                    raise NeuronToolsError(
                        f"{self._monitor_path} {state}{self._monitor_problem()}",
                        "run it by hand to see its output",
                    )
                yield self._snapshot(counters=count == 0)
            count += 1

    def _is_vague(self) -> bool:
        # The first report comes at once; it may not know yet who runs, and on which cores.
        held = self._held()
        if not self._reported.pids:
            return bool(held)
        return any(not process.cores and process.pid not in held for process in self._reported.processes())

    def _start_monitor(self, period_s: float) -> None:
        if self._monitor is not None or self._monitor_path is None:
            return
        try:
            self._monitor = HostMonitor(self._monitor_path, period_s, self._reported)
        except OSError as error:
            self._notice(f"cannot start {self._monitor_path}: {error.strerror}")

    def _snapshot(self, *, counters: bool) -> Snapshot:
        driver = self._driver()
        if self._monitor is None:
            return self._made(driver, counters=counters)
        with self._monitor.lock:
            return self._made(driver, counters=counters)

    def _made(self, driver: DriverReading, *, counters: bool) -> Snapshot:
        if self._devices is None or not self._devices.fits(driver, self._reported):
            self._devices = HostDevices(self._root, driver, self._reported)
            for notice in self._devices.notices:
                self._notice(notice)
        devices = self._devices
        processes = self._processes(devices.cores_held(self._held()))
        return Snapshot(
            machine=os.uname().nodename,
            source=self.name,
            instance_type=driver.product_name,
            instance_id=self._reported.instance.instance_id,
            lnc=devices.lnc,
            lnc_applies=devices.lnc_applies,
            neuroncore_version=devices.neuroncore_version,
            taken_ns=time.monotonic_ns(),
            taken_unix_s=time.time(),
            started_unix_s=self._boot_unix_s,
            devices=devices.states(driver, self._reported),
            processes=processes,
            core_totals=devices.core_totals(processes, fresh=counters),
        )

    def _processes(self, held: Mapping[int, tuple[int, ...]]) -> tuple[ProcessState, ...]:
        reported = self._reported.processes(held)
        known = {process.pid for process in reported}
        processes = [replace(process, uses_device=True) for process in reported]
        for pid, cores in held.items():
            if pid not in known:
                process = read_process(self._root, pid)
                if process.uses_device:
                    process = replace(process, cores=tuple(map(CoreUse, cores)))
                processes.append(process)
        return tuple(sorted(processes, key=lambda process: (process.registered_ns, process.pid)))

    def _held(self) -> dict[int, frozenset[int]]:
        now_s = time.monotonic()
        if now_s - self._holders_read_s >= _HOLDERS_EVERY_S:
            self._holders, self._holders_read_s = find_device_holders(self._root), now_s
        return self._holders

    def _driver(self) -> DriverReading:
        driver = read_driver(self._root)
        if driver is None:
            raise NoDriverError(
                f"no Neuron driver with devices on this host: {self._root}/sys/class/neuron_device is not there",
                "use --source sim for a simulated machine",
            )
        return driver

    def _monitor_problem(self) -> str:
        problem = self._monitor.problem if self._monitor else ""
        return f": {problem}" if problem else ""

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices += (text,)


def find_device_holders(root: str) -> dict[int, frozenset[int]]:
    """Return the numbers of the device nodes that each process holds open, of those processes that this user may see.

    Args:
        root: the directory that has `proc` and `dev` in it, "" for the host's own.
    """
    node = re.compile(f"(?:{re.escape(root)})?/{NODES}/neuron([0-9]+)")
    holders = {}
    for pid in _pids(root):
        devices = {
            int(match[1]) for match in map(node.fullmatch, _open_files(f"{root}/proc/{pid}/fd")) if match
        }
        if devices:
            holders[pid] = frozenset(devices)
    return holders


def read_process(root: str, pid: int, tag: str = "") -> ProcessState:
    """Return what /proc says about a process, without any work; of a hidden process only the pid is known."""
    stat = read_stat(pid, root)
    start_ticks = stat.start_ticks if stat else 0
    return replace(
        unknown_process(pid, tag, _ORIGIN),
        start_ticks=start_ticks,
        uid=_uid(root, pid),
        command=_command(root, pid),
        uses_device=not _name(root, pid).startswith(_TOOL_PREFIX),
        registered_ns=round(start_ticks * 1e9 / os.sysconf("SC_CLK_TCK")),
    )


def _pids(root: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"{root}/proc") if name.isdecimal()]
    except OSError:
        return []


def _open_files(directory: str) -> list[str]:
    targets = []
    try:
        for name in os.listdir(directory):
            try:
                targets.append(os.readlink(f"{directory}/{name}"))
            except OSError:
                continue
    except OSError:
        pass
    return targets


def _name(root: str, pid: int) -> str:
    return _read(f"{root}/proc/{pid}/comm").decode("utf-8", "replace").strip()


def _command(root: str, pid: int) -> str:
    words = _read(f"{root}/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode("utf-8", "replace")


def _uid(root: str, pid: int) -> int:
    try:
        return os.stat(f"{root}/proc/{pid}").st_uid
    except OSError:
        return 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
