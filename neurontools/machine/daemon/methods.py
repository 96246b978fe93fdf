"""The methods of neurond: each takes a connection and a request, and returns the result."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from neurontools import __version__
from neurontools.machine import codec, processes
from neurontools.machine.events import (
    FaultEvent,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    HardwareEvent,
    Process,
    Register,
    Reserve,
    TakeFault,
)
from neurontools.machine.faults.params import FaultSpec, Victim
from neurontools.machine.machine_names import instance_id, unknown_index
from neurontools.machine.processes import ProcessKey, ticks_now
from neurontools.machine.protocol import (
    PROTOCOL_VERSION,
    SYNTHETIC_PIDS_ABOVE,
    ErrorCode,
    Greeting,
    HelloRequest,
    InvalidParamsError,
    OtherVersionError,
    PeerRefusedError,
    RefusedError,
    Request,
)
from neurontools.machine.requests import (
    ClearedFaults,
    ClearFaults,
    CountHardware,
    DescribeRequest,
    EndProfileRequest,
    FaultList,
    FreedCores,
    HeldFault,
    HoldsFaultRequest,
    InjectedFault,
    ListFaultsRequest,
    MachineDescription,
    ProcessPlace,
    ProcessSpec,
    ProfileDirectory,
    ProfileDirectoryRequest,
    ProfileRequest,
    RegisterRequest,
    RegisterSyntheticRequest,
    ReleaseFault,
    Reservation,
    ReservationOutcome,
    ReservationOutcomes,
    Reserved,
    ReserveRequest,
    ReserveSyntheticRequest,
    ResetDevice,
    ResetHardware,
    SnapshotRequest,
    StopRequest,
    SyntheticOutcome,
    SyntheticOutcomes,
    TakeFaultRequest,
    TakenFault,
    UnregisterRequest,
    UnregisterSyntheticRequest,
    WatchRequest,
)
from neurontools.machine.state import format_holders

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.service import MachineService

_COMMAND_MAX = 4096
_TEXT_MAX = 256
_PATH_MAX = 4096


class MethodResult(NamedTuple):
    """A result as JSON text, and descriptors to send along, which stay the sender's."""

    json: str
    descriptors: tuple[int, ...] = ()


class Methods:
    """The methods about one machine.

    Args:
        service: the machine.
        watch: pushes snapshots to a client from now on.
        socket_path: where this daemon listens, for `describe`.
        stop: ends the daemon after the answer is sent.
        count_clients: returns the number of connections.
    """

    def __init__(
        self,
        service: MachineService,
        watch: Callable[[Connection, WatchRequest], None],
        socket_path: str,
        stop: Callable[[], None],
        count_clients: Callable[[], int],
    ) -> None:
        self._service = service
        self.owners: dict[ProcessKey, Connection] = {}
        """The connections that speak for registered processes."""
        self._socket_path = socket_path
        self._stop = stop
        self._count_clients = count_clients
        self._last_pid = SYNTHETIC_PIDS_ABOVE
        handlers: dict[type[Request], Callable[[Connection, Any], object]] = {
            HelloRequest: self._hello,
            DescribeRequest: self._describe,
            SnapshotRequest: lambda *_: MethodResult(service.encoded_snapshot()),
            WatchRequest: watch,
            StopRequest: self._stop_daemon,
            RegisterRequest: self._register,
            UnregisterRequest: self._unregister,
            ReserveRequest: self._reserve,
            RegisterSyntheticRequest: self._register_synthetic,
            UnregisterSyntheticRequest: self._unregister_synthetic,
            ReserveSyntheticRequest: self._reserve_synthetic,
            FaultSpec: self._inject,
            ListFaultsRequest: lambda *_: FaultList(service.machine.faults.faults()),
            ClearFaults: self._clear,
            TakeFaultRequest: self._take,
            HoldsFaultRequest: self._holds,
            ReleaseFault: self._release,
            ResetDevice: self._change_faults,
            CountHardware: self._change_hardware,
            ResetHardware: self._change_hardware,
            ProfileRequest: self._profile,
            EndProfileRequest: self._end_profile,
            ProfileDirectoryRequest: self._profile_directory,
        }
        self._by_name = {request_type.method: request_type for request_type in handlers}
        self._handlers = handlers

    def request_type(self, method: str) -> type[Request]:
        """Return the type of a method's parameters.

        Raises:
            RefusedError: there is no such method.
        """
        if method not in self._by_name:
            raise RefusedError(
                f"unknown method {method[:40]!r}",
                f"the methods are {', '.join(self._by_name)}",
                code=ErrorCode.UNKNOWN_METHOD,
            )
        return self._by_name[method]

    def call(self, connection: Connection, request: Request) -> MethodResult:
        """Carry out a request; raises `RefusedError` and what the machine raises."""
        result = self._handlers[type(request)](connection, request)
        return (
            result
            if isinstance(result, MethodResult)
            else MethodResult("{}" if result is None else codec.encode(result))
        )

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection: it speaks for no process any more."""
        for key in [key for key, owner in self.owners.items() if owner is connection]:
            del self.owners[key]
            self._service.exec_detector.add(key)

    def _hello(self, connection: Connection, request: HelloRequest) -> Greeting:
        machine = self._service.definition.machine
        if request.protocol != PROTOCOL_VERSION:
            raise OtherVersionError(
                f"neurond of machine {machine!r} speaks protocol {PROTOCOL_VERSION} "
                f"(neurontools {__version__}), this program speaks {request.protocol}",
                "restart it: neurond restart",
                protocol=PROTOCOL_VERSION,
            )
        key = connection.key = connection.process.key()
        process = self._service.machine.processes.get(key)
        if process is not None and request.owner:
            self.owners[key] = connection
            self._service.exec_detector.discard(key)
        cores = None if process is None else process.cores
        return Greeting(PROTOCOL_VERSION, __version__, machine, os.getpid(), cores)

    def _describe(self, _connection: Connection, _request: DescribeRequest) -> MachineDescription:
        definition, machine = self._service.definition, self._service.machine
        return MachineDescription(
            machine=definition.machine,
            instance_type=definition.instance_type,
            instance_id=instance_id(definition.machine, os.getuid()),
            lnc=definition.lnc,
            device_count=machine.layout.device_count,
            core_count=machine.layout.core_count,
            claimed_core_count=machine.claimed_count(),
            device_memory_bytes=machine.layout.memory_bytes,
            process_count=len(machine.processes),
            client_count=self._count_clients(),
            pid=os.getpid(),
            socket=self._socket_path,
            started_unix_s=definition.started_unix_s,
            idle_exit_s=definition.idle_exit_s,
            parent_pid=definition.parent.pid if definition.parent else None,
            protocol=PROTOCOL_VERSION,
            version=__version__,
        )

    def _stop_daemon(self, _connection: Connection, request: StopRequest) -> dict[str, int]:
        users = tuple(process for process in self._service.machine.processes.values() if process.cores)
        if users and not request.force:
            raise RefusedError(
                f"machine {self._service.definition.machine!r} is in use: {format_holders(users)}",
                "end them, or use --force",
            )
        self._stop()
        return {"pid": os.getpid()}

    def _register(self, connection: Connection, request: RegisterRequest) -> MethodResult:
        key = own_key(connection)
        if request.pid not in {None, key.pid}:
            raise PeerRefusedError(f"process {key.pid} can't register process {request.pid}")
        if not processes.in_our_pid_namespace(key.pid):
            raise PeerRefusedError(
                f"process {key.pid} runs in another pid namespace; it may read but not claim cores",
                "start the machine inside that container",
            )
        if reason := self._service.page_limits.refusal_reason(connection.peer.uid):
            raise PeerRefusedError(reason, "ask the machine's owner, who can run 'neurond restart'")
        if key not in self.owners:
            self._service.leave(key, "registers anew")
        process, page_fd = self._service.register(
            Register(
                key,
                connection.peer.uid,
                _shortened(request),
                reset_cores=request.reset_cores,
                stack=processes.stack_start(key.pid),
            )
        )
        self.owners[key] = connection
        definition = self._service.definition
        place = ProcessPlace(process.cores, definition.instance_type, definition.lnc, definition.machine)
        return MethodResult(codec.encode(place), (page_fd,))

    def _unregister(self, connection: Connection, _request: UnregisterRequest) -> FreedCores:
        key = own_key(connection)
        self.owners.pop(key, None)
        return FreedCores(self._service.leave(key, "unregistered", at_once=True))

    def _reserve(self, connection: Connection, request: ReserveRequest) -> Reserved:
        self._service.reserve(Reserve(own_key(connection), request.core, request.total_bytes))
        return Reserved(request.total_bytes)

    def _register_synthetic(self, connection: Connection, request: RegisterSyntheticRequest) -> MethodResult:
        player = own_key(connection)
        if request.known is not None:
            # A player that repeats a request never got the answer, so it does not know what was registered.
            self._remove_synthetic(player, set(self._service.synthetic_of(player)) - set(request.known))
        events = [
            Register(
                ProcessKey(pid, ticks_now()),
                connection.peer.uid if spec.uid is None else spec.uid,
                _shortened(spec),
                player,
            )
            for spec, pid in zip(request.processes, self._next_pids(len(request.processes)), strict=True)
        ]
        outcomes, page_fds = [], []
        for admitted in self._service.register_synthetic(events):
            if isinstance(admitted, RefusedError):
                outcomes.append(SyntheticOutcome(error=admitted.body))
            else:
                process, page_fd = admitted
                outcomes.append(SyntheticOutcome(process.key.pid, process.key.start_ticks, process.cores))
                page_fds.append(page_fd)
        return MethodResult(codec.encode(SyntheticOutcomes(tuple(outcomes))), tuple(page_fds))

    def _unregister_synthetic(self, connection: Connection, request: UnregisterSyntheticRequest) -> None:
        self._remove_synthetic(own_key(connection), set(request.pids))

    def _reserve_synthetic(
        self, connection: Connection, request: ReserveSyntheticRequest
    ) -> ReservationOutcomes:
        synthetic = self._service.synthetic_of(own_key(connection))
        return ReservationOutcomes(
            tuple([self._reservation(synthetic.get(change.pid), change) for change in request.changes])
        )

    def _reservation(self, process: Process | None, change: Reservation) -> ReservationOutcome:
        try:
            if process is None:
                raise InvalidParamsError(f"process {change.pid} is not a synthetic process of this player")
            self._service.reserve(Reserve(process.key, change.core, change.nbytes))
        except RefusedError as refused:
            return ReservationOutcome(error=refused.body)
        return ReservationOutcome(change.nbytes)

    def _remove_synthetic(self, player: ProcessKey, pids: set[int]) -> None:
        keys = [process.key for pid, process in self._service.synthetic_of(player).items() if pid in pids]
        for count, key in enumerate(keys, 1):
            # Write the journal once for all of them, before the player gets its answer.
            self._service.leave(key, "ends", at_once=count == len(keys))

    def _next_pids(self, count: int) -> range:
        first = max([self._last_pid, *(key.pid for key in self._service.machine.processes)]) + 1
        self._last_pid = first + count - 1
        return range(first, first + count)

    def _inject(self, _connection: Connection, spec: FaultSpec) -> InjectedFault:
        tag = None if spec.tag is None else spec.tag[:_TEXT_MAX] or None
        effect = self._service.change_faults(replace(spec, tag=tag))
        assert isinstance(effect, FaultInjected)
        return InjectedFault(effect.fault)

    def _clear(self, _connection: Connection, request: ClearFaults) -> ClearedFaults:
        effect = self._service.change_faults(request)
        assert isinstance(effect, FaultsCleared)
        return ClearedFaults(effect.ids)

    def _take(self, connection: Connection, request: TakeFaultRequest) -> TakenFault:
        pid, core = self._checked_victim(connection, request)
        owner = self._service.machine.owner(core)
        process = owner if owner is not None and owner.key.pid == pid else None
        if process is None and not connection.peer.may_administer:
            raise PeerRefusedError(f"process {pid} does not hold core {core}")
        victim = Victim(
            pid,
            process.tag if process else "",
            core,
            request.action,
            request.collective,
            process.cores if process else (core,),
            request.nbytes,
        )
        effect = self._service.change_faults(TakeFault(victim))
        assert isinstance(effect, FaultTaken)
        return TakenFault(effect.hit)

    def _holds(self, connection: Connection, request: HoldsFaultRequest) -> HeldFault:
        victim = self._checked_victim(connection, request)
        return HeldFault(self._service.machine.faults.holds(request.fault, *victim))

    def _release(self, connection: Connection, request: ReleaseFault) -> None:
        pid, _ = self._checked_victim(connection, request)
        self._service.change_faults(replace(request, pid=pid))

    def _change_faults(self, _connection: Connection, event: FaultEvent | ResetDevice) -> None:
        self._service.change_faults(event)

    def _change_hardware(self, _connection: Connection, event: HardwareEvent) -> None:
        self._service.change_hardware(event)

    def _checked_victim(
        self, connection: Connection, request: TakeFaultRequest | HoldsFaultRequest | ReleaseFault
    ) -> tuple[int, int]:
        """Return the pid of the client, or for the owner and root any process's, and the core."""
        pid, core = request.pid, request.core
        count = self._service.machine.layout.core_count
        if pid is None or pid == connection.peer.pid:
            pid = own_key(connection).pid
        elif not connection.peer.may_administer:
            raise PeerRefusedError(f"uid {connection.peer.uid} may not ask about process {pid}")
        if core >= count:
            raise InvalidParamsError(*unknown_index("core", core, range(count)))
        return pid, core

    def _profile(self, connection: Connection, request: ProfileRequest) -> ProfileDirectory:
        process, path = self._own_process(connection, request.pid), request.directory
        if process is None:
            raise InvalidParamsError(
                f"process {request.pid} is not on this machine",
                "neuron-ls --show-all-procs lists those that are",
            )
        if not os.path.isabs(path) or len(path) > _PATH_MAX or "\0" in path:
            raise InvalidParamsError("the directory of a profile must be an absolute path")
        if process.player is not None or not process.uses_device:
            reason = "is part of a scenario" if process.player is not None else "uses no NeuronCore"
            raise RefusedError(f"process {request.pid} {reason}: it executes nothing to profile")
        return ProfileDirectory(self._service.profiles.ask(process.key, path))

    def _end_profile(self, connection: Connection, request: EndProfileRequest) -> None:
        process = self._own_process(connection, request.pid)
        if process is not None:
            self._service.profiles.end(process.key, request.directory)

    def _profile_directory(
        self, connection: Connection, _request: ProfileDirectoryRequest
    ) -> ProfileDirectory:
        return ProfileDirectory(self._service.profiles.directory(own_key(connection)))

    def _own_process(self, connection: Connection, pid: int) -> Process | None:
        """Return a process of the caller's user, None if it is not on the machine."""
        for key, process in self._service.machine.processes.items():
            if key.pid == pid:
                if process.uid != connection.peer.uid:
                    raise PeerRefusedError(
                        f"process {pid} belongs to uid {process.uid}: only that user may profile it",
                        "ask that user",
                    )
                return process
        return None


def _shortened(spec: ProcessSpec) -> ProcessSpec:
    return replace(
        spec,
        tag=spec.tag[:_TEXT_MAX],
        command=spec.command[:_COMMAND_MAX],
        runtime_version=spec.runtime_version[:_TEXT_MAX] or "NA",
    )


def own_key(connection: Connection) -> ProcessKey:
    """Return the process that may claim things through a connection.

    Raises:
        PeerRefusedError: it is gone, or can't be watched.
    """
    key = connection.key
    if key is not None and key.start_ticks == processes.HIDDEN:
        raise PeerRefusedError(
            f"/proc hides process {key.pid} from neurond (hidepid), so its exit cannot be detected; "
            "it may read but not claim cores",
            "run neurond as root, or as a member of the group that /proc's option gid= names",
        )
    if key is None or not connection.process.is_alive():
        raise PeerRefusedError(
            f"the process that made this connection ({connection.peer.pid}) is gone; a forked child is not it"
        )
    return key
