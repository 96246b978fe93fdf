"""Methods about the machine as a whole: what it is, how it looks now, and its end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools import __version__
from neurontools.machine.daemon.refusals import holders
from neurontools.machine.daemon.sessions import Answer, answer
from neurontools.machine.naming import instance_id
from neurontools.machine.protocol import PROTOCOL_VERSION, ErrorCode, Params, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.sessions import Method, Sessions
    from neurontools.machine.daemon.watching import Watching

_PERIOD_MIN_S, _PERIOD_MAX_S = 0.05, 3600.0


class MachineMethods:
    """`describe`, `snapshot`, `watch` and `stop`.

    Args:
        keeper: the machine.
        sessions: the connections.
        watching: who gets snapshots pushed.
        socket_path: where this daemon listens.
        stop: ends the daemon after the answer is sent.
    """

    def __init__(
        self,
        keeper: Keeper,
        sessions: Sessions,
        watching: Watching,
        socket_path: str,
        stop: Callable[[], None],
    ) -> None:
        self._keeper = keeper
        self._sessions = sessions
        self._watching = watching
        self._socket_path = socket_path
        self._stop = stop
        self.table: dict[str, Method] = {
            "describe": self._describe,
            "snapshot": self._snapshot,
            "watch": self._watch,
            "stop": self._stop_request,
        }

    def _describe(self, _connection: Connection, params: Params) -> Answer:
        params.only()
        definition, machine = self._keeper.definition, self._keeper.machine
        return answer(
            {
                "machine": definition.machine,
                "instance_type": definition.instance_type,
                "instance_id": instance_id(definition.machine, os.getuid()),
                "lnc": definition.lnc,
                "device_count": machine.layout.device_count,
                "core_count": machine.layout.core_count,
                "claimed_core_count": machine.claimed_count(),
                "device_memory_bytes": machine.layout.memory_bytes,
                "process_count": len(machine.processes),
                "client_count": len(self._sessions),
                "pid": os.getpid(),
                "socket": self._socket_path,
                "started_unix_s": definition.started_unix_s,
                "idle_exit_s": definition.idle_exit_s,
                "parent_pid": definition.parent.pid if definition.parent else None,
                "protocol": PROTOCOL_VERSION,
                "version": __version__,
            }
        )

    def _snapshot(self, _connection: Connection, params: Params) -> Answer:
        params.only()
        return self._keeper.encoded_snapshot(), ()

    def _watch(self, connection: Connection, params: Params) -> Answer:
        params.only("period_s", "changes")
        period_s = params.number("period_s", _PERIOD_MIN_S, _PERIOD_MAX_S)
        self._watching.add(connection, period_s, changes=params.boolean("changes", default=False))
        return answer({})

    def _stop_request(self, _connection: Connection, params: Params) -> Answer:
        params.only("force")
        users = tuple(process for process in self._keeper.machine.processes.values() if process.cores)
        if users and not params.boolean("force", default=False):
            raise RpcError(
                ErrorCode.REFUSED,
                f"machine {self._keeper.definition.machine!r} is in use: {holders(users)}",
                "end them, or stop it all the same with --force",
            )
        self._stop()
        return answer({"pid": os.getpid()})
