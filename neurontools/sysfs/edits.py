"""What a write to a file of the mirror does (system-tools.md section 4), as the driver would do it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from neurontools.errors import NeuronToolsError
from neurontools.machine.client import Client
from neurontools.sysfs import formats
from neurontools.sysfs.layout import Role
from neurontools.sysfs.tree import DEVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.machine.snapshot import Snapshot
    from neurontools.sysfs.history import History
    from neurontools.sysfs.tree import Part

_NOTIFY_TEXTS = {text.strip(): text for text in (formats.NOTIFY_OFF, formats.NOTIFY_ON)}


class Controls(Protocol):
    """What a write can make a machine do; each raises a NeuronToolsError that says why not."""

    def reset_hardware(self, device: int, counter: str) -> None:
        """Set an error counter of a device to 0."""
        ...

    def reset_device(self, device: int) -> None:
        """Reset a device that nobody uses."""
        ...


class MachineControls:
    """Controls of a simulated machine.

    Args:
        machine: its name.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine

    def reset_hardware(self, device: int, counter: str) -> None:
        """Set an error counter of a device to 0.

        Raises:
            NeuronToolsError: the machine does not run or refuses.
        """
        with Client.connect(self._machine) as client:
            client.call("reset_hardware", device=device, counter=counter)

    def reset_device(self, device: int) -> None:
        """Reset a device.

        Raises:
            NeuronToolsError: the machine does not run or refuses.
        """
        with Client.connect(self._machine) as client:
            client.call("reset_device", device=device)


@dataclass(frozen=True, slots=True)
class _Target:
    """What a path stands for: a number's place among the part's metrics, or a leaf's name."""

    part: Part
    role: Role
    amount: int
    name: str


class Edits:
    """Applies writes.

    Args:
        history: remembers which numbers were set to 0.
        controls: reach the machine.
        on_notice: gets a line for a person when a write could not be applied.
    """

    def __init__(self, history: History, controls: Controls, on_notice: Callable[[str], None]) -> None:
        self._history = history
        self._controls = controls
        self._on_notice = on_notice

    def apply(self, path: str, text: str | None, parts: Mapping[str, Part], snapshot: Snapshot) -> Snapshot:
        """Do what a write to a file means; the file itself is written anew by the caller.

        Args:
            path: the file.
            text: what is in it now; None or "" changes nothing: the file was deleted or only emptied so far.
            parts: the tree's parts by directory, up to date.
            snapshot: the machine.

        Returns:
            The machine after it.
        """
        target = _target(path, parts)
        if target is None or not text:
            return snapshot
        try:
            return self._do(path, target, text.strip(), snapshot)
        except NeuronToolsError as error:
            self._on_notice(f"{path.removeprefix(DEVICES + '/')}: {error.message}")
            return snapshot

    def _do(self, path: str, target: _Target, text: str, snapshot: Snapshot) -> Snapshot:
        match target.role:
            case Role.TOTAL | Role.PRESENT | Role.PEAK:
                self._history.reset(path, target.role, target.amount)
            case Role.NOTIFY if text in _NOTIFY_TEXTS:
                self._history.set_notify_delay(path, _NOTIFY_TEXTS[text])
            case Role.HARDWARE:
                device = _device_of(target.part)
                self._controls.reset_hardware(device, target.name)
                return _without_errors(snapshot, device, target.name)
            case Role.RESET:
                self._controls.reset_device(_device_of(target.part))
            case _:
                pass
        return snapshot


def _target(path: str, parts: Mapping[str, Part]) -> _Target | None:
    directory = path
    while "/" in directory:
        directory = directory.rpartition("/")[0]
        if directory in parts:
            return _in_part(parts[directory], path[len(directory) + 1 :])
    return None


def _in_part(part: Part, path: str) -> _Target | None:
    directory, _, name = path.rpartition("/")
    for metric, amount in zip(part.layout.metrics, part.numbers, strict=True):
        if metric.directory == directory and name in metric.roles:
            return _Target(part, Role(name), amount, name)
    roles = {leaf.path: leaf.role for leaf in part.layout.leaves}
    return _Target(part, roles[path], 0, name) if path in roles else None


def _device_of(part: Part) -> int:
    return int(part.directory.removeprefix(f"{DEVICES}/neuron").partition("/")[0])


def _without_errors(snapshot: Snapshot, device: int, counter: str) -> Snapshot:
    return replace(
        snapshot,
        devices=tuple(
            replace(each, hardware=replace(each.hardware, **{counter: 0})) if each.index == device else each
            for each in snapshot.devices
        ),
    )
