"""The kind of a machine: everything about it that is chosen when it starts and that cannot change while it lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine.indices import parse_indices
from neurontools.machine.naming import core_ranges

if TYPE_CHECKING:
    from neurontools.machine.info import StartOptions
    from neurontools.machine.instances.catalogue import InstanceType

HOST, DOCS = "host", "docs"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Kind:
    """What two starts of one machine must have in common.

    `neighbours` says in which order devices list theirs, that of real hosts or that of the documents;
    `visible_devices` are the host's ids of the devices that a container sees, None for all of them.
    `ultraserver_modes` and `ultraserver_node` are its place in its UltraServer, None where it is in none.
    """

    instance_type: str
    lnc: int
    neighbours: str = HOST
    visible_devices: tuple[int, ...] | None = None
    ultraserver_modes: tuple[int, ...] | None = None
    ultraserver_node: int | None = None

    def differences(self, other: Kind) -> tuple[str, ...]:
        """Return how this kind differs from another one, as words for a message."""
        if self.instance_type != other.instance_type:
            return ()
        mine, theirs = self._aspects(), other._aspects()
        return tuple(text for text, other_text in zip(mine, theirs, strict=True) if text != other_text)

    def _aspects(self) -> tuple[str, ...]:
        visible, modes = self.visible_devices, self.ultraserver_modes
        return (
            f"LNC {self.lnc}",
            "neighbours in the hosts' order"
            if self.neighbours == HOST
            else "neighbours in the documents' order",
            "all devices visible" if visible is None else f"visible devices {core_ranges(visible)}",
            f"UltraServer modes {','.join(map(str, modes or ()))}",
            f"UltraServer node {self.ultraserver_node}",
        )


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
    for index in found:
        if found.count(index) > 1:
            raise UsageError(f"bad list {text!r} for {flag}: {index} is there twice", hint)
    return tuple(sorted(found))


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
