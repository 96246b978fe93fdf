"""Which kind of machine somebody wants who starts one: the options, checked against the instance type."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine.indices import parse_indices
from neurontools.machine.kind import DOCS, HOST, Kind

if TYPE_CHECKING:
    from neurontools.machine.info import StartOptions
    from neurontools.machine.instances.catalogue import InstanceType

ALL = "all"


def kind_of(options: StartOptions, instance: InstanceType, before: Kind | None) -> Kind:
    """Return the kind of machine that somebody wants.

    Args:
        options: the wish; what it leaves open is as before, else the default.
        instance: the instance type that is meant.
        before: the kind of the machine under that name, None for none.

    Raises:
        UsageError: a list makes no sense.
        NeuronToolsError: the instance type does not offer what is wanted.
    """
    base = before if before is not None and before.instance_type == instance.name else _default(instance)
    lnc = base.lnc if options.lnc is None else options.lnc
    instance.cores_per_device(lnc)
    modes, node = _place(options, instance, base)
    return Kind(
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
        UsageError: it is no list, or names a device twice.
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
        raise UsageError(f"bad list {text!r} for {flag}: {error}", hint) from error
    found.sort()
    for index, following in pairwise(found):
        if index == following:
            raise UsageError(f"bad list {text!r} for {flag}: {index} is there twice", hint)
    return tuple(found)


def _default(instance: InstanceType) -> Kind:
    ultraserver = instance.ultraserver
    return Kind(
        instance_type=instance.name,
        lnc=instance.device.lnc_default,
        ultraserver_modes=None if ultraserver is None else ultraserver.modes,
        ultraserver_node=None if ultraserver is None else 0,
    )


def _neighbours(order: str, instance: InstanceType) -> str:
    if order not in {HOST, DOCS}:
        raise UsageError(f"no order of neighbours {order!r}", f"choose --neighbours {HOST} or {DOCS}")
    return HOST if instance.connected_to_docs is None else order


def _place(
    options: StartOptions, instance: InstanceType, base: Kind
) -> tuple[tuple[int, ...] | None, int | None]:
    if options.ultraserver_mode is None and options.ultraserver_node is None:
        return base.ultraserver_modes, base.ultraserver_node
    ultraserver = instance.ultraserver
    if ultraserver is None:
        raise NeuronToolsError(
            f"{instance.name} is no part of an UltraServer", "choose --instance trn2u.48xlarge or a trn3 type"
        )
    modes, node = base.ultraserver_modes, base.ultraserver_node
    if options.ultraserver_mode is not None:
        known = ",".join(map(str, ultraserver.modes))
        hint = f"{instance.name} has modes {known}"
        modes = _indices(options.ultraserver_mode, "--ultraserver-mode", hint)
        if not set(modes) <= set(ultraserver.modes):
            raise NeuronToolsError(f"no UltraServer mode {options.ultraserver_mode!r}", hint)
    if options.ultraserver_node is not None:
        node = options.ultraserver_node
        if not 0 <= node < ultraserver.nodes:
            raise NeuronToolsError(
                f"no UltraServer node {node}",
                f"an UltraServer of {instance.name} has nodes 0-{ultraserver.nodes - 1}",
            )
    return modes, node
