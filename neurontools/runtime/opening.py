"""Getting onto the machine: find it, ask for cores, say what the real runtime says when that fails."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import NeuronToolsError, NoMachineError
from neurontools.machine import launch
from neurontools.machine.client import Client, CoresBusyError, Registration
from neurontools.machine.client_errors import DeviceLostError
from neurontools.machine.instances.catalogue import InstanceType, instance_type
from neurontools.machine.pages.page import is_private
from neurontools.machine.wire import is_answering
from neurontools.runtime.cores import NUM_CORES, VISIBLE_CORES, CoreWish, core_wish, not_available
from neurontools.runtime.infodump import write_info_block
from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.runtime.versions import DRIVER_VERSION, RUNTIME_BUILD, RUNTIME_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.machine.snapshot import Snapshot

RESET_CORES = "NEURON_RT_RESET_CORES"
BUSY = "cores busy, ret=-16"
NO_SUCH_CORES = "no such cores, ret=-22"

_TAG_CHARACTERS = 255
_PRIVATE_PAGE = (
    "no room for the telemetry page in the runtime directory: using a private one, "
    "whose counters are lost when neurond is restarted"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A place on the machine: the connection that holds it, the claimed cores and their page, the machine's type."""

    client: Client
    registration: Registration
    instance: InstanceType
    lnc: int


def claim(
    environ: Mapping[str, str],
    log: RuntimeLog,
    *,
    tag: str | None,
    on_notice: Callable[[str], None] | None,
) -> Claim:
    """Claim the cores that the environment asks for.

    Raises:
        NrtError: NRT_INVALID when the wish makes no sense, NRT_RESOURCE when the cores are not free, NRT_FAILURE when
            their device is lost.
        NoMachineError: none runs and none may be started.
        DaemonError: the daemon refuses or fails.
    """
    try:
        wish = core_wish(environ)
    except NrtError as error:
        log.write(Level.ERROR, Component.NRT, "nrt_init", error.detail)
        _give_up(error, environ, log, cores="invalid", instance_id="")
        raise
    client = _connect(environ.get(env.MACHINE) or None, log, on_notice)
    try:
        return _claim(client, wish, environ, log, tag)
    except BaseException:
        client.close()
        raise


def leave(client: Client) -> None:
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
    client: Client, wish: CoreWish, environ: Mapping[str, str], log: RuntimeLog, tag: str | None
) -> Claim:
    machine = client.snapshot()
    core_count = sum(len(device.core_ids) for device in machine.devices)
    if max(wish.count, *(core + 1 for core in wish.cores or (0,))) > core_count:
        reason = NO_SUCH_CORES if wish.cores else ""
        remedy = (
            f"{machine.instance_type} has cores 0-{core_count - 1}: change {VISIBLE_CORES} or {NUM_CORES}"
        )
        raise _refusal(machine, wish, environ, log, available=core_count, reason=reason, remedy=remedy)
    instance = instance_type(machine.instance_type)
    shown = environ.get("NEURON_PROCESS_TAG", "") if tag is None else tag
    try:
        registration = client.register(
            tag=shown[:_TAG_CHARACTERS],
            command=" ".join(sys.orig_argv),
            uses_device=True,
            cores=wish.cores,
            count=None if wish.cores else wish.count,
            runtime_version=RUNTIME_VERSION,
            reset_cores=environ.get(RESET_CORES, "1").strip() != "0",
        )
    except DeviceLostError as error:
        raise _lost(error.device, machine, wish, environ, log) from error
    except CoresBusyError as error:
        remedy = (
            f"{error.message}; end that process (`neuron-ls` shows it) or choose others with {VISIBLE_CORES}"
        )
        reason = BUSY if wish.cores else ""
        raise _refusal(
            machine, wish, environ, log, available=error.available, reason=reason, remedy=remedy
        ) from error
    if is_private(registration.page_fd):
        log.write(Level.WARN, Component.NRT, "nrt_init", _PRIVATE_PAGE)
    _greet(machine, log)
    return Claim(client, registration, instance, registration.lnc)


def _refusal(
    machine: Snapshot,
    wish: CoreWish,
    environ: Mapping[str, str],
    log: RuntimeLog,
    *,
    available: int,
    reason: str,
    remedy: str,
) -> NrtError:
    core_count = sum(len(device.core_ids) for device in machine.devices)
    line = not_available(wish, available, core_count, machine.lnc, reason=reason)
    log.write(Level.ERROR, Component.NRT, "nrt_allocate_neuron_cores", line)
    error = NrtError("nrt_init", NrtStatus.NRT_RESOURCE, remedy, detail=line)
    _give_up(error, environ, log, cores=wish.requested(core_count), instance_id=machine.instance_id)
    return error


def _lost(
    device: int, machine: Snapshot, wish: CoreWish, environ: Mapping[str, str], log: RuntimeLog
) -> NrtError:
    line = f"Could not open the nd{device}"
    log.write(Level.ERROR, Component.TDRV, "tdrv_open_device", line)
    remedy = "the device is lost: `neurontools fault list` says why, or claim cores of other devices"
    error = NrtError("nrt_init", NrtStatus.NRT_FAILURE, remedy, detail=line)
    cores = wish.requested(sum(len(one.core_ids) for one in machine.devices))
    _give_up(error, environ, log, cores=cores, instance_id=machine.instance_id)
    return error


def _give_up(
    error: NrtError, environ: Mapping[str, str], log: RuntimeLog, *, cores: str, instance_id: str
) -> None:
    message = f"nrt_init failed. Status = {int(error.status)}"
    log.write(Level.ERROR, Component.NRT, "nrt_init", message)
    write_info_block(log, error, environ, cores=cores, instance_id=instance_id)


def _greet(machine: Snapshot, log: RuntimeLog) -> None:
    family = machine.instance_type.partition(".")[0].rstrip("nu")
    architecture = {"trn1": "TRN", "inf1": "INF"}.get(family, family.upper())
    per_device = len(machine.devices[0].core_ids)
    info = f"device count:{len(machine.devices)} cores per device:{per_device} architecture:{architecture}"
    log.write(
        Level.INFO, Component.NRT, "nrt_init", f"Neuron Runtime {RUNTIME_BUILD} (neurontools, simulated)"
    )
    log.write(Level.INFO, Component.NRT, "nrt_init", f"Found neuron driver: {DRIVER_VERSION}")
    log.write(Level.INFO, Component.NRT, "nrt_init", f"Instance info:: {info}")
