"""Methods about faults and error counters: to inject, list and end faults, to reset a device, and for a process to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.daemon.authorization import may_administer
from neurontools.machine.daemon.sessions import Reply, reply
from neurontools.machine.events import (
    ClearFaults,
    CountHardware,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    InjectFault,
    ReleaseFault,
    ResetDevice,
    ResetHardware,
    TakeFault,
)
from neurontools.machine.faults.params import FaultSpec, Victim
from neurontools.machine.protocol import ErrorCode, RpcError
from neurontools.machine.requests import (
    ClearedFaults,
    ClearFaultsRequest,
    CountHardwareRequest,
    Empty,
    FaultList,
    HeldFault,
    HoldsFaultRequest,
    InjectedFault,
    ListFaultsRequest,
    ReleaseFaultRequest,
    ResetDeviceRequest,
    ResetHardwareRequest,
    TakeFaultRequest,
    TakenFault,
)

if TYPE_CHECKING:
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.service import MachineService
    from neurontools.machine.daemon.sessions import Handlers, Sessions

_TAG_MAX = 256


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
        tag = None if spec.tag is None else spec.tag[:_TAG_MAX] or None
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
        """Return the process in question: the client, or for the owner and root any, synthetic ones too."""
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
            raise RpcError(
                ErrorCode.INVALID_PARAMS, f"no core {core}", f"this machine has cores 0-{count - 1}"
            )
        return core
