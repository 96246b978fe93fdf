"""Machines for asyncio programs: `connect` and `start` give a client whose calls are awaited.

The calls, errors and values are those of the synchronous `Client`; only starting and stopping a daemon uses a thread.
A call may be cancelled at any time: received data stays in the session, and a late answer is skipped.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from neurontools import env, paths
from neurontools.machine import codec, launch
from neurontools.machine.api import StartChoices, start_options
from neurontools.machine.changes import apply_notification
from neurontools.machine.client import fault_ids
from neurontools.machine.connection import (
    ANSWER_TIMEOUT_S,
    RECEIVE_BYTES,
    SilentDaemonError,
    checked_socket,
    connection_closed_error,
    error_from,
    hello_request,
    no_answer_error,
    restarted_daemon_error,
)
from neurontools.machine.faults.params import Fault, FaultSpec
from neurontools.machine.machine_names import check_name
from neurontools.machine.protocol import AnswerError, ClientSession, Greeting
from neurontools.machine.requests import (
    ClearedFaults,
    ClearFaultsRequest,
    Empty,
    FaultList,
    InjectedFault,
    ListFaultsRequest,
    ResetDeviceRequest,
    SnapshotRequest,
    WatchRequest,
)
from neurontools.machine.snapshot import Snapshot

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator

    from neurontools.machine.faults.params import FaultParams
    from neurontools.machine.machine_config import DaemonInfo
    from neurontools.machine.protocol import Notification, Request

_BUSY_WAIT_S = 0.005

T = TypeVar("T")


class AsyncConnection:
    """A connection that speaks the protocol. Made by `open`; used by one task at a time.

    Raises:
        DaemonError: the daemon refuses, or does not answer in time (every method).
        ConnectionError: the daemon closed the connection (every method).
    """

    def __init__(self, machine: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._machine = machine
        self._reader = reader
        self._writer = writer
        self._session = ClientSession()

    @classmethod
    async def open(cls, machine: str) -> Self:
        """Connect to the daemon of a machine and greet it.

        Raises:
            NoMachineError: no daemon listens there.
            DaemonError: it is another user's, refuses, or speaks another protocol version.
        """
        path = paths.socket_path(machine)
        with checked_socket(machine, path) as sock:
            sock.setblocking(False)
            await _connect(sock, path)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=RECEIVE_BYTES)
        except BaseException:
            sock.close()
            raise
        connection = cls(machine, reader, writer)
        try:
            await connection.request(hello_request(), Greeting)
        except BaseException:
            connection.close()
            raise
        return connection

    async def request(self, request: Request, result_type: type[T]) -> T:
        """Return the result of a method, or raise its error."""
        return await self.call(request.method, codec.to_builtins(request), result_type)

    async def call(self, method: str, params: dict[str, Any], result_type: type[T]) -> T:
        """Return the result of a method that is given by its name, or raise its error."""
        self._writer.write(self._session.request(method, params))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._writer.drain()
        except TimeoutError:
            raise no_answer_error(self._machine) from None
        try:
            while (answer := self._session.next_answer()) is None:
                await self._receive(ANSWER_TIMEOUT_S)
        except AnswerError as error:
            raise error_from(error.body) from None
        return answer.result(result_type)

    async def next_notification(self, within_s: float) -> Notification:
        """Return the next notification."""
        while (notification := self._session.next_notification()) is None:
            await self._receive(within_s)
        return notification

    def close(self) -> None:
        """Close the connection at once; unsent data is lost."""
        self._writer.transport.abort()

    async def _receive(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                data = await self._reader.read(RECEIVE_BYTES)
        except TimeoutError:
            raise no_answer_error(self._machine) from None
        self._session.feed(data)


class AsyncClient:
    """A connection to the daemon of one machine, for one event loop. Made by `connect` and `start`; tasks may share it.

    A call may be cancelled at any time; the next one works. After the daemon was replaced the next call connects
    again. Processes register with the synchronous `Client`, which holds the descriptors that go with it.
    """

    def __init__(self, machine: str, *, reconnect: bool = True) -> None:
        self.machine = machine
        self._reconnect = reconnect
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the machine keeps running. A later call connects again."""
        self._drop()
        await asyncio.sleep(0)  # the transport ends in the loop's next round

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol by its name and return its result as JSON values.

        Raises:
            DaemonError: the daemon refuses or does not answer.
            NoMachineError: the daemon is gone and may not be started again.
        """
        return await self._call(method, params, Any)

    async def request(self, request: Request, result_type: type[T]) -> T:
        """Call a method of the protocol and return its result; raises as `call`."""
        return await self._call(request.method, codec.to_builtins(request), result_type)

    async def snapshot(self) -> Snapshot:
        """Return the current snapshot of the machine."""
        return await self.request(SnapshotRequest(), Snapshot)

    async def watch(self, period_s: float) -> AsyncGenerator[Snapshot, None]:
        """Yield a snapshot now, then one every `period_s` seconds (0.05 to 3600), on its own connection.

        If the daemon is replaced, the iteration continues with the new one.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
            DaemonError: the period is out of range.
        """
        while True:
            stream = await AsyncConnection.open(self.machine)
            try:
                await stream.request(WatchRequest(period_s, changes=True), Empty)
                snapshot: Snapshot | None = None
                while True:
                    notification = await stream.next_notification(period_s + ANSWER_TIMEOUT_S)
                    snapshot = apply_notification(snapshot, notification)
                    yield snapshot
            except ConnectionError:
                await self._start_again()
            finally:
                stream.close()

    async def inject(self, kind: str, **params: Unpack[FaultParams]) -> Fault:
        """Inject a fault into the machine; see docs/reference/faults.md.

        Args:
            kind: such as "hang" or "ecc".
            params: see `FaultSpec`.

        Raises:
            DaemonError: the fault does not fit this machine, or this user may not inject it.
        """
        injected = await self._call(FaultSpec.method, {"kind": kind, **params}, InjectedFault)
        return injected.fault

    async def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the machine, oldest first."""
        return (await self.request(ListFaultsRequest(), FaultList)).faults

    async def clear_faults(self, *faults: Fault | int) -> tuple[int, ...]:
        """Clear faults and repair what they broke; without arguments, all of them. Return their ids.

        Raises:
            DaemonError: there is no such fault, or this user may not end it.
        """
        return (await self.request(ClearFaultsRequest(fault_ids(faults)), ClearedFaults)).ids

    async def reset_device(self, device: int, *, force: bool = False) -> None:
        """Reset a device, which repairs what memory errors broke; its error counters stay.

        Raises:
            DaemonError: there is no such device, it is lost, or processes hold cores of it and `force` is not set.
        """
        await self.request(ResetDeviceRequest(device, force), Empty)

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

    async def _call(self, method: str, params: dict[str, Any], result_type: type[T]) -> T:
        async with self._lock:
            try:
                return await self._call_once(method, params, result_type)
            except ConnectionError as error:
                if not self._reconnect:
                    raise connection_closed_error(self.machine) from error
            await self._start_again()
            try:
                return await self._call_once(method, params, result_type)
            except ConnectionError as error:
                raise restarted_daemon_error(self.machine) from error

    async def _call_once(self, method: str, params: dict[str, Any], result_type: type[T]) -> T:
        try:
            if self._connection is None:
                self._connection = await AsyncConnection.open(self.machine)
            return await self._connection.call(method, params, result_type)
        except (ConnectionError, SilentDaemonError):
            self._drop()
            raise

    async def _start_again(self) -> None:
        await asyncio.to_thread(launch.ensure_running, self.machine)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def connect(name: str | None = None, *, reconnect: bool = True) -> AsyncClient:
    """Connect to a running machine; start nothing.

    Args:
        name: its name, None for NEURONTOOLS_MACHINE.
        reconnect: whether a call connects again, and starts the machine again where that is allowed, after the
            connection broke.

    Raises:
        NoMachineError: no daemon runs under that name.
        DaemonError: it refuses, does not answer, or speaks another protocol version.
    """
    client = AsyncClient(check_name(env.machine() if name is None else name), reconnect=reconnect)
    try:
        client._connection = await AsyncConnection.open(client.machine)  # noqa: SLF001  of this module
    except ConnectionError as error:
        raise connection_closed_error(client.machine) from error
    return client


async def start(instance: str | None = None, **choices: Unpack[StartChoices]) -> AsyncClient:
    """Start a machine, or find it running, and connect to it; see `neurontools.machine.start`."""
    info = await asyncio.to_thread(launch.start, start_options(instance, **choices))
    return await connect(info.machine)


async def _connect(sock: socket.socket, path: str) -> None:
    # Connecting to a busy listener of a Unix socket fails at once: retry.
    give_up = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(_BUSY_WAIT_S)
        else:
            return
