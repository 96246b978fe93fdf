"""How a machine is started, and what is known of a running one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Which machine to start.

    Args:
        machine: its name.
        instance_type: its type; None takes that of a killed daemon, else NEURONTOOLS_INSTANCE.
        lnc: logical NeuronCore configuration, None for the device's default.
        idle_exit_s: end after so many seconds without clients and processes; None: never.
        foreground: run in this process and return when it ends.
        parent_pid: end with this process; the machine is private to it and leaves nothing.
        resume: a killed daemon's definition wins over the other options.
    """

    machine: str
    instance_type: str | None = None
    lnc: int | None = None
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, as in neurond.json."""
        return asdict(self)


def info_from_json(data: dict[str, Any]) -> DaemonInfo:
    """Return the value of its JSON form; fields that this version does not know are left out.

    Raises:
        TypeError: a field is missing.
    """
    known = {field.name for field in fields(DaemonInfo)}
    return DaemonInfo(**{name: value for name, value in data.items() if name in known})
