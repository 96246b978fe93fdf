"""Machines for asyncio programs: `connect` and `start` give a client whose calls are awaited.

Calls run the synchronous `Client` in a thread. A cancelled call still completes in its thread, without a result.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from neurontools.machine import api, launch
from neurontools.machine.client import Client
from neurontools.machine.protocol import InvalidParamsError, Request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from neurontools.machine.api import StartChoices
    from neurontools.machine.faults.params import Fault, FaultParams
    from neurontools.machine.machine_config import DaemonInfo
    from neurontools.machine.snapshot import Snapshot

T = TypeVar("T")


class AsyncClient:
    """A connection to the daemon of one machine. Made by `connect` and `start`; tasks may share it.

    After the daemon was replaced the next call connects again. Processes register with the synchronous `Client`, which
    holds the descriptors that go with it.
    """

    def __init__(self, client: Client) -> None:
        self.machine = client.machine
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the machine keeps running. A later call connects again."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._client.close)))

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol by its name and return its result as JSON values; raises as `Client.call`."""
        return await asyncio.to_thread(self._client.call, method, **params)

    async def request(self, request: Request, result_type: type[T]) -> T:
        """Call a method of the protocol and return its result; raises as `call`."""
        return await asyncio.to_thread(self._client.request, request, result_type)

    async def snapshot(self) -> Snapshot:
        """Return the current snapshot of the machine."""
        return await asyncio.to_thread(self._client.snapshot)

    async def watch(self, period_s: float) -> AsyncGenerator[Snapshot, None]:
        """Yield a snapshot now, then one every `period_s` seconds (0.05 to 3600), across restarts of the daemon.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
            DaemonError: the period is out of range.
        """
        if not 0.05 <= period_s <= 3600:
            raise InvalidParamsError(f"period_s {period_s:g} out of range: must be 0.05 to 3600")
        while True:
            yield await self.snapshot()
            await asyncio.sleep(period_s)

    async def inject(self, kind: str, **params: Unpack[FaultParams]) -> Fault:
        """Inject a fault into the machine; see `Client.inject`."""
        return await asyncio.to_thread(self._client.inject, kind, **params)

    async def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the machine, oldest first."""
        return await asyncio.to_thread(self._client.faults)

    async def clear_faults(self, *faults: Fault | int) -> tuple[int, ...]:
        """Clear faults and repair what they broke; see `Client.clear_faults`."""
        return await asyncio.to_thread(self._client.clear_faults, *faults)

    async def reset_device(self, device: int, *, force: bool = False) -> None:
        """Reset a device; see `Client.reset_device`."""
        await asyncio.to_thread(self._client.reset_device, device, force=force)

    async def stop(self, *, force: bool = False) -> DaemonInfo:
        """Stop the machine, close the connection, and return the facts of the daemon after its exit.

        Args:
            force: stop it even if processes hold cores; they keep running.

        Raises:
            NoMachineError: it is not running any more.
            DaemonError: processes hold cores and `force` is not set.
        """
        info = await asyncio.to_thread(launch.stop, self.machine, force=force)
        await self.close()
        return info


async def connect(name: str | None = None, *, reconnect: bool = True) -> AsyncClient:
    """Connect to a running machine and start nothing; see `Client.connect`."""
    return await _open(lambda: Client.connect(name, reconnect=reconnect))


async def start(instance: str | None = None, **choices: Unpack[StartChoices]) -> AsyncClient:
    """Start a machine, or find it running, and connect to it; see `neurontools.machine.start`."""
    return await _open(lambda: api.start(instance, **choices).client)


async def _open(connect_client: Callable[[], Client]) -> AsyncClient:
    connecting = asyncio.ensure_future(asyncio.to_thread(connect_client))
    try:
        return AsyncClient(await asyncio.shield(connecting))
    except asyncio.CancelledError:
        connecting.add_done_callback(_close)
        raise


def _close(connecting: asyncio.Task[Client]) -> None:
    if connecting.exception() is None:
        connecting.result().close()
