"""The synchronous client of neurond. It reconnects when the daemon is replaced."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack

from neurontools import env
from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine import codec, connection
from neurontools.machine.connection import SilentDaemonError, connection_closed_error, restarted_daemon_error
from neurontools.machine.faults.params import Action, Fault, FaultSpec, Hit
from neurontools.machine.machine_names import check_name
from neurontools.machine.protocol import BrokenConnectionError
from neurontools.machine.requests import (
    ClearedFaults,
    ClearFaults,
    Empty,
    EndProfileRequest,
    FaultList,
    FreedCores,
    HeldFault,
    HoldsFaultRequest,
    InjectedFault,
    ListFaultsRequest,
    ProcessPlace,
    ProfileDirectory,
    ProfileDirectoryRequest,
    ProfileRequest,
    RegisterRequest,
    ReleaseFault,
    Reserved,
    ReserveRequest,
    ResetDevice,
    SnapshotRequest,
    TakeFaultRequest,
    TakenFault,
    UnregisterRequest,
    WatchRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.faults.params import FaultParams
    from neurontools.machine.protocol import Request
    from neurontools.machine.snapshot import Snapshot

T = TypeVar("T")

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Registration(NamedTuple):
    """The place of a process on a machine: cores by machine-wide logical id, and its telemetry page.

    The descriptor of the page is the caller's.
    """

    cores: tuple[int, ...]
    page_fd: int
    instance_type: str
    lnc: int
    machine: str


class Client:
    """A connection to the daemon of one machine. One call at a time; threads may share it.

    After the daemon was replaced (killed and started again) the next call connects again and repeats a request that
    got no answer; every method may be repeated. A forked child starts with its own connection, without its parent's
    registration.

    Args:
        machine: the machine's name.
        reconnect: whether a call connects again, and starts the machine again where that is allowed, after the
            connection broke.
        start_again: how the machine is started again; None: `launch.ensure_running`.
    """

    def __init__(
        self, machine: str, *, reconnect: bool = True, start_again: Callable[[], None] | None = None
    ) -> None:
        self.machine = machine
        self._reconnect = reconnect
        self._restart = start_again
        self._lock = threading.RLock()
        self._connection: connection.SyncConnection | None = None
        self._registered = False
        # Set while a request has no answer: the daemon may have handled it.
        self._unanswered = False
        self._registration_in_doubt = False
        _clients.add(self)

    @classmethod
    def connect(
        cls,
        machine: str | None = None,
        *,
        reconnect: bool = True,
        start_again: Callable[[], None] | None = None,
    ) -> Self:
        """Return a client of a running machine; starts nothing.

        Args:
            machine: its name, None for NEURONTOOLS_MACHINE.
            reconnect: as in the class.
            start_again: as in the class.

        Raises:
            NoMachineError: no daemon runs under that name.
            DaemonError: it refuses, does not answer, or speaks another protocol version.
        """
        client = cls(
            check_name(env.machine() if machine is None else machine),
            reconnect=reconnect,
            start_again=start_again,
        )
        with InterruptHold(HOLD_S):
            try:
                client._connection = client._open_connection(owner=False)
            except BrokenConnectionError as error:
                raise connection_closed_error(client.machine) from error
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The process stays registered until it unregisters or exits."""
        with self._lock:
            self._drop()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol by its name and return its result as JSON values.

        Raises:
            CoresBusyError, OutOfDeviceMemoryError, DaemonError: the daemon refuses or does not answer.
            NoMachineError: the daemon is gone and may not be started again.
        """
        with self._lock:
            return self._call(method, params, Any)

    def request(self, request: Request, result_type: type[T]) -> T:
        """Call a method of the protocol and return its result; raises as `call`."""
        with self._lock:
            return self._call(request.method, codec.to_builtins(request), result_type)

    def snapshot(self) -> Snapshot:
        """Return the current snapshot of the machine."""
        from neurontools.machine.snapshot import Snapshot

        return self.request(SnapshotRequest(), Snapshot)

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now, then one every `period_s` seconds, on its own connection, until that breaks.

        If the daemon is replaced, the iteration continues with the new one.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
        """
        from neurontools.machine.changes import apply_notification

        while True:
            stream = self._open_connection(owner=False)
            try:
                stream.request(WatchRequest(period_s, changes=True), Empty)
                snapshot: Snapshot | None = None
                while True:
                    within_s = period_s + connection.ANSWER_TIMEOUT_S
                    snapshot = apply_notification(snapshot, stream.next_notification(within_s))
                    yield snapshot
            except BrokenConnectionError:
                self._start_again()
            finally:
                stream.close()

    def register(
        self,
        tag: str = "",
        command: str = "",
        *,
        uses_device: bool = True,
        cores: tuple[int, ...] | None = None,
        count: int | None = None,
        runtime_version: str = "NA",
        reset_cores: bool = True,
    ) -> Registration:
        """Put this process on the machine.

        Args:
            tag: the value of NEURON_PROCESS_TAG.
            command: the command line to show.
            uses_device: False for a process that only reads and claims nothing.
            cores: machine-wide logical ids to claim.
            count: number of cores to claim where `cores` is None; 0 or None: all of the machine.
            runtime_version: to show; "NA" for a process without a runtime.
            reset_cores: repair the cores that memory errors broke.

        Raises:
            CoresBusyError: another process holds such a core.
            DaemonError: the process is already registered, or there are no such cores.
        """
        request = RegisterRequest(tag, command, uses_device, cores, count, runtime_version, reset_cores)
        with self._lock:
            place = self._registration_request(request, ProcessPlace)
            descriptors = self._connection.take_descriptors(1) if self._connection else []
            if not descriptors:
                raise DaemonError("neurond sent no telemetry page", "see 'neurond logs'")
            self._registered = True
        return Registration(place.cores, descriptors[0], place.instance_type, place.lnc, place.machine)

    def unregister(self) -> None:
        """Take this process off the machine."""
        with self._lock:
            self._registered = False
            self._registration_request(UnregisterRequest(), FreedCores)

    def request_with_descriptors(
        self, request: Request, result_type: type[T], count: Callable[[T], int]
    ) -> tuple[T, list[int]]:
        """Return the result of a method and the descriptors that came with it, which the caller now owns.

        Args:
            request: the request.
            result_type: the type of the result.
            count: returns the number of descriptors that belong to a result.
        """
        with self._lock:
            result = self.request(request, result_type)
            return result, self._connection.take_descriptors(count(result)) if self._connection else []

    def reserve(self, core: int, total_bytes: int) -> None:
        """Set the device memory that is reserved for one of this process's cores.

        Args:
            core: machine-wide logical id.
            total_bytes: the new total; 0 frees everything.

        Raises:
            OutOfDeviceMemoryError: the device is full.
        """
        self.request(ReserveRequest(core, total_bytes), Reserved)

    def inject(self, kind: str, **params: Unpack[FaultParams]) -> Fault:
        """Inject a fault into the machine; see docs/reference/faults.md.

        Args:
            kind: one of `FaultKind`, such as "hang".
            params: see `FaultSpec`.

        Returns:
            The fault as it stands in the machine.

        Raises:
            DaemonError: the fault does not fit this machine, or this user may not inject it.
            NoMachineError: no daemon runs.
        """
        with self._lock:
            injected = self._call(FaultSpec.method, {"kind": kind, **params}, InjectedFault)
        return injected.fault

    def faults(self) -> tuple[Fault, ...]:
        """Return the faults of the machine, oldest first."""
        return self.request(ListFaultsRequest(), FaultList).faults

    def clear_faults(self, *faults: Fault | int) -> tuple[int, ...]:
        """Clear faults and repair what they broke; without arguments, all of them. Return their ids.

        Raises:
            DaemonError: there is no such fault, or this user may not end it.
        """
        return self.request(ClearFaults(fault_ids(faults)), ClearedFaults).ids

    def reset_device(self, device: int, *, force: bool = False) -> None:
        """Reset a device, which repairs what memory errors broke; its error counters stay.

        Raises:
            DaemonError: there is no such device, it is lost, or processes hold cores of it and `force` is not set.
        """
        self.request(ResetDevice(device, force), Empty)

    def take_fault(
        self,
        core: int,
        *,
        pid: int | None = None,
        action: Action = Action.EXECUTION,
        collective: bool = False,
        nbytes: int = 0,
    ) -> Hit | None:
        """Ask what happens to an execution or allocation that is about to begin, and count it; None: nothing.

        Args:
            core: where (machine-wide logical id).
            pid: the process, None for this one; others, synthetic ones too, are for the machine's owner and root.
            action: an execution or an allocation.
            collective: whether the execution exchanges data with other cores.
            nbytes: size of the allocation.
        """
        return self.request(TakeFaultRequest(core, pid, action, collective, nbytes), TakenFault).hit

    def holds_fault(self, fault: int, core: int, *, pid: int | None = None) -> bool:
        """Return whether an execution that hangs because of a fault must keep hanging."""
        return self.request(HoldsFaultRequest(fault, core, pid), HeldFault).holds

    def release_fault(self, core: int, *, pid: int | None = None) -> None:
        """Report that an execution no longer hangs, because it timed out."""
        self.request(ReleaseFault(core, pid), Empty)

    def profile(self, pid: int, directory: str) -> str:
        """Ask a process of this user to profile itself; return the directory, another one if it does so already.

        Raises:
            DaemonError: there is no such process, it is another user's, or it executes nothing itself.
        """
        return self.request(ProfileRequest(pid, directory), ProfileDirectory).directory

    def end_profile(self, pid: int, directory: str) -> None:
        """Withdraw what asks a process to profile itself into a directory; no error if nothing does."""
        self.request(EndProfileRequest(pid, directory), Empty)

    def profile_directory(self) -> str:
        """Return where this process is asked to profile itself to, "" for nowhere."""
        return self.request(ProfileDirectoryRequest(), ProfileDirectory).directory

    def _registration_request(self, request: Request, result_type: type[T]) -> T:
        try:
            answer = self.request(request, result_type)
        except BaseException:
            # The daemon may have registered this process although the caller got an error.
            self._registration_in_doubt = self._unanswered
            raise
        self._registration_in_doubt = False
        return answer

    def _call(self, method: str, params: dict[str, Any], result_type: type[T]) -> T:
        self._unanswered = False
        with InterruptHold(HOLD_S):  # few calls take longer: most are done as a whole
            try:
                return self._call_once(method, params, result_type)
            except BrokenConnectionError as error:
                if not self._reconnect:
                    raise connection_closed_error(self.machine) from error
            self._start_again()
            try:
                return self._call_once(method, params, result_type)
            except BrokenConnectionError as error:
                raise restarted_daemon_error(self.machine) from error

    def _call_once(self, method: str, params: dict[str, Any], result_type: type[T]) -> T:
        if self._connection is None:
            self._connection = self._open_connection(owner=self._registered)
        self._unanswered = True
        try:
            result = self._connection.call(method, params, result_type)
        except NeuronToolsError as error:
            if isinstance(error, SilentDaemonError):
                self._drop()
            else:
                self._unanswered = False
            raise
        except BaseException:
            self._drop()  # half of the request may be sent
            raise
        self._unanswered = False
        return result

    def _open_connection(self, *, owner: bool) -> connection.SyncConnection:
        new = connection.SyncConnection(self.machine)
        try:
            greeting = new.hello(owner=owner)
            if self._registered and greeting.registered is None:
                raise DaemonError(  # noqa: TRY301  the connection is closed below
                    f"machine {self.machine!r} no longer knows process {os.getpid()}",
                    "its records were deleted; start the program again",
                )
            if self._registration_in_doubt and not self._registered:
                new.request(UnregisterRequest(), FreedCores)
                self._registration_in_doubt = False
        except BaseException:
            new.close()
            raise
        return new

    def _start_again(self) -> None:
        if self._restart is not None:
            self._restart()
            return
        from neurontools.machine import launch

        launch.ensure_running(self.machine)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reset_after_fork(self) -> None:
        # The connection is the parent's, which alone is registered; one of its threads may hold the lock.
        self._lock = threading.RLock()
        self._registered = self._registration_in_doubt = False
        self._drop()


def fault_ids(faults: tuple[Fault | int, ...]) -> tuple[int, ...] | None:
    """Return the ids of faults, None (all of them) for none."""
    return tuple(fault if isinstance(fault, int) else fault.id for fault in faults) or None


def _forget_in_child() -> None:
    for client in list(_clients):
        client._reset_after_fork()  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_forget_in_child)
