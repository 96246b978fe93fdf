"""How a machine is started and configured, and the facts of a running one."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from neurontools.machine import codec
from neurontools.machine.machine_names import core_ranges

HOST, DOCS = "host", "docs"


class MachineConfig(Struct, frozen=True):
    """The configuration that two starts of one machine must share: it cannot change while the machine runs.

    `neighbours` is the order in which devices list theirs: that of real hosts or that of AWS's documentation;
    `visible_devices` are the host's ids of the devices that a container sees, None for all of them.
    `ultraserver_modes` and `ultraserver_node` are its place in its UltraServer, None if it is not in one.
    """

    instance_type: str
    lnc: int
    neighbours: str = HOST
    visible_devices: tuple[int, ...] | None = None
    ultraserver_modes: tuple[int, ...] | None = None
    ultraserver_node: int | None = None

    def differences(self, other: MachineConfig) -> tuple[str, ...]:
        """Return the differences from another configuration, as words for a message."""
        if self.instance_type != other.instance_type:
            return ()
        left, right = self._aspects(), other._aspects()
        return tuple(text for text, other_text in zip(left, right, strict=True) if text != other_text)

    def _aspects(self) -> tuple[str, ...]:
        visible, modes = self.visible_devices, self.ultraserver_modes
        return (
            f"LNC {self.lnc}",
            "neighbours in the hosts' order"
            if self.neighbours == HOST
            else "neighbours in the order of AWS's documentation",
            "all devices visible" if visible is None else f"visible devices {core_ranges(visible)}",
            f"UltraServer modes {','.join(map(str, modes or ()))}",
            f"UltraServer node {self.ultraserver_node}",
        )


def config_of(holder: object) -> MachineConfig:
    """Return the configuration of a value whose fields are named as in `MachineConfig`."""
    return MachineConfig(*[getattr(holder, name) for name in MachineConfig.__struct_fields__])


class StartOptions(Struct, frozen=True):
    """The machine to start.

    Args:
        machine: its name.
        instance_type: its type; None for that of a killed daemon, else NEURONTOOLS_INSTANCE.
        lnc: logical NeuronCore configuration, None for the device's default.
        neighbours: order in which devices list their neighbours, "host" or "docs"; None: "host".
        visible_devices: the host's devices that a container sees, such as "13" or "0,4-7", or "all"; None: all.
        ultraserver_mode: ways in which the instances of the UltraServer may be joined, such as "1,4"; None: all.
        ultraserver_node: the machine's place in its UltraServer, from 0; None: 0.
        idle_exit_s: end after this many seconds without clients and processes; None: never.
        foreground: run in this process and return when it ends.
        parent_pid: end with this process; the machine is private to it and deletes its files.
        resume: a killed daemon's definition wins over the other options.
    """

    machine: str
    instance_type: str | None = None
    lnc: int | None = None
    neighbours: str | None = None
    visible_devices: str | None = None
    ultraserver_mode: str | None = None
    ultraserver_node: int | None = None
    idle_exit_s: float | None = None
    foreground: bool = False
    parent_pid: int | None = None
    resume: bool = False


class DaemonInfo(Struct, frozen=True):
    """A running daemon.

    `was_running` is set when a start found it running already; `group` is the name (or number) of the group that the
    machine is shared with.
    """

    machine: str
    pid: int
    start_ticks: int
    boot_id: str
    instance_type: str
    lnc: int
    device_count: int
    core_count: int
    socket: str
    log: str
    started_unix_s: float
    idle_exit_s: float | None
    parent_pid: int | None
    protocol: int
    version: str
    was_running: bool = False
    group: str | None = None
    neighbours: str = HOST
    visible_devices: tuple[int, ...] | None = None
    ultraserver_modes: tuple[int, ...] | None = None
    ultraserver_node: int | None = None

    @property
    def config(self) -> MachineConfig:
        """The configuration that two starts of this machine must share."""
        return config_of(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, as in neurond.json."""
        value: dict[str, Any] = codec.to_builtins(self)
        return value
