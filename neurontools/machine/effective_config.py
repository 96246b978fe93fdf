"""The configuration of a machine when its daemon starts: options, instance type, and the state of the previous daemon."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import DaemonError, NeuronToolsError, UsageError
from neurontools.machine.faults.registry import NO_FAULTS, FaultRecord
from neurontools.machine.instances import catalogue
from neurontools.machine.journal import Definition, Journal
from neurontools.machine.machine_config import DOCS, HOST, MachineConfig
from neurontools.machine.machine_names import parse_indices
from neurontools.machine.processes import ProcessKey, is_alive, key_of
from neurontools.machine.snapshot import History

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.machine_config import StartOptions

ALL = "all"


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The state that a former daemon left: its journal, and whether processes that use its devices still run."""

    journal: Journal | None
    boot_id: str
    inhabited: bool

    @property
    def definition(self) -> Definition | None:
        """The definition to continue with: of a daemon that was killed, or whose processes still run; else None."""
        if self.journal is None or self.journal.boot_id != self.boot_id:
            return None
        return self.journal.definition if self.journal.running or self.inhabited else None

    def history(self, now: Definition) -> History:
        """Return the counters so far: named counters always, those by device and core only if these are the same."""
        if self.journal is None:
            return History()
        counted, before = self.journal.history, self.journal.definition
        same_devices = (before.instance_type, before.visible_devices) == (
            now.instance_type,
            now.visible_devices,
        )
        same_cores = same_devices and before.lnc == now.lnc
        return History(
            counted.lifetime,
            counted.core_totals if same_cores else (),
            counted.hardware if same_devices else {},
        )

    @property
    def counted(self) -> frozenset[ProcessKey]:
        """The exited processes that are counted already, though their pages may still exist."""
        return frozenset(self.journal.counted) if self.journal else frozenset()

    def faults(self, now: Definition) -> FaultRecord:
        """Return the faults of a machine that continues as it was; others start without any."""
        before = self.definition
        goes_on = self.journal is not None and before is not None and before.config == now.config
        return self.journal.faults if self.journal is not None and goes_on else NO_FAULTS


def resolve(options: StartOptions, previous: PreviousRun) -> Definition:
    """Return the definition of the machine.

    Raises:
        UnknownInstanceError: no such instance type.
        UsageError: a list of devices or modes is not valid.
        NeuronToolsError: the type does not offer what the options request.
        DaemonError: processes still run on a machine of another configuration under this name.
        ProcessLookupError: the parent has exited.
    """
    before = previous.definition
    name = options.instance_type or (before.instance_type if before else env.instance())
    instance = catalogue.instance_type(name)
    config = resolve_config(options, instance, before.config if before is not None else None)
    if before is not None and previous.inhabited and config != before.config:
        raise config_conflict(
            options.machine,
            before.config,
            config,
            "end the processes that still run on it: 'neurond start' and 'neurond status' list them",
        )
    same_type = before is not None and before.instance_type == instance.name
    return Definition(
        machine=options.machine,
        instance_type=instance.name,
        lnc=config.lnc,
        started_unix_s=before.started_unix_s if before is not None and same_type else time.time(),
        idle_exit_s=before.idle_exit_s if before is not None and options.resume else options.idle_exit_s,
        parent=_parent(options, before),
        neighbours=config.neighbours,
        visible_devices=config.visible_devices,
        ultraserver_modes=config.ultraserver_modes,
        ultraserver_node=config.ultraserver_node,
    )


def config_conflict(
    machine: str, running: MachineConfig, wanted: MachineConfig, remedy: str | None = None
) -> DaemonError:
    """Return the error for a start under a name that belongs to a machine of another configuration.

    Args:
        machine: the name.
        running: the configuration of that machine.
        wanted: the requested configuration.
        remedy: an alternative to another name; None: stopping the machine.
    """
    return DaemonError(
        f"machine {machine!r} is {_describe(running, wanted)}, not {_describe(wanted, running)}",
        "choose another name with --machine or NEURONTOOLS_MACHINE, or "
        + (remedy or "stop it first: neurond stop" + _name_flag(machine)),
    )


def _describe(config: MachineConfig, running: MachineConfig) -> str:
    differences = config.differences(running)
    return f"{config.instance_type} with {' and '.join(differences)}" if differences else config.instance_type


def _name_flag(machine: str) -> str:
    return "" if machine == env.DEFAULT_MACHINE else f" --machine {machine}"


def _parent(options: StartOptions, before: Definition | None) -> ProcessKey | None:
    if options.parent_pid is not None:
        return key_of(options.parent_pid)
    if before is not None and before.parent is not None and is_alive(before.parent):
        return before.parent
    return None


def resolve_config(
    options: StartOptions, instance: InstanceType, before: MachineConfig | None
) -> MachineConfig:
    """Return the configuration that options request.

    Args:
        options: what is None is as before, else the default.
        instance: the instance type.
        before: the configuration of the machine under that name, None for none.

    Raises:
        UsageError: a list is not valid.
        NeuronToolsError: the instance type does not offer what the options request.
    """
    base = before if before is not None and before.instance_type == instance.name else _default(instance)
    lnc = base.lnc if options.lnc is None else options.lnc
    instance.cores_per_device(lnc)
    modes, node = _place(options, instance, base)
    return MachineConfig(
        instance_type=instance.name,
        lnc=lnc,
        neighbours=base.neighbours
        if options.neighbours is None
        else _neighbours(options.neighbours, instance),
        visible_devices=(
            base.visible_devices
            if options.visible_devices is None
            else visible_devices(options.visible_devices, instance)
        ),
        ultraserver_modes=modes,
        ultraserver_node=node,
    )


def visible_devices(text: str, instance: InstanceType) -> tuple[int, ...] | None:
    """Return the host's ids in a list such as `13` or `0,4-7`, in ascending order; None for all of them.

    Raises:
        UsageError: it is not a list, or names a device twice.
        NeuronToolsError: the instance has no such device.
    """
    if text.strip() == ALL:
        return None
    hint = "write the host's ids: --visible-devices 13, 0,2 or 0-3; or all"
    devices = _indices(text, "--visible-devices", hint)
    if devices[-1] >= instance.device_count:
        last = instance.device_count - 1
        raise NeuronToolsError(
            f"{instance.name} has no Neuron device {devices[-1]}",
            f"it has devices 0-{last}" if last else "it has one, 0",
        )
    return None if len(devices) == instance.device_count else devices


def _indices(text: str, flag: str, hint: str) -> tuple[int, ...]:
    try:
        found = parse_indices(text)
    except ValueError as error:
        raise UsageError(f"invalid list {text!r} for {flag}: {error}", hint) from error
    found.sort()
    for index, following in pairwise(found):
        if index == following:
            raise UsageError(f"invalid list {text!r} for {flag}: {index} is listed twice", hint)
    return tuple(found)


def _default(instance: InstanceType) -> MachineConfig:
    ultraserver = instance.ultraserver
    return MachineConfig(
        instance_type=instance.name,
        lnc=instance.device.lnc_default,
        ultraserver_modes=None if ultraserver is None else ultraserver.modes,
        ultraserver_node=None if ultraserver is None else 0,
    )


def _neighbours(order: str, instance: InstanceType) -> str:
    if order not in {HOST, DOCS}:
        raise UsageError(f"unknown order of neighbours {order!r}", f"choose --neighbours {HOST} or {DOCS}")
    return HOST if instance.connected_to_docs is None else order


def _place(
    options: StartOptions, instance: InstanceType, base: MachineConfig
) -> tuple[tuple[int, ...] | None, int | None]:
    if options.ultraserver_mode is None and options.ultraserver_node is None:
        return base.ultraserver_modes, base.ultraserver_node
    ultraserver = instance.ultraserver
    if ultraserver is None:
        raise NeuronToolsError(
            f"{instance.name} is not part of an UltraServer",
            "choose --instance trn2u.48xlarge or a trn3 type",
        )
    modes, node = base.ultraserver_modes, base.ultraserver_node
    if options.ultraserver_mode is not None:
        known = ",".join(map(str, ultraserver.modes))
        hint = f"{instance.name} has modes {known}"
        modes = _indices(options.ultraserver_mode, "--ultraserver-mode", hint)
        if not set(modes) <= set(ultraserver.modes):
            raise NeuronToolsError(f"unknown UltraServer mode {options.ultraserver_mode!r}", hint)
    if options.ultraserver_node is not None:
        node = options.ultraserver_node
        if not 0 <= node < ultraserver.nodes:
            raise NeuronToolsError(
                f"no UltraServer node {node}",
                f"an UltraServer of {instance.name} has nodes 0-{ultraserver.nodes - 1}",
            )
    return modes, node
