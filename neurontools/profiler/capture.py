"""Capturing a run: the runtime's observer that writes events while a program executes on the simulated device."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from neurontools.errors import NeuronToolsError
from neurontools.profiler import records
from neurontools.profiler.meta import ProfileError
from neurontools.profiler.model import LoadedModel, Program, model_line, program_line
from neurontools.profiler.program import pairing_hash, program_of_neff
from neurontools.profiler.settings import (
    CaptureOptions,
    DeviceProfile,
    options_from_environ,
    output_directory,
)
from neurontools.profiler.template import DeviceTemplate
from neurontools.profiler.writer import CaptureFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.profiler.machine import Machine
    from neurontools.runtime.session import Model, Runtime

_COMPLETED = {0, 1003, 1004}  # NRT_SUCCESS and the two EXEC_COMPLETED_WITH_*ERR: the device did run
_DIRECTORIES = 1000


class Status(Protocol):
    """Anything with the number of an NRT status."""

    def __int__(self) -> int: ...


@dataclass(slots=True)
class _Loaded:
    value: LoadedModel
    template: DeviceTemplate | None


@dataclass(slots=True)
class _Core:
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
        machine: what the capture says about the machine.
        options: what to record; default: system events only.
        command: the command line to store; default: this process's.
        on_warning: gets one line about a limit or a failure; default: the logger `neurontools.profiler`.
        read_program: how operations are read from a NEFF.

    Raises:
        ProfileError: the directory cannot be made.
        MissingDependencyError: device records are wanted and numpy is not installed.
    """

    def __init__(
        self,
        directory: str,
        machine: Machine,
        options: CaptureOptions | None = None,
        *,
        command: tuple[str, ...] | None = None,
        on_warning: Callable[[str], None] | None = None,
        read_program: Callable[[bytes], Program] = program_of_neff,
    ) -> None:
        options = options or CaptureOptions()
        if options.device is not DeviceProfile.OFF:
            records.record_dtype()
        self._options = options
        self._read_program = read_program
        self._warn = on_warning or logging.getLogger("neurontools.profiler").warning
        self._meta = machine.describe(options, command)
        self.directory = _make_directory(directory, f"{self._meta.instance_id}_pid_{self._meta.pid}")
        self._files = CaptureFiles(self.directory, self._warn)
        self._meta.write(self.directory)
        self._lock = threading.Lock()
        self._programs: dict[str, Program | None] = {}
        self._loaded: dict[int, _Loaded] = {}
        self._models = 0
        self._cores: dict[int, _Core] = {}
        self._profiled: set[tuple[str, int]] = set()
        atexit.register(self.on_close)

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        """Store the NEFF and its operations once, and the `nrt_load` event."""
        with self._lock:
            if not self._files.writable or not self._wanted(model.nc):
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
            self._files.append_events(self._system(value, records.NRT_LOAD, 0, start_ns, end_ns, 0), end_ns)

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: Status) -> None:
        """Append the events of one execution."""
        with self._lock:
            loaded = self._loaded.get(model.model_id)
            if loaded is None or not self._files.writable:
                return
            code = int(status)
            events = self._system(loaded.value, records.NRT_EXECUTE, execution, start_ns, end_ns, code)
            events += self._system(loaded.value, records.NC_EXEC_RUNNING, execution, start_ns, end_ns, code)
            if loaded.template is not None and code in _COMPLETED:
                events += self._device(loaded, loaded.template, execution, start_ns, code)
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

    def _wanted(self, nc: int) -> bool:
        return self._options.ncs is None or nc in self._options.ncs

    def _program(self, neff_hash: str, neff: bytes) -> Program | None:
        """Return the program for device records; None where there are none to be made."""
        if neff_hash in self._programs:
            return self._programs[neff_hash]
        self._files.store_once(f"neff_{neff_hash}.neff", neff)
        try:
            program = self._read_program(neff)
        except NeuronToolsError as error:
            self._warn(f"no device profile for NEFF {neff_hash}: {error.message}")
            program = Program(neff_hash, 0, ())
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
        core = self._cores.setdefault(model.nc, _Core())
        if core.system_events >= self._options.max_events_per_nc:
            core.dropped_system += 1
            if core.dropped_system == 1:
                self._over_limit(model.nc, "system events")
            return b""
        core.system_events += 1
        track = records.Track.HARDWARE if event == records.NC_EXEC_RUNNING else records.Track.RUNTIME
        return records.RECORD.pack(
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
        core = self._cores.setdefault(nc, _Core())
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
        self._meta = self._meta.finished(time.monotonic_ns() if ended else 0, dropped)
        try:
            self._meta.write(self.directory)
        except OSError as error:
            self._warn(f"cannot write the profile's description in {self.directory}: {error.strerror}")


def capture_from_environ(runtime: Runtime, environ: Mapping[str, str] | None = None) -> Capture | None:
    """Return a capture of this process when NEURON_RT_INSPECT_ENABLE=1 asks for one, else None.

    The caller adds it to `runtime.observers`.

    Raises:
        UsageError: a NEURON_RT_INSPECT_* variable makes no sense.
        ProfileError: the output directory cannot be made.
        MissingDependencyError: device records are wanted and numpy is not installed.
    """
    from neurontools.profiler.machine import machine_of

    environ = os.environ if environ is None else environ
    directory = output_directory(environ)
    if directory is None:
        return None
    return Capture(directory, machine_of(runtime), options_from_environ(environ))


def _make_directory(parent: str, name: str) -> str:
    """Make a new directory; a pid that comes back gets a number behind its name."""
    try:
        os.makedirs(parent, exist_ok=True)
        for number in range(1, _DIRECTORIES):
            path = os.path.join(os.path.abspath(parent), name if number == 1 else f"{name}_{number}")
            try:
                os.mkdir(path)
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ProfileError(
            f"cannot make profile directory {parent}: {error.strerror}",
            "choose another with NEURON_RT_INSPECT_OUTPUT_DIR",
        ) from error
    raise ProfileError(f"{parent} holds {_DIRECTORIES} captures named {name}", "remove old ones")
