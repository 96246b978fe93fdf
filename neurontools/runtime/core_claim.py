"""Claims cores of the machine, and reports a failure as the real runtime does (AWS Neuron documentation, runtime)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import NeuronToolsError, NoMachineError
from neurontools.machine import launch
from neurontools.machine.client import Client, Registration
from neurontools.machine.client_errors import CoresBusyError, DeviceLostError
from neurontools.machine.connection import is_answering
from neurontools.machine.instances.catalogue import InstanceType, instance_type
from neurontools.machine.pages.page import is_private
from neurontools.runtime.cores import (
    NUM_CORES,
    VISIBLE_CORES,
    CoreRequest,
    format_not_available,
    parse_core_request,
)
from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.runtime.versions import (
    COLLECTIVES_VERSION,
    DRIVER_VERSION,
    RUNTIME_BUILD,
    RUNTIME_VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.machine.snapshot import Snapshot

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
    core_count = sum(len(device.core_ids) for device in machine.devices)
    if max(request.count, *(core + 1 for core in request.cores or (0,))) > core_count:
        reason = NO_SUCH_CORES if request.cores else ""
        remedy = (
            f"{machine.instance_type} has cores 0-{core_count - 1}: change {VISIBLE_CORES} or {NUM_CORES}"
        )
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
    core_count = sum(len(device.core_ids) for device in machine.devices)
    line = format_not_available(request, available, core_count, machine.lnc, reason=reason)
    log.write(Level.ERROR, Component.NRT, "nrt_allocate_neuron_cores", line)
    error = NrtError("nrt_init", NrtStatus.NRT_RESOURCE, remedy, detail=line)
    _log_failure(error, environ, log, cores=request.format(core_count), instance_id=machine.instance_id)
    return error


def _device_lost(
    device: int, machine: Snapshot, request: CoreRequest, environ: Mapping[str, str], log: RuntimeLog
) -> NrtError:
    line = f"Could not open the nd{device}"
    log.write(Level.ERROR, Component.TDRV, "tdrv_open_device", line)
    remedy = "see the reason with `neurontools fault list`, or claim cores of other devices"
    error = NrtError("nrt_init", NrtStatus.NRT_FAILURE, remedy, detail=line)
    cores = request.format(sum(len(each.core_ids) for each in machine.devices))
    _log_failure(error, environ, log, cores=cores, instance_id=machine.instance_id)
    return error


def _log_failure(
    error: NrtError, environ: Mapping[str, str], log: RuntimeLog, *, cores: str, instance_id: str
) -> None:
    message = f"nrt_init failed. Status = {int(error.status)}"
    log.write(Level.ERROR, Component.NRT, "nrt_init", message)
    write_info_block(log, error, environ, cores=cores, instance_id=instance_id)


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


def write_info_block(
    log: RuntimeLog, error: NrtError, environ: Mapping[str, str], *, cores: str, instance_id: str
) -> None:
    """Log the block of the runtime; only variables of the Neuron tools are listed.

    Args:
        log: where it goes.
        error: why the init failed.
        environ: the process's environment.
        cores: the requested cores, as text.
        instance_id: of the machine, or "" when unknown.
    """
    for line in info_lines(error, environ, cores=cores, instance_id=instance_id):
        log.write(Level.ERROR, Component.NRT, "nrt_infodump", line)


def info_lines(
    error: NrtError, environ: Mapping[str, str], *, cores: str, instance_id: str
) -> tuple[str, ...]:
    """Return the lines of the block."""
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
