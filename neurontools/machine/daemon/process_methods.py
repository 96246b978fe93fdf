"""Methods of a process that uses the machine: its registration and its device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine import processes
from neurontools.machine.daemon.sessions import Answer, answer
from neurontools.machine.events import Allocate, Free, Register
from neurontools.machine.protocol import ErrorCode, Params, RpcError

if TYPE_CHECKING:
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.sessions import Method, Sessions

COMMAND_MAX = 4096
TEXT_MAX = 256


class ProcessMethods:
    """`register`, `unregister`, `allocate` and `free`."""

    def __init__(self, keeper: Keeper, sessions: Sessions) -> None:
        self._keeper = keeper
        self._sessions = sessions
        self.table: dict[str, Method] = {
            "register": self._register,
            "unregister": self._unregister,
            "allocate": self._allocate,
            "free": self._free,
        }

    def _register(self, connection: Connection, params: Params) -> Answer:
        params.only(
            "pid", "tag", "command", "uses_device", "cores", "count", "runtime_version", "reset_cores"
        )
        key = self._sessions.own_key(connection)
        claimed = params.optional_integer("pid", 1)
        if claimed not in {None, key.pid}:
            raise RpcError(ErrorCode.PEER_REFUSED, f"process {key.pid} can't register process {claimed}")
        if not processes.in_our_pid_namespace(key.pid):
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"process {key.pid} runs in another pid namespace; it may look but not claim cores",
                "start the machine inside of that container",
            )
        event = Register(
            key=key,
            uid=connection.peer.uid,
            tag=params.text("tag", "")[:TEXT_MAX],
            command=params.text("command", "")[:COMMAND_MAX],
            runtime_version=params.text("runtime_version", "")[:TEXT_MAX] or "NA",
            uses_device=params.boolean("uses_device", default=True),
            cores=params.optional_integers("cores"),
            count=params.optional_integer("count", 0),
            reset_cores=params.boolean("reset_cores", default=True),
            stack=processes.stack_of(key.pid),
        )
        if key not in self._sessions.owners:
            self._keeper.leave(key, "registers anew")
        process, page_fd = self._keeper.register(event)
        self._sessions.owners[key] = connection
        definition = self._keeper.definition
        result, _ = answer(
            {
                "cores": list(process.cores),
                "instance_type": definition.instance_type,
                "lnc": definition.lnc,
                "machine": definition.machine,
            }
        )
        return result, (page_fd,)

    def _unregister(self, connection: Connection, params: Params) -> Answer:
        params.only()
        key = self._sessions.own_key(connection)
        self._sessions.owners.pop(key, None)
        return answer({"cores": list(self._keeper.leave(key, "unregistered", at_once=True))})

    def _allocate(self, connection: Connection, params: Params) -> Answer:
        return self._reserve(Allocate, connection, params)

    def _free(self, connection: Connection, params: Params) -> Answer:
        return self._reserve(Free, connection, params)

    def _reserve(self, kind: type[Allocate | Free], connection: Connection, params: Params) -> Answer:
        params.only("core", "nbytes", "held")
        event = kind(
            self._sessions.own_key(connection),
            params.integer("core", 0),
            params.integer("nbytes", 1),
            params.optional_integer("held", 0),
        )
        return answer({"reserved_bytes": self._keeper.reserve(event)})
