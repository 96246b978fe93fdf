"""Capturing a run: the runtime's observer that writes events while a program executes on the simulated device."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neurontools import __version__, env
from neurontools.base.files import write_all, write_atomic
from neurontools.base.procfs import read_boot_id
from neurontools.base.text import printable
from neurontools.errors import NeuronToolsError
from neurontools.machine.machine_names import instance_id
from neurontools.profiler.capture.format import (
    EVENTS_FILE,
    MODELS_FILE,
    NC_EXEC_RUNNING,
    NRT_EXECUTE,
    NRT_LOAD,
    RECORD,
    TRACK_OF_LABEL,
    LoadedModel,
    Meta,
    NeffProgram,
    Peaks,
    ProfileError,
    Track,
    model_line,
    pairing_hash,
    program_line,
    program_of_neff,
    record_dtype,
    require_numpy,
)
from neurontools.profiler.capture.settings import (
    CaptureOptions,
    DeviceProfile,
    options_from_environ,
    output_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.runtime.session import Model, Runtime

_BASE_CLOCK = "Scalar"  # 1.4 GHz on Trn1, 1.2 GHz on Trn2: the clock that neuroncore_cycle_count counts

FLUSH_BYTES = 1 << 18
FLUSH_NS = 200_000_000

_COMPLETED_STATUSES = {0, 1003, 1004}  # NRT_SUCCESS and the two EXEC_COMPLETED_WITH_*ERR: the device did run
_MAX_CAPTURES = 1000


def describe_run(runtime: Runtime, options: CaptureOptions) -> Meta:
    """Return the description of a capture of this process that starts now.

    Peaks are those of one logical NeuronCore at bfloat16.
    """
    device = runtime.instance.device
    rank, world_size = _worker(os.environ)
    return Meta(
        instance_type=runtime.instance.name,
        instance_id=instance_id(env.machine(), os.getuid()),
        lnc=runtime.lnc,
        cores=runtime.cores,
        pid=os.getpid(),
        command=tuple(sys.orig_argv),
        boot_id=read_boot_id(),
        started_ns=time.monotonic_ns(),
        started_unix_ns=time.time_ns(),
        device_profile=options.device.value,
        max_events_per_nc=options.max_events_per_nc,
        peaks=Peaks(
            tensor_flops_s=device.core.tensor_flops_s("bfloat16") * runtime.lnc,
            hbm_bytes_s=device.memory_bandwidth_bytes_s * runtime.lnc / device.physical_cores,
            clock_hz=dict(device.core.clock_hz).get(_BASE_CLOCK, 0.0),
        ),
        version=__version__,
        rank=rank,
        world_size=world_size,
    )


def _worker(environ: Mapping[str, str]) -> tuple[int | None, int]:
    """Return the rank of this process and the number of workers, from torchrun's variables; no rank for one worker."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and size.isdecimal() and int(size) > 1:
        return int(rank), int(size)
    return None, 1


class DeviceTemplate:
    """One MODEL record that spans the execution, then one record per operation.

    Args:
        program: the operations and the modelled time.
        model: whose number and NeuronCore the records carry.
    """

    def __init__(self, program: NeffProgram, model: LoadedModel) -> None:
        operations = program.operations
        records: Any = require_numpy().zeros(len(operations) + 1, dtype=record_dtype())
        records["model"] = model.model
        records["nc"] = model.nc
        records["track"][0] = Track.MODEL
        records["duration_ns"][0] = program.total_ns
        records["start_ns"][1:] = [operation.start_ns for operation in operations]
        records["duration_ns"][1:] = [operation.duration_ns for operation in operations]
        records["operation"][1:] = range(len(operations))
        records["track"][1:] = [TRACK_OF_LABEL[operation.engine] for operation in operations]
        self._records = records
        self._offsets = records["start_ns"].copy()
        self.count = len(records)
        self.total_ns = program.total_ns

    def at(self, start_ns: int, execution: int, status: int) -> bytes:
        """Return the records of an execution that starts on the device at `start_ns`."""
        records = self._records
        records["start_ns"] = self._offsets + start_ns
        records["execution"] = execution & 0xFFFFFFFF
        records["status"] = status
        return bytes(records.tobytes())


class CaptureFiles:
    """The append-only files of one capture.

    Records are written in whole blocks, when 256 KiB are buffered or 0.2 s after the last write, so that a killed
    process loses little. The first failure (a full disk) ends the capture with one warning and never raises. A forked
    child writes nothing.

    Args:
        directory: an existing, empty directory.
        on_warning: gets one line when writing fails.
    """

    def __init__(self, directory: str, on_warning: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_warning = on_warning
        self._pid = os.getpid()
        self._buffer = bytearray()
        self._flushed_ns = 0
        self._fds = {name: self._open(name) for name in (EVENTS_FILE, MODELS_FILE)}

    @property
    def writable(self) -> bool:
        """Whether the capture still goes on."""
        return bool(self._fds)

    def append_model(self, line: bytes) -> None:
        """Store a line about a program or a model at once: it must be there before the first event that needs it."""
        self._write(MODELS_FILE, line)

    def append_events(self, records: bytes, now_ns: int) -> None:
        """Store whole records, soon."""
        self._buffer += records
        if len(self._buffer) >= FLUSH_BYTES or now_ns - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = now_ns
            self.flush()

    def flush(self) -> None:
        """Write buffered records."""
        if self._buffer:
            self._write(EVENTS_FILE, self._buffer)
            self._buffer = bytearray()

    def store_once(self, name: str, data: bytes) -> None:
        """Store a file of its own unless it is there already."""
        path = os.path.join(self._directory, name)
        if not self._fds or os.path.exists(path):
            return
        try:
            write_atomic(path, data, sync=False)
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Write buffered records and close the files."""
        self.flush()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _open(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(os.path.join(self._directory, name), flags, 0o644)

    def _write(self, name: str, data: bytes | bytearray) -> None:
        if not self._fds or os.getpid() != self._pid:
            return
        try:
            write_all(self._fds[name], data)
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}
        self._on_warning(f"profile capture in {self._directory} ended early: {error.strerror}")


@dataclass(slots=True)
class _Loaded:
    value: LoadedModel
    template: DeviceTemplate | None


@dataclass(slots=True)
class _CoreCounters:
    """What one NeuronCore has recorded. `free_ns` is where its modelled device timeline ends so far."""

    system_events: int = 0
    device_records: int = 0
    dropped_system: int = 0
    dropped_executions: int = 0
    free_ns: int = 0


class Capture:
    """Writes one process's profile; an `ExecutionObserver` of the runtime.

    System events carry measured wall times. Device records carry modelled times: an execution is placed at its wall
    start, or at the end of the previous one on that core when that is later, so that a core never runs two at once.
    Over the limit of a NeuronCore the newest events are dropped and counted.

    Args:
        directory: where captures go; this process gets a directory of its own in it.
        meta: the description of the run to store.
        options: what to record; default: system events only.
        on_warning: gets one line about a limit or a failure; default: the logger `neurontools.profiler`.
        read_program: how operations are read from a NEFF.

    Raises:
        ProfileError: the directory cannot be made.
        MissingDependencyError: device records are wanted and numpy is not installed.
    """

    def __init__(
        self,
        directory: str,
        meta: Meta,
        options: CaptureOptions | None = None,
        *,
        on_warning: Callable[[str], None] | None = None,
        read_program: Callable[[bytes], NeffProgram] = program_of_neff,
    ) -> None:
        options = options or CaptureOptions()
        if options.device is not DeviceProfile.OFF:
            record_dtype()
        self._options = options
        self._read_program = read_program
        self._warn = on_warning or logging.getLogger("neurontools.profiler").warning
        self._meta = meta
        self.directory = _make_directory(directory, f"{self._meta.instance_id}_pid_{self._meta.pid}")
        self._files = CaptureFiles(self.directory, self._warn)
        self._meta.write(self.directory)
        self._lock = threading.Lock()
        self._programs: dict[str, NeffProgram | None] = {}
        self._loaded: dict[int, _Loaded] = {}
        self._models = 0
        self._cores: dict[int, _CoreCounters] = {}
        self._profiled: set[tuple[str, int]] = set()
        atexit.register(self.on_close)

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        """Store the NEFF and its operations once, and the `nrt_load` event."""
        with self._lock:
            chosen = self._options.ncs is None or model.nc in self._options.ncs
            if not self._files.writable or not chosen:
                return
            neff_hash = pairing_hash(model.neff)
            program = self._program(neff_hash, model.neff)
            value = LoadedModel(
                model=self._models,
                model_id=model.model_id,
                name=model.name,
                uuid=model.uuid.hex(),
                nc=model.nc,
                core=model.core,
                neff_hash=neff_hash,
            )
            self._models += 1
            self._files.append_model(model_line(value))
            template = None if program is None else DeviceTemplate(program, value)
            self._loaded[model.model_id] = _Loaded(value, template)
            self._files.append_events(self._system(value, NRT_LOAD, 0, start_ns, end_ns, 0), end_ns)

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: int) -> None:
        """Append the events of one execution."""
        with self._lock:
            loaded = self._loaded.get(model.model_id)
            if loaded is None or not self._files.writable:
                return
            events = self._system(loaded.value, NRT_EXECUTE, execution, start_ns, end_ns, status)
            events += self._system(loaded.value, NC_EXEC_RUNNING, execution, start_ns, end_ns, status)
            if loaded.template is not None and status in _COMPLETED_STATUSES:
                events += self._device(loaded, loaded.template, execution, start_ns, status)
            self._files.append_events(events, end_ns)

    def on_unload(self, model: Model) -> None:
        """Forget a model."""
        with self._lock:
            self._loaded.pop(model.model_id, None)

    def on_close(self) -> None:
        """Write everything and say that the process ended in order; further calls do nothing."""
        with self._lock:
            atexit.unregister(self.on_close)
            if os.getpid() != self._meta.pid or not self._files.writable:
                return
            self._files.close()
            self._write_meta(ended=True)

    def _program(self, neff_hash: str, neff: bytes) -> NeffProgram | None:
        """Return the program for device records; None where there are none to be made."""
        if neff_hash in self._programs:
            return self._programs[neff_hash]
        self._files.store_once(f"neff_{neff_hash}.neff", neff)
        try:
            program = self._read_program(neff)
        except NeuronToolsError as error:
            self._warn(f"no device profile for NEFF {neff_hash}: {error.message}")
            program = NeffProgram(neff_hash, 0, ())
            known = None
        else:
            known = program if self._options.device is not DeviceProfile.OFF else None
        self._files.append_model(program_line(program))
        self._programs[neff_hash] = known
        return known

    def _system(
        self, model: LoadedModel, event: int, execution: int, start_ns: int, end_ns: int, status: int
    ) -> bytes:
        if event not in self._options.system_events:
            return b""
        core = self._cores.setdefault(model.nc, _CoreCounters())
        if core.system_events >= self._options.max_events_per_nc:
            core.dropped_system += 1
            if core.dropped_system == 1:
                self._over_limit(model.nc, "system events")
            return b""
        core.system_events += 1
        track = Track.HARDWARE if event == NC_EXEC_RUNNING else Track.RUNTIME
        return RECORD.pack(
            start_ns, end_ns - start_ns, model.model, event, execution & 0xFFFFFFFF, status, model.nc, track
        )

    def _device(
        self, loaded: _Loaded, template: DeviceTemplate, execution: int, start_ns: int, status: int
    ) -> bytes:
        nc = loaded.value.nc
        if self._options.device is DeviceProfile.MODEL:
            loaded.template = None
            if (loaded.value.neff_hash, nc) in self._profiled:
                return b""
            self._profiled.add((loaded.value.neff_hash, nc))
        core = self._cores.setdefault(nc, _CoreCounters())
        over = core.device_records + template.count > self._options.max_events_per_nc
        if over or core.dropped_executions:
            core.dropped_executions += 1
            if core.dropped_executions == 1:
                self._over_limit(nc, "device records")
            return b""
        core.device_records += template.count
        placed_ns = max(start_ns, core.free_ns)
        core.free_ns = placed_ns + template.total_ns
        return template.at(placed_ns, execution, status)

    def _over_limit(self, nc: int, what: str) -> None:
        limit = self._options.max_events_per_nc
        self._warn(
            f"profile of NC {nc} is full ({limit} {what}), further ones are dropped "
            "(NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC sets the limit)"
        )
        self._write_meta(ended=False)

    def _write_meta(self, *, ended: bool) -> None:
        dropped = tuple(
            (nc, core.dropped_system, core.dropped_executions)
            for nc, core in sorted(self._cores.items())
            if core.dropped_system or core.dropped_executions
        )
        self._meta = replace(self._meta, ended_ns=time.monotonic_ns() if ended else 0, dropped=dropped)
        try:
            self._meta.write(self.directory)
        except OSError as error:
            self._warn(f"cannot write the profile's description in {self.directory}: {error.strerror}")


def capture_from_environ(runtime: Runtime) -> Capture | None:
    """Return a capture of this process when NEURON_RT_INSPECT_ENABLE=1 asks for one, else None.

    The caller adds it to `runtime.observers`.

    Raises:
        UsageError: a NEURON_RT_INSPECT_* variable is invalid.
        ProfileError: the output directory cannot be made.
        MissingDependencyError: device records are wanted and numpy is not installed.
    """
    directory = output_directory(os.environ)
    if directory is None:
        return None
    options = options_from_environ(os.environ)
    capture = Capture(directory, describe_run(runtime, options), options)
    if env.flag(env.RUN) and os.environ.get("RANK", "0") == "0" and sys.stderr.isatty():
        atexit.register(_report_profile, directory, os.getpid())
    return capture


def _report_profile(directory: str, pid: int) -> None:
    """Say where the profile is, and the next command."""
    if os.getpid() == pid:
        path = os.path.relpath(directory)
        path = directory if path.startswith("..") else path
        sys.stderr.write(
            f"profile in {printable(path)}; next: neuron-profile view {printable(shlex.quote(path))}\n"
        )


def _make_directory(parent: str, name: str) -> str:
    """Make a new directory; a pid that comes back gets a number behind its name."""
    try:
        os.makedirs(parent, exist_ok=True)
        for number in range(1, _MAX_CAPTURES):
            path = os.path.join(os.path.abspath(parent), name if number == 1 else f"{name}_{number}")
            try:
                os.mkdir(path)
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ProfileError(
            f"cannot create profile directory {parent}: {error.strerror}",
            "choose another with NEURON_RT_INSPECT_OUTPUT_DIR",
        ) from error
    raise ProfileError(
        f"{parent} already contains {_MAX_CAPTURES} captures named {name}", "remove old captures"
    )
