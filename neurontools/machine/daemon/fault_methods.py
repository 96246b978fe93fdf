"""Methods about faults: to inject, list and end them, to reset a device, and for a process to ask what hits it."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from neurontools.machine.daemon.sessions import Answer, answer
from neurontools.machine.events import (
    ClearFaults,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    InjectFault,
    ReleaseFault,
    ResetDevice,
    TakeFault,
)
from neurontools.machine.faults.kinds import EccType, FaultKind
from neurontools.machine.faults.spec import Action, FaultSpec, Victim
from neurontools.machine.protocol import ErrorCode, Params, RpcError

if TYPE_CHECKING:
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.sessions import Method, Sessions

_ROOT = 0
# What makes sense is the machine's to say.
_ANY = 1 << 62
_ANY_NUMBER = 1e12
_TAG_MAX = 256

Choice = TypeVar("Choice", bound=StrEnum)
Number = TypeVar("Number", int, float)


class FaultMethods:
    """`inject_fault`, `list_faults`, `clear_faults`, `take_fault`, `holds_fault`, `release_fault`, `reset_device`."""

    def __init__(self, keeper: Keeper, sessions: Sessions) -> None:
        self._keeper = keeper
        self._sessions = sessions
        self.table: dict[str, Method] = {
            "inject_fault": self._inject,
            "list_faults": self._list,
            "clear_faults": self._clear,
            "take_fault": self._take,
            "holds_fault": self._holds,
            "release_fault": self._release,
            "reset_device": self._reset,
        }

    def _inject(self, _connection: Connection, params: Params) -> Answer:
        effect = self._keeper.change_faults(InjectFault(_spec(params)))
        assert isinstance(effect, FaultInjected)
        return answer({"fault": effect.fault.to_json()})

    def _list(self, _connection: Connection, params: Params) -> Answer:
        params.only()
        return answer({"faults": [fault.to_json() for fault in self._keeper.machine.faults.faults()]})

    def _clear(self, _connection: Connection, params: Params) -> Answer:
        params.only("ids")
        effect = self._keeper.change_faults(ClearFaults(params.optional_integers("ids")))
        assert isinstance(effect, FaultsCleared)
        return answer({"ids": list(effect.ids)})

    def _take(self, connection: Connection, params: Params) -> Answer:
        params.only("pid", "core", "action", "collective", "nbytes")
        pid, core = self._pid(connection, params), self._core(params)
        owner = self._keeper.machine.owner(core)
        known = owner if owner is not None and owner.key.pid == pid else None
        if known is None and not _may_all(connection):
            raise RpcError(ErrorCode.PEER_REFUSED, f"process {pid} does not hold core {core}")
        victim = Victim(
            pid,
            known.tag if known else "",
            core,
            _choice(Action, params.text("action", Action.EXECUTION), "action"),
            params.boolean("collective", default=False),
            known.cores if known else (core,),
            0 if params.optional_integer("nbytes", 0) is None else params.integer("nbytes", 0),
        )
        effect = self._keeper.change_faults(TakeFault(victim))
        assert isinstance(effect, FaultTaken)
        return answer({"hit": None if effect.hit is None else effect.hit.to_json()})

    def _holds(self, connection: Connection, params: Params) -> Answer:
        params.only("fault", "pid", "core")
        number, pid, core = params.integer("fault", 1), self._pid(connection, params), self._core(params)
        return answer({"holds": self._keeper.machine.faults.holds(number, pid, core)})

    def _release(self, connection: Connection, params: Params) -> Answer:
        params.only("pid", "core")
        self._keeper.change_faults(ReleaseFault(self._pid(connection, params), self._core(params)))
        return answer({})

    def _reset(self, _connection: Connection, params: Params) -> Answer:
        params.only("device", "force")
        event = ResetDevice(params.integer("device", 0), params.boolean("force", default=False))
        self._keeper.change_faults(event)
        return answer({})

    def _pid(self, connection: Connection, params: Params) -> int:
        """Return the process that is asked about: the client, or for the owner and root any, synthetic ones too."""
        pid = params.optional_integer("pid", 1)
        if pid in {None, connection.peer.pid}:
            return self._sessions.own_key(connection).pid
        assert pid is not None
        if connection.peer.uid not in {os.getuid(), _ROOT}:
            raise RpcError(ErrorCode.PEER_REFUSED, f"uid {connection.peer.uid} may not ask for process {pid}")
        return pid

    def _core(self, params: Params) -> int:
        core = params.integer("core", 0)
        count = self._keeper.machine.layout.core_count
        if core >= count:
            raise RpcError(ErrorCode.INVALID_PARAMS, f"there is no core {core}, this machine has {count}")
        return core


def _may_all(connection: Connection) -> bool:
    return connection.peer.uid in {os.getuid(), _ROOT}


def _spec(params: Params) -> FaultSpec:
    params.only(*FaultSpec.__slots__)
    tag = params.text("tag", "")
    usual = FaultSpec(_choice(FaultKind, params.text("kind"), "kind of fault"))
    return FaultSpec(
        kind=usual.kind,
        device=_whole(params, "device"),
        core=_whole(params, "core"),
        to=_whole(params, "to"),
        pid=_whole(params, "pid"),
        tag=tag[:_TAG_MAX] or None,
        after_s=_given(_number(params, "after_s"), usual.after_s),
        after_executions=_given(_whole(params, "after_executions"), usual.after_executions),
        count=_whole(params, "count"),
        duration_s=_number(params, "duration_s"),
        factor=_given(_number(params, "factor"), usual.factor),
        ecc=_choice(EccType, params.text("ecc", usual.ecc), "type of memory errors"),
        amount=_given(_whole(params, "amount"), usual.amount),
        every_s=_number(params, "every_s"),
    )


def _whole(params: Params, name: str) -> int | None:
    return params.optional_integer(name, -_ANY)


def _number(params: Params, name: str) -> float | None:
    return params.optional_number(name, -_ANY_NUMBER, _ANY_NUMBER)


def _given(value: Number | None, usual: Number) -> Number:
    return usual if value is None else value


def _choice(choices: type[Choice], name: str, what: str) -> Choice:
    try:
        return choices(name)
    except ValueError:
        from difflib import get_close_matches

        near = get_close_matches(name, map(str, choices), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(choices)}"
        raise RpcError(ErrorCode.INVALID_PARAMS, f"no {what} {name[:40]!r}", hint) from None
