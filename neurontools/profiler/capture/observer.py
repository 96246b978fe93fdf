"""Capturing a run: the runtime's observer that writes events while a program executes on the simulated device."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from neurontools import __version__, env
from neurontools.base.procfs import read_boot_id, read_cpu_ticks
from neurontools.base.text import printable
from neurontools.machine.machine_names import instance_id
from neurontools.profiler.capture.files import CaptureFiles, HostRecorder
from neurontools.profiler.capture.format import (
    NC_EXEC_RUNNING,
    NO_CORE,
    NRT_EXECUTE,
    NRT_LOAD,
    RECORD,
    SYSTEM_EVENTS,
    LoadedModel,
    Meta,
    Peaks,
    ProfileError,
    Track,
    model_line,
    pairing_hash,
)
from neurontools.profiler.capture.settings import (
    CaptureOptions,
    DeviceProfile,
    options_from_environ,
    output_directory,
)
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.runtime.host_activity import HostRecord
    from neurontools.runtime.session import Model, Runtime


_BASE_CLOCK = "Scalar"  # 1.4 GHz on Trn1, 1.2 GHz on Trn2: the clock that neuroncore_cycle_count counts

# An execution must not take a microsecond: no attributes, no enums.
_PACK = RECORD.pack
_EXECUTION, _LOAD = int(Track.MODEL), int(Track.RUNTIME)
_MAX_CAPTURES = 1000


def describe_run(runtime: Runtime, options: CaptureOptions) -> Meta:
    """Return the description of a capture of this process that starts now."""
    return describe_process(runtime.instance, runtime.lnc, runtime.cores, options)


def describe_process(
    instance: InstanceType, lnc: int, cores: tuple[int, ...], options: CaptureOptions
) -> Meta:
    """Return the description of a capture of this process that starts now.

    Args:
        instance: what it runs on. Peaks are those of one of its logical NeuronCores at bfloat16.
        lnc: physical cores of a logical core.
        cores: logical cores of the machine that the process uses.
        options: what is recorded.
    """
    device = instance.device
    rank, world_size = _worker(os.environ)
    return Meta(
        instance_type=instance.name,
        instance_id=instance_id(env.machine(), os.getuid()),
        lnc=lnc,
        cores=cores,
        pid=os.getpid(),
        command=tuple(sys.orig_argv),
        boot_id=read_boot_id(),
        started_ns=time.monotonic_ns(),
        started_unix_ns=time.time_ns(),
        device_profile=options.device.value,
        max_events_per_nc=options.max_events_per_nc,
        peaks=Peaks(
            tensor_flops_s=device.core.tensor_flops_s("bfloat16") * lnc,
            hbm_bytes_s=device.memory_bandwidth_bytes_s * lnc / device.physical_cores,
            clock_hz=dict(device.core.clock_hz).get(_BASE_CLOCK, 0.0),
        ),
        version=__version__,
        session=os.environ.get(env.PROFILE_SESSION, ""),
        rank=rank,
        world_size=world_size,
    )


def _worker(environ: Mapping[str, str]) -> tuple[int | None, int]:
    """Return the rank of this process and the number of workers, from torchrun's variables; no rank for one worker."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and size.isdecimal() and int(size) > 1:
        return int(rank), int(size)
    return None, 1


class Capture:
    """Writes one process's profile; an `ExecutionObserver` of the runtime, and `host` a `HostObserver`.

    An execution is one record with its measured wall times. What the engines did is in the copy of the NEFF.
    Over the limit the oldest records are dropped.

    Args:
        directory: gets a directory for this process.
        meta: what runs.
        options: what to record; default: system events only.
        on_warning: gets one line about a limit or a failure; default: the logger `neurontools.profiler`.

    Raises:
        ProfileError: the directory cannot be made, or written to.
    """

    def __init__(
        self,
        directory: str,
        meta: Meta,
        options: CaptureOptions | None = None,
        *,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options or CaptureOptions()
        self._warn = on_warning or logging.getLogger("neurontools.profiler").warning
        events = tuple(SYSTEM_EVENTS[number] for number in sorted(self._options.system_events))
        self._meta = replace(meta, system_events=events)
        self.directory = _make_directory(directory, f"{meta.instance_id}_pid_{meta.pid}")
        cores = len(meta.cores if self._options.ncs is None else self._options.ncs) or 1
        try:
            self._files = CaptureFiles(self.directory, self._options.max_events_per_nc * cores, self._warn)
            self._meta.write(self.directory)
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)  # it was new
            raise ProfileError(
                f"cannot write a profile to {directory}: {error.strerror}",
                "free space, or choose another directory",
            ) from error
        self._lock = threading.Lock()
        self.host = HostRecorder(
            self._files,
            self._lock,
            ncs=self._options.ncs,
            steps=self._options.steps,
            kinds=self._options.host_events | self._options.host_load,
            started_ns=meta.started_ns,
            on_last_step=self.on_close,
        )
        chosen = self._options.host_load
        self._load = HostLoadSampler(chosen, self.host.on_host_event) if chosen else None
        self._known: set[bytes] = set()
        self._loaded: dict[int, tuple[int, int]] = {}
        self._models = 0
        self._failed = False
        self._records_executions = (
            self._options.device is not DeviceProfile.OFF
            or not self._options.system_events.isdisjoint({NRT_EXECUTE, NC_EXEC_RUNNING})
        )
        atexit.register(self.on_close)

    @property
    def wants_stacks(self) -> bool:
        """Whether events of the host should have the program's call stack."""
        return self._options.stacks

    @property
    def stored_bytes(self) -> int:
        """What it stores beside records, which have a limit: models, names and NEFFs."""
        return self._files.stored_bytes

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        """Store the NEFF once, the model and when it was loaded."""
        with self._lock:
            chosen = self._options.ncs is None or model.nc in self._options.ncs
            if not self._files.writable or not chosen:
                return
            neff_hash = pairing_hash(model.neff)
            self._files.store_once(f"neff_{neff_hash}.neff", model.neff)
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
            self._loaded[model.model_id] = value.model, value.nc
            if NRT_LOAD in self._options.system_events and self.host.records:
                record = _PACK(start_ns, end_ns - start_ns, 0, 0, value.model, 0, 0, value.nc, _LOAD)
                self._files.append(record, end_ns)

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: int) -> None:
        """Append the record of an execution."""
        loaded = self._loaded.get(model.model_id)
        if status and not self._failed:
            self._keep(model.name)
        if loaded is None or not self._records_executions or not self.host.records:
            return
        number, nc = loaded
        record = _PACK(
            start_ns, end_ns - start_ns, 0, 0, number, execution & 0xFFFFFFFF, status, nc, _EXECUTION
        )
        with self._lock:
            self._files.append(record, end_ns)

    def on_unload(self, model: Model) -> None:
        """Forget a model; safe in finalizers, which may run while this thread has the lock."""
        self._loaded.pop(model.model_id, None)

    def on_close(self) -> None:
        """Write everything and say that the process ended in order; further calls do nothing."""
        if self._load is not None and os.getpid() == self._meta.pid:
            self._load.stop()
        with self._lock:
            atexit.unregister(self.on_close)
            if os.getpid() != self._meta.pid or not self._files.writable:
                return
            self._loaded.clear()
            self.host.close(time.monotonic_ns())
            self._files.close()
            if self._files.dropped:
                self._warn(
                    f"the profile kept the newest records and dropped {self._files.dropped} "
                    "(NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC sets the limit)"
                )
            if self._options.only_failures and not self._failed:
                self.remove()
                return
            self._meta = replace(self._meta, ended_ns=time.monotonic_ns())
            try:
                self._meta.write(self.directory)
            except OSError as error:
                self._warn(f"cannot write the profile's description in {self.directory}: {error.strerror}")

    def remove(self) -> None:
        """Remove the files of a closed capture, and its directory unless something else is in it."""
        if os.getpid() == self._meta.pid:
            self._files.remove()

    def _keep(self, model: str) -> None:
        """Note that an execution failed."""
        self._failed = True
        if self._options.only_failures:
            self._warn(f"an execution of {printable(model)} failed; its profile is in {self.directory}")


def capture_from_environ(runtime: Runtime) -> Capture | None:
    """Return a capture of this process when NEURON_RT_INSPECT_ENABLE=1 or ON_FAIL=1 asks for one, else None.

    The caller adds it to `runtime.observers`.

    Raises:
        UsageError: a NEURON_RT_INSPECT_* variable is invalid.
        ProfileError: the output directory cannot be made.
    """
    return capture_process(lambda options: describe_run(runtime, options))


def capture_process(describe: Callable[[CaptureOptions], Meta]) -> Capture | None:
    """Return a capture as `capture_from_environ` does; `describe` says what is captured with some options."""
    directory = output_directory(os.environ)
    if directory is None:
        return None
    options = options_from_environ(os.environ)
    capture = Capture(directory, describe(options), options)
    if options.only_failures:
        return capture
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
            "choose another directory",
        ) from error
    raise ProfileError(
        f"{parent} already contains {_MAX_CAPTURES} captures named {name}", "remove old captures"
    )


_PERIOD_S = 0.1  # the counters of the CPUs count hundredths of a second
_IDLE = slice(3, 5)


class HostLoadSampler:
    """A thread that records samples until `stop`.

    Args:
        kinds: CPU_UTIL, HOST_MEMORY, or both.
        record: gets each sample.
    """

    def __init__(self, kinds: frozenset[HostEvent], record: Callable[[HostRecord], None]) -> None:
        self._kinds = kinds
        self._record = record
        self._ended = threading.Event()
        self._ticks = read_cpu_ticks()
        self._start_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name="host load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Record a last sample, and no more; further calls do nothing."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        start_ns, self._start_ns = self._start_ns, time.monotonic_ns()
        if HostEvent.CPU_UTIL in self._kinds:
            before, self._ticks = self._ticks, read_cpu_ticks()
            passed = [new - old for new, old in zip(self._ticks, before, strict=True)]
            if sum(passed) > 0:
                busy = max(0, sum(passed) - sum(passed[_IDLE]))
                self._tell(HostEvent.CPU_UTIL, start_ns, round(100 * busy / sum(passed)))
        if HostEvent.HOST_MEMORY in self._kinds:
            self._tell(HostEvent.HOST_MEMORY, start_ns, psutil.virtual_memory().used)

    def _tell(self, kind: HostEvent, start_ns: int, value: int) -> None:
        self._record((kind, start_ns, self._start_ns, NO_CORE, "", "", value, 0))
