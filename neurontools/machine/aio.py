"""Machines for asyncio programs: `connect` and `start` give a client whose calls are awaited.

The same calls, errors and values as the synchronous `Client`; nothing here waits in a thread but starting and stopping
a daemon.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, Unpack

from neurontools import env
from neurontools.machine import launch
from neurontools.machine.aio_wire import AsyncWire
from neurontools.machine.api import StartChoices, start_options
from neurontools.machine.changes import pushed
from neurontools.machine.client_errors import SilentDaemonError, ended, ends_always
from neurontools.machine.faults.spec import fault_from_json
from neurontools.machine.naming import check_name
from neurontools.machine.snapshot import snapshot_from_json
from neurontools.machine.wire import ANSWER_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from neurontools.machine.faults.aim import FaultAim
    from neurontools.machine.faults.spec import Fault
    from neurontools.machine.info import DaemonInfo
    from neurontools.machine.snapshot import Snapshot


class AsyncClient:
    """A connection to the daemon of one machine, for one event loop. Made by `connect` and `start`; tasks may share it.

    A call may be cancelled at any time; the next one works. After the daemon was replaced the next call connects
    again. Processes register with the synchronous `Client`, which holds the descriptors that go with it.
    """

    def __init__(self, machine: str, *, reconnect: bool = True) -> None:
        self.machine = machine
        self._reconnect = reconnect
        self._turn = asyncio.Lock()
        self._wire: AsyncWire | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the machine goes on. A later call connects again."""
        self._drop()
        await asyncio.sleep(0)  # the transport ends in the loop's next round

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result.

        Raises:
            DaemonError: the daemon refuses or does not answer.
            NoMachineError: the daemon is gone and may not be started again.
        """
        async with self._turn:
            try:
                return await self._once(method, params)
            except ConnectionError as error:
                if not self._reconnect:
                    raise ended(self.machine) from error
            await self._start_again()
            try:
                return await self._once(method, params)
            except ConnectionError as error:
                raise ends_always(self.machine) from error

    async def snapshot(self) -> Snapshot:
        """Return the machine at this moment."""
        return snapshot_from_json(await self.call("snapshot"))

    async def watch(self, period_s: float) -> AsyncGenerator[Snapshot, None]:
        """Yield a snapshot now and then every `period_s` seconds (0.05 to 3600), on a connection of its own.

        When the daemon was replaced the iteration goes on with the new one.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
            DaemonError: the period is out of range.
        """
        while True:
            stream = await AsyncWire.open(self.machine)
            try:
                await stream.call("watch", {"period_s": period_s, "changes": True})
                snapshot: Snapshot | None = None
                while True:
                    snapshot = pushed(snapshot, *await stream.push(period_s + ANSWER_TIMEOUT_S))
                    yield snapshot
            except ConnectionError:
                await self._start_again()
            finally:
                stream.close()

    async def inject(self, kind: str, **aim: Unpack[FaultAim]) -> Fault:
        """Let something go wrong with the machine; see docs/reference/faults.md.

        Args:
            kind: such as "hang" or "ecc".
            aim: see `FaultSpec`.

        Raises:
            DaemonError: the fault makes no sense on this machine, or is not this user's to inject.
        """
        given = {name: value for name, value in aim.items() if value is not None}
        return fault_from_json((await self.call("inject_fault", kind=kind, **given))["fault"])

    async def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the machine, oldest first."""
        return tuple(fault_from_json(fault) for fault in (await self.call("list_faults"))["faults"])

    async def clear_faults(self, *faults: Fault | int) -> tuple[int, ...]:
        """End faults, and what they broke; without arguments all of them. Return the numbers of those that were ended.

        Raises:
            DaemonError: there is no such fault, or it is not this user's to end.
        """
        ids = [fault if isinstance(fault, int) else fault.id for fault in faults]
        return tuple((await self.call("clear_faults", ids=ids or None))["ids"])

    async def reset_device(self, device: int, *, force: bool = False) -> None:
        """Reset a device, which mends what memory errors broke; its error counters stay.

        Raises:
            DaemonError: there is no such device, it is lost, or processes hold cores of it and `force` is not set.
        """
        await self.call("reset_device", device=device, force=force)

    async def stop(self, *, force: bool = False) -> DaemonInfo:
        """Stop the machine and close the connection; return what it was when it has ended.

        Args:
            force: stop it even if processes hold cores; they go on.

        Raises:
            NoMachineError: it does not run any more.
            DaemonError: processes hold cores and `force` is not set.
        """
        info = await asyncio.to_thread(launch.stop, self.machine, force=force)
        await self.close()
        return info

    async def _once(self, method: str, params: dict[str, Any]) -> Any:
        try:
            if self._wire is None:
                self._wire = await AsyncWire.open(self.machine)
            return await self._wire.call(method, params)
        except (ConnectionError, SilentDaemonError):
            self._drop()
            raise

    async def _start_again(self) -> None:
        await asyncio.to_thread(launch.ensure_running, self.machine)

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


async def connect(name: str | None = None, *, reconnect: bool = True) -> AsyncClient:
    """Connect to a running machine; start nothing.

    Args:
        name: its name, None for the one that NEURONTOOLS_MACHINE names.
        reconnect: whether a call connects again, and starts the machine again where that is allowed, after the
            connection broke.

    Raises:
        NoMachineError: no daemon runs under that name.
        DaemonError: it refuses, does not answer, or speaks another protocol version.
    """
    client = AsyncClient(check_name(env.machine() if name is None else name), reconnect=reconnect)
    try:
        client._wire = await AsyncWire.open(client.machine)  # noqa: SLF001  of this module
    except ConnectionError as error:
        raise ended(client.machine) from error
    return client


async def start(instance: str | None = None, **choices: Unpack[StartChoices]) -> AsyncClient:
    """Start a machine, or find it running, and connect to it; see `neurontools.machine.start`."""
    info = await asyncio.to_thread(launch.start, start_options(instance, **choices))
    return await connect(info.machine)
