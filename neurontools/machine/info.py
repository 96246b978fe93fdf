"""How a machine is started, and what is known of a running one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from neurontools.machine.kind import HOST, Kind, kind_in


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Which machine to start.

    Args:
        machine: its name.
        instance_type: its type; None takes that of a killed daemon, else NEURONTOOLS_INSTANCE.
        lnc: logical NeuronCore configuration, None for the device's default.
        neighbours: order in which devices list their neighbours, "host" or "docs"; None: "host".
        visible_devices: the host's devices that a container sees, such as "13" or "0,4-7", or "all"; None: all.
        ultraserver_mode: ways in which the instances of the UltraServer may be joined, such as "1,4"; None: all.
        ultraserver_node: which instance of its UltraServer the machine is, from 0; None: 0.
        idle_exit_s: end after so many seconds without clients and processes; None: never.
        foreground: run in this process and return when it ends.
        parent_pid: end with this process; the machine is private to it and leaves nothing.
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


@dataclass(frozen=True, slots=True)
class DaemonInfo:
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
    def kind(self) -> Kind:
        """What two starts of this machine must have in common."""
        return kind_in(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, as in neurond.json."""
        return asdict(self)


def info_from_json(data: dict[str, Any]) -> DaemonInfo:
    """Return the value of its JSON form; fields that this version does not know are left out.

    Raises:
        TypeError: a field is missing.
    """
    known = {field.name for field in fields(DaemonInfo)}
    values = {name: value for name, value in data.items() if name in known}
    for name in ("visible_devices", "ultraserver_modes"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return DaemonInfo(**values)
