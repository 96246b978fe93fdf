"""Methods of neurond about processes, faults and profiles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine import processes
from neurontools.machine.daemon.rpc_errors import refusal_error
from neurontools.machine.daemon.service import RefusedError
from neurontools.machine.daemon.sessions import Reply, may_administer, reply
from neurontools.machine.events import (
    ClearFaults,
    CountHardware,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    InjectFault,
    Process,
    Register,
    ReleaseFault,
    Reserve,
    ResetDevice,
    ResetHardware,
    TakeFault,
)
from neurontools.machine.faults.params import FaultSpec, Victim
from neurontools.machine.machine_names import unknown_index
from neurontools.machine.processes import ProcessKey, ticks_now
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE, ErrorBody, ErrorCode, RpcError
from neurontools.machine.requests import (
    ClearedFaults,
    ClearFaultsRequest,
    CountHardwareRequest,
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
    RegisterSyntheticRequest,
    ReleaseFaultRequest,
    Reservation,
    ReservationOutcome,
    ReservationOutcomes,
    Reserved,
    ReserveRequest,
    ReserveSyntheticRequest,
    ResetDeviceRequest,
    ResetHardwareRequest,
    SyntheticOutcome,
    SyntheticOutcomes,
    SyntheticSpec,
    TakeFaultRequest,
    TakenFault,
    UnregisterRequest,
    UnregisterSyntheticRequest,
)

if TYPE_CHECKING:
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.service import MachineService
    from neurontools.machine.daemon.sessions import Handlers, Sessions

_COMMAND_MAX = 4096
_TEXT_MAX = 256
_PATH_MAX = 4096


class ProcessMethods:
    """Registration and device memory of real and synthetic processes."""

    def __init__(self, service: MachineService, sessions: Sessions) -> None:
        self._service = service
        self._sessions = sessions
        self._last_pid = SYNTHETIC_PIDS_ABOVE
        self.handlers: Handlers = {
            RegisterRequest: self._register,
            UnregisterRequest: self._unregister,
            ReserveRequest: self._reserve,
            RegisterSyntheticRequest: self._register_synthetic,
            UnregisterSyntheticRequest: self._unregister_synthetic,
            ReserveSyntheticRequest: self._reserve_synthetic,
        }

    def _register(self, connection: Connection, request: RegisterRequest) -> Reply:
        key = self._sessions.own_key(connection)
        if request.pid not in {None, key.pid}:
            raise RpcError(ErrorCode.PEER_REFUSED, f"process {key.pid} can't register process {request.pid}")
        if not processes.in_our_pid_namespace(key.pid):
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"process {key.pid} runs in another pid namespace; it may read but not claim cores",
                "start the machine inside that container",
            )
        if reason := self._service.page_limits.refusal_reason(connection.peer.uid):
            raise RpcError(
                ErrorCode.PEER_REFUSED, reason, "ask the machine's owner, who can run 'neurond restart'"
            )
        event = Register(
            key=key,
            uid=connection.peer.uid,
            tag=request.tag[:_TEXT_MAX],
            command=request.command[:_COMMAND_MAX],
            runtime_version=request.runtime_version[:_TEXT_MAX] or "NA",
            uses_device=request.uses_device,
            cores=request.cores,
            count=request.count,
            reset_cores=request.reset_cores,
            stack=processes.stack_start(key.pid),
        )
        if key not in self._sessions.owners:
            self._service.leave(key, "registers anew")
        process, page_fd = self._service.register(event)
        self._sessions.owners[key] = connection
        definition = self._service.definition
        place = ProcessPlace(process.cores, definition.instance_type, definition.lnc, definition.machine)
        return reply(place, (page_fd,))

    def _unregister(self, connection: Connection, _request: UnregisterRequest) -> Reply:
        key = self._sessions.own_key(connection)
        self._sessions.owners.pop(key, None)
        return reply(FreedCores(self._service.leave(key, "unregistered", at_once=True)))

    def _reserve(self, connection: Connection, request: ReserveRequest) -> Reply:
        event = Reserve(self._sessions.own_key(connection), request.core, request.total_bytes)
        self._service.reserve(event)
        return reply(Reserved(request.total_bytes))

    def _register_synthetic(self, connection: Connection, request: RegisterSyntheticRequest) -> Reply:
        player = self._sessions.own_key(connection)
        if request.known is not None:
            # A player that repeats a request never got the answer, so it does not know what was registered.
            self._remove(player, set(self._service.synthetic_of(player)) - set(request.known))
        pids = self._next_pids(len(request.processes))
        events = [
            _registration(process, ProcessKey(pid, ticks_now()), player, connection.peer.uid)
            for process, pid in zip(request.processes, pids, strict=True)
        ]
        outcomes, page_fds = [], []
        for admitted in self._service.register_synthetic(events):
            if isinstance(admitted, RefusedError):
                outcomes.append(SyntheticOutcome(error=refusal_error(admitted.reason).body))
            else:
                process, page_fd = admitted
                key = process.key
                outcomes.append(SyntheticOutcome(key.pid, key.start_ticks, process.cores))
                page_fds.append(page_fd)
        return reply(SyntheticOutcomes(tuple(outcomes)), tuple(page_fds))

    def _unregister_synthetic(self, connection: Connection, request: UnregisterSyntheticRequest) -> Reply:
        self._remove(self._sessions.own_key(connection), set(request.pids))
        return reply(Empty())

    def _reserve_synthetic(self, connection: Connection, request: ReserveSyntheticRequest) -> Reply:
        synthetic = self._service.synthetic_of(self._sessions.own_key(connection))
        outcomes = (self._reserve_one(synthetic.get(change.pid), change) for change in request.changes)
        return reply(ReservationOutcomes(tuple(outcomes)))

    def _reserve_one(self, process: Process | None, change: Reservation) -> ReservationOutcome:
        if process is None:
            message = f"process {change.pid} is not a synthetic process of this player"
            return ReservationOutcome(error=ErrorBody(ErrorCode.INVALID_PARAMS, message))
        try:
            self._service.reserve(Reserve(process.key, change.core, change.nbytes))
        except RefusedError as refused:
            return ReservationOutcome(error=refusal_error(refused.reason).body)
        return ReservationOutcome(change.nbytes)

    def _remove(self, player: ProcessKey, pids: set[int]) -> None:
        keys = [process.key for pid, process in self._service.synthetic_of(player).items() if pid in pids]
        for number, key in enumerate(keys, 1):
            # Write the journal once for all of them, before the player gets its answer.
            self._service.leave(key, "ends", at_once=number == len(keys))

    def _next_pids(self, count: int) -> range:
        first = max([self._last_pid, *(key.pid for key in self._service.machine.processes)]) + 1
        self._last_pid = first + count - 1
        return range(first, first + count)


def _registration(process: SyntheticSpec, key: ProcessKey, player: ProcessKey, uid: int) -> Register:
    return Register(
        key=key,
        uid=uid if process.uid is None else process.uid,
        tag=process.tag[:_TEXT_MAX],
        command=process.command[:_COMMAND_MAX],
        runtime_version=process.runtime_version[:_TEXT_MAX] or "NA",
        uses_device=process.uses_device,
        cores=process.cores,
        count=process.count,
        player=player,
    )


class FaultMethods:
    """Faults and error counters."""

    def __init__(self, service: MachineService, sessions: Sessions) -> None:
        self._service = service
        self._sessions = sessions
        self.handlers: Handlers = {
            FaultSpec: self._inject,
            ListFaultsRequest: self._list,
            ClearFaultsRequest: self._clear,
            TakeFaultRequest: self._take,
            HoldsFaultRequest: self._holds,
            ReleaseFaultRequest: self._release,
            ResetDeviceRequest: self._reset_device,
            CountHardwareRequest: self._count_hardware,
            ResetHardwareRequest: self._reset_hardware,
        }

    def _inject(self, _connection: Connection, spec: FaultSpec) -> Reply:
        tag = None if spec.tag is None else spec.tag[:_TEXT_MAX] or None
        effect = self._service.change_faults(InjectFault(replace(spec, tag=tag)))
        assert isinstance(effect, FaultInjected)
        return reply(InjectedFault(effect.fault))

    def _list(self, _connection: Connection, _request: ListFaultsRequest) -> Reply:
        return reply(FaultList(self._service.machine.faults.faults()))

    def _clear(self, _connection: Connection, request: ClearFaultsRequest) -> Reply:
        effect = self._service.change_faults(ClearFaults(request.ids))
        assert isinstance(effect, FaultsCleared)
        return reply(ClearedFaults(effect.ids))

    def _take(self, connection: Connection, request: TakeFaultRequest) -> Reply:
        pid, core = self._checked_pid(connection, request.pid), self._checked_core(request.core)
        owner = self._service.machine.owner(core)
        process = owner if owner is not None and owner.key.pid == pid else None
        if process is None and not may_administer(connection.peer):
            raise RpcError(ErrorCode.PEER_REFUSED, f"process {pid} does not hold core {core}")
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
        return reply(TakenFault(effect.hit))

    def _holds(self, connection: Connection, request: HoldsFaultRequest) -> Reply:
        pid, core = self._checked_pid(connection, request.pid), self._checked_core(request.core)
        return reply(HeldFault(self._service.machine.faults.holds(request.fault, pid, core)))

    def _release(self, connection: Connection, request: ReleaseFaultRequest) -> Reply:
        pid, core = self._checked_pid(connection, request.pid), self._checked_core(request.core)
        self._service.change_faults(ReleaseFault(pid, core))
        return reply(Empty())

    def _reset_device(self, _connection: Connection, request: ResetDeviceRequest) -> Reply:
        self._service.change_faults(ResetDevice(request.device, request.force))
        return reply(Empty())

    def _count_hardware(self, _connection: Connection, request: CountHardwareRequest) -> Reply:
        self._service.change_hardware(CountHardware(request.device, request.counter, request.amount))
        return reply(Empty())

    def _reset_hardware(self, _connection: Connection, request: ResetHardwareRequest) -> Reply:
        self._service.change_hardware(ResetHardware(request.device, request.counter))
        return reply(Empty())

    def _checked_pid(self, connection: Connection, pid: int | None) -> int:
        """Return the pid of the client, or for the owner and root any process's, synthetic ones too."""
        if pid is None or pid == connection.peer.pid:
            return self._sessions.own_key(connection).pid
        if not may_administer(connection.peer):
            raise RpcError(
                ErrorCode.PEER_REFUSED, f"uid {connection.peer.uid} may not ask about process {pid}"
            )
        return pid

    def _checked_core(self, core: int) -> int:
        count = self._service.machine.layout.core_count
        if core >= count:
            raise RpcError(ErrorCode.INVALID_PARAMS, *unknown_index("core", core, range(count)))
        return core


class ProfileMethods:
    """Profiles of running processes, for their own user."""

    def __init__(self, service: MachineService, sessions: Sessions) -> None:
        self._service = service
        self._sessions = sessions
        self.handlers: Handlers = {
            ProfileRequest: self._profile,
            EndProfileRequest: self._end,
            ProfileDirectoryRequest: self._directory,
        }

    def _profile(self, connection: Connection, request: ProfileRequest) -> Reply:
        process = self._checked(connection, request.pid)
        if process is None:
            raise RpcError(
                ErrorCode.INVALID_PARAMS,
                f"process {request.pid} is not on this machine",
                "neuron-ls --show-all-procs lists those that are",
            )
        path = request.directory
        if not os.path.isabs(path) or len(path) > _PATH_MAX or "\0" in path:
            raise RpcError(ErrorCode.INVALID_PARAMS, "the directory of a profile must be an absolute path")
        if process.player is not None or not process.uses_device:
            what = "is part of a scenario" if process.player is not None else "uses no NeuronCore"
            raise RpcError(ErrorCode.REFUSED, f"process {request.pid} {what}: it executes nothing to profile")
        return reply(ProfileDirectory(self._service.profiles.ask(process.key, path)))

    def _end(self, connection: Connection, request: EndProfileRequest) -> Reply:
        process = self._checked(connection, request.pid)
        if process is not None:
            self._service.profiles.end(process.key, request.directory)
        return reply(Empty())

    def _directory(self, connection: Connection, _request: ProfileDirectoryRequest) -> Reply:
        return reply(ProfileDirectory(self._service.profiles.directory(self._sessions.own_key(connection))))

    def _checked(self, connection: Connection, pid: int) -> Process | None:
        """Return a process of the caller's user, None if it is not on the machine."""
        for key, process in self._service.machine.processes.items():
            if key.pid == pid:
                if process.uid != connection.peer.uid:
                    raise RpcError(
                        ErrorCode.PEER_REFUSED,
                        f"process {pid} belongs to uid {process.uid}: only that user may profile it",
                        "ask that user",
                    )
                return process
        return None
