"""A machine and its daemon in one value: what `neurond status` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.naming import check_name

if TYPE_CHECKING:
    from neurontools.machine.info import DaemonInfo
    from neurontools.machine.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """The daemon's facts and the machine at one moment."""

    info: DaemonInfo
    snapshot: Snapshot

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"daemon": self.info.to_json(), "machine": self.snapshot.to_json()}


def status(machine: str | None = None) -> MachineStatus:
    """Return the status of a machine; starts nothing.

    Raises:
        NoMachineError: it does not run.
        DaemonError: its daemon does not answer.
    """
    name = check_name(env.machine() if machine is None else machine)
    info = launch.find(name)
    with Client.connect(name) as client:
        return MachineStatus(info, client.snapshot())
