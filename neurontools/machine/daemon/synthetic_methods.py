"""Methods of a player, a process that puts made-up processes on the machine and writes their telemetry pages.

Many go with one call, because a player may have a thousand. They compete for cores and memory as real processes do,
and they end with their player.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.machine.daemon.keeper import RefusedError
from neurontools.machine.daemon.process_methods import COMMAND_MAX, TEXT_MAX
from neurontools.machine.daemon.refusals import rpc_error
from neurontools.machine.daemon.sessions import Answer, answer
from neurontools.machine.events import Allocate, Free, Process, Register
from neurontools.machine.processes import ProcessKey, ticks_now
from neurontools.machine.protocol import (
    MAX_DESCRIPTORS,
    SYNTHETIC_PIDS_ABOVE,
    ErrorCode,
    Params,
    RpcError,
    Value,
)

if TYPE_CHECKING:
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.sessions import Method, Sessions

_CHANGES_MAX = 10_000
_WISHES = ("tag", "command", "uses_device", "cores", "count", "runtime_version", "uid")


class SyntheticMethods:
    """`register_synthetic`, `unregister_synthetic` and `reserve_synthetic`."""

    def __init__(self, keeper: Keeper, sessions: Sessions) -> None:
        self._keeper = keeper
        self._sessions = sessions
        self._last_pid = SYNTHETIC_PIDS_ABOVE
        self.table: dict[str, Method] = {
            "register_synthetic": self._register,
            "unregister_synthetic": self._unregister,
            "reserve_synthetic": self._reserve,
        }

    def _register(self, connection: Connection, params: Params) -> Answer:
        params.only("processes", "known")
        player = self._sessions.own_key(connection)
        known = params.optional_integers("known")
        if known is not None:
            # A player that asks again never got the answer, so it can't know what was registered then.
            self._leave(player, set(self._keeper.synthetic_of(player)) - set(known))
        wishes = params.mappings("processes", MAX_DESCRIPTORS)
        pids = self._pids(len(wishes))
        events = [
            _wish(wish, ProcessKey(pid, ticks_now()), player, connection.peer.uid)
            for wish, pid in zip(wishes, pids, strict=True)
        ]
        admitted = self._keeper.register_synthetic(events)
        result, _ = answer({"processes": [_place(one) for one in admitted]})
        return result, tuple(one[1] for one in admitted if isinstance(one, tuple))

    def _unregister(self, connection: Connection, params: Params) -> Answer:
        params.only("pids")
        player = self._sessions.own_key(connection)
        self._leave(player, set(params.optional_integers("pids") or ()))
        return answer({})

    def _reserve(self, connection: Connection, params: Params) -> Answer:
        params.only("changes")
        mine = self._keeper.synthetic_of(self._sessions.own_key(connection))
        answers: list[Value] = []
        for change in params.mappings("changes", _CHANGES_MAX):
            change.only("pid", "core", "nbytes")
            pid, core, nbytes = (
                change.integer("pid", 1),
                change.integer("core", 0),
                change.integer("nbytes", 0),
            )
            answers.append(self._reserve_one(mine.get(pid), pid, core, nbytes))
        return answer({"changes": answers})

    def _reserve_one(self, process: Process | None, pid: int, core: int, nbytes: int) -> Value:
        if process is None:
            return _error(RpcError(ErrorCode.INVALID_PARAMS, f"process {pid} is none of this player's"))
        more = nbytes - self._keeper.machine.processes[process.key].reserved_on(core)
        try:
            if more:
                self._keeper.reserve(
                    Allocate(process.key, core, more) if more > 0 else Free(process.key, core, -more)
                )
        except RefusedError as refused:
            return _error(rpc_error(refused.reason))
        return {"reserved_bytes": nbytes}

    def _leave(self, player: ProcessKey, pids: set[int]) -> None:
        leaving = [process.key for pid, process in self._keeper.synthetic_of(player).items() if pid in pids]
        for place, key in enumerate(leaving, 1):
            # The journal once for all of them, before the player hears of it.
            self._keeper.leave(key, "ends", at_once=place == len(leaving))

    def _pids(self, count: int) -> range:
        taken = max((key.pid for key in self._keeper.machine.processes), default=0)
        first = max(self._last_pid, taken) + 1
        self._last_pid = first + count - 1
        return range(first, first + count)


def _wish(params: Params, key: ProcessKey, player: ProcessKey, uid: int) -> Register:
    params.only(*_WISHES)
    wanted_uid = params.optional_integer("uid", 0)
    return Register(
        key=key,
        uid=uid if wanted_uid is None else wanted_uid,
        tag=params.text("tag", "")[:TEXT_MAX],
        command=params.text("command", "")[:COMMAND_MAX],
        runtime_version=params.text("runtime_version", "")[:TEXT_MAX] or "NA",
        uses_device=params.boolean("uses_device", default=True),
        cores=params.optional_integers("cores"),
        count=params.optional_integer("count", 0),
        player=player,
    )


def _place(admitted: tuple[Process, int] | RefusedError) -> dict[str, Any]:
    if isinstance(admitted, RefusedError):
        return _error(rpc_error(admitted.reason))
    key = admitted[0].key
    return {"pid": key.pid, "start_ticks": key.start_ticks, "cores": list(admitted[0].cores)}


def _error(error: RpcError) -> dict[str, Any]:
    return {"error": error.body()}
