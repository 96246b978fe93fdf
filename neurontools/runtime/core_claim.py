"""Claims cores of the machine, and reports a failure as the real runtime does (AWS Neuron documentation, runtime).

A process requests cores by NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import NeuronToolsError, NoMachineError
from neurontools.machine import launch
from neurontools.machine.client import Client, Registration
from neurontools.machine.connection import is_answering
from neurontools.machine.instances.catalogue import InstanceType, instance_type
from neurontools.machine.pages.page import is_private
from neurontools.machine.protocol import CoresBusyError, DeviceLostError
from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.status import (
    COLLECTIVES_VERSION,
    DRIVER_VERSION,
    RUNTIME_BUILD,
    RUNTIME_VERSION,
    NrtError,
    NrtStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.machine.snapshot import Snapshot

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
NOT_CONTIGUOUS = "Neuron cores are not contiguous"

_PART = re.compile(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", re.ASCII)
_COUNT = re.compile(r"\s*\d{1,4}\s*", re.ASCII)
RESET_CORES = "NEURON_RT_RESET_CORES"
BUSY = "cores busy, ret=-16"
NO_SUCH_CORES = "no such cores, ret=-22"
CUT_HERE = "------------->8------------[ cut here ]------------>8-------------"
CUT_TO_HERE = "-------------8<-----------[ cut to here ]-----------8<------------"
_PREFIXES = ("NEURON_", "NEURONTOOLS_")
_TAG_CHARACTERS = 255
_PRIVATE_PAGE = (
    "no room for the telemetry page in the runtime directory: using a private one, "
    "whose counters are lost when neurond is restarted"
)


@dataclass(frozen=True, slots=True)
class CoreRequest:
    """Cores that a process requests: given ones, or a number of any (0: all of the machine)."""

    cores: tuple[int, ...] | None = None
    count: int = 0

    def format(self, core_count: int) -> str:
        """Return the request as the real runtime's log line names it."""
        if self.cores is None:
            return str(self.count or core_count)
        return f"lnc{self.cores[0]}-lnc{self.cores[-1]}"


def parse_core_request(environ: Mapping[str, str]) -> CoreRequest:
    """Return the request of the environment; NEURON_RT_VISIBLE_CORES has precedence over NEURON_RT_NUM_CORES.

    Raises:
        NrtError: NRT_INVALID when a value is malformed or the cores are not contiguous and ascending.
    """
    visible = environ.get(VISIBLE_CORES, "")
    if visible.strip():
        return CoreRequest(cores=parse_visible_cores(visible))
    count = environ.get(NUM_CORES, "")
    if not count.strip():
        return CoreRequest()
    if not _COUNT.fullmatch(count):
        raise _invalid(f"{NUM_CORES}={count} is not a number of cores", "use a number, 0 for all cores")
    return CoreRequest(count=int(count))


def parse_visible_cores(text: str) -> tuple[int, ...]:
    """Return the cores of an index `3`, a range `0-3`, a comma list `3,4`, or a list of those.

    Raises:
        NrtError: NRT_INVALID when it is malformed or the cores are not contiguous and ascending.
    """
    cores: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _invalid(
                f"{VISIBLE_CORES}={text} is malformed", "use an index (3), a range (0-3) or a list (3,4)"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        cores.extend(range(first, last + 1) if first <= last else range(first, last - 1, -1))
    if cores != list(range(cores[0], cores[0] + len(cores))):
        raise _invalid(
            NOT_CONTIGUOUS,
            f"use consecutive cores in ascending order, unlike {VISIBLE_CORES}={text}",
        )
    return tuple(cores)


def format_not_available(
    request: CoreRequest, available: int, core_count: int, lnc: int, *, reason: str = ""
) -> str:
    """Return the real runtime's line for cores of which only `available` are free.

    `lnc` is the number of physical cores in a logical one, `reason` what the newest runtime adds for named cores.
    """
    return (
        f"Logical Neuron Core(s) not available - Requested:{request.format(core_count)} "
        f"Available:{available} Logical Core size:{lnc}{f' ({reason})' if reason else ''}"
    )


def _invalid(detail: str, remedy: str) -> NrtError:
    return NrtError("nrt_init", NrtStatus.NRT_INVALID, remedy, detail=detail)


@dataclass(frozen=True, slots=True)
class CoreClaim:
    """The claimed cores: the connection that holds them, their telemetry page, the machine's type."""

    client: Client
    registration: Registration
    instance: InstanceType
    lnc: int


def claim_cores(
    environ: Mapping[str, str],
    log: RuntimeLog,
    *,
    tag: str | None,
    on_notice: Callable[[str], None] | None,
) -> CoreClaim:
    """Claim the cores that the environment asks for.

    Raises:
        NrtError: NRT_INVALID for an invalid request, NRT_RESOURCE when the cores are not free, NRT_FAILURE when
            their device is lost.
        NoMachineError: no machine runs and none may be started.
        DaemonError: the daemon refuses or fails.
    """
    try:
        request = parse_core_request(environ)
    except NrtError as error:
        log.write(Level.ERROR, Component.NRT, "nrt_init", error.detail)
        _log_failure(error, environ, log, cores="invalid", instance_id="")
        raise
    client = _connect(environ.get(env.MACHINE) or None, log, on_notice)
    try:
        return _claim(client, request, environ, log, tag)
    except BaseException:
        client.close()
        raise


def read_machine(environ: Mapping[str, str]) -> Snapshot:
    """Return the machine of this process, which is started if needed; no cores are claimed.

    Raises:
        NoMachineError: no machine runs, and none may be started.
    """
    machine = environ.get(env.MACHINE) or None
    launch.ensure_running(machine, None)
    with Client.connect(machine) as client:
        return client.snapshot()


def release_cores(client: Client) -> None:
    """Give the cores back and close the connection; without a daemon the process's end will do that."""
    try:
        if is_answering(client.machine):
            client.unregister()
    except NeuronToolsError:
        pass
    client.close()


def _connect(machine: str | None, log: RuntimeLog, on_notice: Callable[[str], None] | None) -> Client:
    try:
        launch.ensure_running(machine, on_notice)
        return Client.connect(machine)
    except NoMachineError:
        log.write(Level.ERROR, Component.TDRV, "tdrv_get_dev_info", "No neuron device available")
        log.write(
            Level.ERROR, Component.NRT, "nrt_init", f"nrt_init failed. Status = {NrtStatus.NRT_FAILURE:d}"
        )
        raise


def _claim(
    client: Client, request: CoreRequest, environ: Mapping[str, str], log: RuntimeLog, tag: str | None
) -> CoreClaim:
    machine = client.snapshot()
    core_count = _core_count(machine)
    if max(request.count, *(core + 1 for core in request.cores or (0,))) > core_count:
        reason = NO_SUCH_CORES if request.cores else ""
        count = environ.get("LOCAL_WORLD_SIZE", "")
        workers = count.isdecimal() and int(count) > core_count
        change = f"run at most {core_count} workers" if workers else f"change {VISIBLE_CORES} or {NUM_CORES}"
        remedy = f"{machine.instance_type} has cores 0-{core_count - 1}: {change}"
        raise _refused(machine, request, environ, log, available=core_count, reason=reason, remedy=remedy)
    instance = instance_type(machine.instance_type)
    shown = environ.get("NEURON_PROCESS_TAG", "") if tag is None else tag
    try:
        registration = client.register(
            tag=shown[:_TAG_CHARACTERS],
            command=" ".join(sys.orig_argv),
            uses_device=True,
            cores=request.cores,
            count=None if request.cores else request.count,
            runtime_version=RUNTIME_VERSION,
            reset_cores=environ.get(RESET_CORES, "1").strip() != "0",
        )
    except DeviceLostError as error:
        raise _device_lost(error.device, machine, request, environ, log) from error
    except CoresBusyError as error:
        remedy = (
            f"{error.message}; stop that process (see `neuron-ls`) or choose other cores with {VISIBLE_CORES}"
        )
        reason = BUSY if request.cores else ""
        raise _refused(
            machine, request, environ, log, available=error.available, reason=reason, remedy=remedy
        ) from error
    if is_private(registration.page_fd):
        log.write(Level.WARN, Component.NRT, "nrt_init", _PRIVATE_PAGE)
    _log_start(machine, log)
    return CoreClaim(client, registration, instance, registration.lnc)


def _refused(
    machine: Snapshot,
    request: CoreRequest,
    environ: Mapping[str, str],
    log: RuntimeLog,
    *,
    available: int,
    reason: str,
    remedy: str,
) -> NrtError:
    line = format_not_available(request, available, _core_count(machine), machine.lnc, reason=reason)
    log.write(Level.ERROR, Component.NRT, "nrt_allocate_neuron_cores", line)
    error = NrtError("nrt_init", NrtStatus.NRT_RESOURCE, remedy, detail=line)
    return _logged(error, machine, request, environ, log)


def _device_lost(
    device: int, machine: Snapshot, request: CoreRequest, environ: Mapping[str, str], log: RuntimeLog
) -> NrtError:
    line = f"Could not open the nd{device}"
    log.write(Level.ERROR, Component.TDRV, "tdrv_open_device", line)
    remedy = "see the reason with `neurontools fault list`, or claim cores of other devices"
    error = NrtError("nrt_init", NrtStatus.NRT_FAILURE, remedy, detail=line)
    return _logged(error, machine, request, environ, log)


def _logged(
    error: NrtError, machine: Snapshot, request: CoreRequest, environ: Mapping[str, str], log: RuntimeLog
) -> NrtError:
    cores = request.format(_core_count(machine))
    _log_failure(error, environ, log, cores=cores, instance_id=machine.instance_id)
    return error


def _core_count(machine: Snapshot) -> int:
    return sum(len(device.core_ids) for device in machine.devices)


def _log_failure(
    error: NrtError, environ: Mapping[str, str], log: RuntimeLog, *, cores: str, instance_id: str
) -> None:
    message = f"nrt_init failed. Status = {int(error.status)}"
    log.write(Level.ERROR, Component.NRT, "nrt_init", message)
    for line in _info_lines(error, environ, cores=cores, instance_id=instance_id):
        log.write(Level.ERROR, Component.NRT, "nrt_infodump", line)


def _log_start(machine: Snapshot, log: RuntimeLog) -> None:
    family = machine.instance_type.partition(".")[0].rstrip("nu")
    architecture = {"trn1": "TRN", "inf1": "INF"}.get(family, family.upper())
    per_device = len(machine.devices[0].core_ids)
    info = f"device count:{len(machine.devices)} cores per device:{per_device} architecture:{architecture}"
    log.write(
        Level.INFO, Component.NRT, "nrt_init", f"Neuron Runtime {RUNTIME_BUILD} (neurontools, simulated)"
    )
    log.write(Level.INFO, Component.NRT, "nrt_init", f"Found neuron driver: {DRIVER_VERSION}")
    log.write(Level.INFO, Component.NRT, "nrt_init", f"Instance info:: {info}")


def _info_lines(
    error: NrtError, environ: Mapping[str, str], *, cores: str, instance_id: str
) -> tuple[str, ...]:
    """Return the block for support requests; only variables of the Neuron tools are listed."""
    host = os.uname()
    variables = sorted(item for item in environ.items() if item[0].startswith(_PREFIXES))
    return (
        "Neuron runtime information - please include in any support request:",
        CUT_HERE,
        f"NRT version: {RUNTIME_BUILD} (neurontools, simulated)",
        f"CCOM version: {COLLECTIVES_VERSION} (compat 1)",
        f"Instance ID: {instance_id or 'unknown'}",
        "Cluster ID: N/A",
        f"Kernel: {host.sysname} {host.release} {host.version}",
        f"Nodename: {host.nodename}",
        f"Driver version: {DRIVER_VERSION}",
        f"Failure: {error.status.name} in {error.function}()",
        f"Visible cores: {cores}",
        "Environment:",
        *(f"    {name}={value}" for name, value in variables),
        CUT_TO_HERE,
    )
