"""Machines for Python programs: the functions of `neurond` and the tools, as one object."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from neurontools import env
from neurontools.errors import NoMachineError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.machine_names import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.faults.params import Fault, FaultParams
    from neurontools.machine.machine_config import DaemonInfo
    from neurontools.machine.snapshot import Snapshot


class Machine:
    """A running machine and a connection to it. Made by `start` and `connect`; threads may share it.

    As a context manager it ends what it started: from `start` it stops the machine, unless that was running before; from
    `connect` it closes its connection.

    Args:
        client: a connection.
        info: the daemon's facts; `was_running` is set when `start` found the machine running.
        stop_at_exit: whether the context manager stops the machine.
    """

    def __init__(self, client: Client, info: DaemonInfo, *, stop_at_exit: bool = False) -> None:
        self.client = client
        self.info = info
        self._stop_at_exit = stop_at_exit

    @property
    def name(self) -> str:
        """The machine's name, the value of NEURONTOOLS_MACHINE for tools and programs."""
        return self.info.machine

    def snapshot(self) -> Snapshot:
        """Return the current snapshot of the machine.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
            DaemonError: it refuses or does not answer.
        """
        return self.client.snapshot()

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now, then one every `period_s` seconds (0.05 to 3600), across restarts of the daemon.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
            DaemonError: the period is out of range.
        """
        return self.client.watch(period_s)

    def inject(self, kind: str, **params: Unpack[FaultParams]) -> Fault:
        """Inject a fault into the machine; see docs/reference/faults.md.

        Args:
            kind: such as "hang" or "ecc".
            params: see `FaultSpec`.

        Raises:
            DaemonError: the fault does not fit this machine, or this user may not inject it.
        """
        return self.client.inject(kind, **params)

    def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the machine, oldest first."""
        return self.client.faults()

    def clear_faults(self, *faults: Fault | int) -> tuple[int, ...]:
        """Clear faults and repair what they broke; without arguments, all of them. Return their ids.

        Raises:
            DaemonError: there is no such fault, or this user may not end it.
        """
        return self.client.clear_faults(*faults)

    def reset_device(self, device: int, *, force: bool = False) -> None:
        """Reset a device, which repairs what memory errors broke; its error counters stay.

        Raises:
            DaemonError: there is no such device, it is lost, or processes hold cores of it and `force` is not set.
        """
        self.client.reset_device(device, force=force)

    def stop(self, *, force: bool = False) -> DaemonInfo:
        """Stop the machine, close the connection, and return the facts of the daemon after its exit.

        Args:
            force: stop it even if processes hold cores; they keep running.

        Raises:
            NoMachineError: it is not running any more.
            DaemonError: processes hold cores and `force` is not set.
        """
        info = launch.stop(self.name, force=force)
        self.close()
        return info

    def close(self) -> None:
        """Close the connection; the machine keeps running."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._stop_at_exit:
                launch.stop(self.name, force=True)
        except NoMachineError:
            pass  # stopped inside the block
        finally:
            self.close()


class StartChoices(TypedDict, total=False):
    """The arguments of `start` besides the instance type.

    Args:
        name: the machine's name, None for NEURONTOOLS_MACHINE.
        lnc: logical NeuronCore configuration, None for the device's default.
        neighbours: order in which devices list their neighbours, "host" or "docs".
        visible_devices: the host's devices that are visible, as in a container, such as "13" or "0,4-7".
        ultraserver_mode: ways in which the instances of the UltraServer may be joined, such as "1,4".
        ultraserver_node: the machine's place in its UltraServer, from 0.
        private: end with this process and delete all files.
        idle_exit_s: end after this many seconds without clients and processes; None: never.
    """

    name: str | None
    lnc: int | None
    neighbours: str | None
    visible_devices: str | None
    ultraserver_mode: str | None
    ultraserver_node: int | None
    private: bool
    idle_exit_s: float | None


def start(instance: str | None = None, **choices: Unpack[StartChoices]) -> Machine:
    """Start a machine, or find it running, and connect to it.

    Args:
        instance: instance type, such as "trn2.48xlarge"; None for NEURONTOOLS_INSTANCE, or the type of the running machine.
        choices: see `StartChoices`.

    Raises:
        UsageError: the name is not valid.
        UnknownInstanceError: no such instance type.
        NeuronToolsError: the type does not offer that LNC, those devices or that UltraServer.
        DaemonError: the name belongs to a machine of another configuration, or the daemon could not start.
    """
    info = launch.start(start_options(instance, **choices))
    return Machine(Client.connect(info.machine), info, stop_at_exit=not info.was_running)


def connect(name: str | None = None, *, reconnect: bool = True) -> Machine:
    """Connect to a running machine; start nothing.

    Args:
        name: its name, None for NEURONTOOLS_MACHINE.
        reconnect: whether a call connects again, and starts the machine again where that is allowed, after the
            connection broke.

    Raises:
        NoMachineError: no daemon runs under that name.
        DaemonError: it refuses, does not answer, or speaks another protocol version.
    """
    chosen = check_name(env.machine() if name is None else name)
    client = Client.connect(chosen, reconnect=reconnect)
    try:
        return Machine(client, launch.find(chosen))
    except BaseException:
        client.close()
        raise


def start_options(
    instance: str | None = None, *, name: str | None = None, private: bool = False, **others: Any
) -> StartOptions:
    """Return the launcher's options for the arguments of `start`."""
    return StartOptions(
        machine=env.machine() if name is None else name,
        instance_type=instance,
        parent_pid=os.getpid() if private else None,
        **others,
    )
