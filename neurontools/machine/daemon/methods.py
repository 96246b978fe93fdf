"""What neurond answers: one function per method of the protocol."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

from neurontools import __version__
from neurontools.errors import NeuronToolsError
from neurontools.machine import processes
from neurontools.machine.daemon.keeper import RefusedError
from neurontools.machine.daemon.refusals import holders, rpc_error
from neurontools.machine.daemon.rendering import render_answer
from neurontools.machine.daemon.watching import Watching
from neurontools.machine.events import Allocate, Free, Register
from neurontools.machine.naming import instance_id
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import (
    PROTOCOL_VERSION,
    RENDER,
    ErrorCode,
    Params,
    Request,
    RpcError,
    Value,
    error_line,
    parse_request,
    result_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.access import Access
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection

log = logging.getLogger("neurond")

_COMMAND_MAX = 4096
_TEXT_MAX = 256
_HIDDEN = -1  # stands for the start time of a process that /proc does not show
_PERIOD_MIN_S, _PERIOD_MAX_S = 0.05, 3600.0


Answer = tuple[str, tuple[int, ...]]


class Methods:
    """Answers lines.

    Args:
        keeper: the machine.
        access: who may ask for what.
        socket_path: where this daemon listens, for `describe`.
        stop: ends the daemon after the answer is sent.
        on_clients: called when a client came or went.
    """

    def __init__(
        self,
        keeper: Keeper,
        access: Access,
        socket_path: str,
        stop: Callable[[], None],
        on_clients: Callable[[], None],
    ) -> None:
        self._keeper = keeper
        self._access = access
        self._socket_path = socket_path
        self._stop = stop
        self._on_clients = on_clients
        self._greeted: dict[Connection, ProcessKey | None] = {}
        self._owners: dict[ProcessKey, Connection] = {}
        self._watching = Watching(keeper)
        self._methods: dict[str, Callable[[Connection, Params], Answer]] = {
            "hello": self._hello,
            "describe": self._describe,
            "snapshot": self._snapshot,
            "watch": self._watch,
            "register": self._register,
            "unregister": self._unregister,
            "allocate": self._allocate,
            "free": self._free,
            "stop": self._stop_request,
        }

    @property
    def client_count(self) -> int:
        """The number of connections."""
        return len(self._greeted)

    def on_open(self, connection: Connection) -> None:
        """Take a new connection in."""
        self._greeted[connection] = None
        self._on_clients()

    def on_line(self, connection: Connection, line: bytes | None) -> None:
        """Answer a line."""
        reason = self._access.why_not(connection.peer)
        if reason:
            log.warning("refused a client: %s", reason)
            connection.send(error_line(RpcError(ErrorCode.PEER_REFUSED, reason)))
            connection.end()
            return
        if line is not None and line.startswith(RENDER):
            connection.send(render_answer(self._keeper, line[len(RENDER) :]))
            return
        try:
            self._answer(connection, parse_request(line))
        except RpcError as error:
            connection.send(error_line(error))

    def on_close(self, connection: Connection) -> None:
        """Forget a connection. What its process holds stays its own until the process is gone."""
        self._greeted.pop(connection, None)
        self._watching.remove(connection)
        for key in [key for key, owner in self._owners.items() if owner is connection]:
            del self._owners[key]
        self._on_clients()

    def _answer(self, connection: Connection, request: Request) -> None:
        try:
            result, descriptors = self._call(connection, request)
        except RpcError as error:
            error.request_id = request.request_id
            raise
        except RefusedError as refused:
            answer = rpc_error(refused.reason)
            answer.request_id = request.request_id
            raise answer from refused
        except NeuronToolsError as failure:
            raise RpcError(
                ErrorCode.REFUSED, failure.message, failure.remedy, request_id=request.request_id
            ) from failure
        except Exception as failure:
            log.exception("method %r failed", request.method)
            raise RpcError(
                ErrorCode.INTERNAL, "neurond failed; see `neurond logs`", request_id=request.request_id
            ) from failure
        if request.request_id is not None:
            connection.send(result_line(request.request_id, result), descriptors)
        if request.method == "watch":
            self._watching.push_first(connection)

    def _call(self, connection: Connection, request: Request) -> Answer:
        method = self._methods.get(request.method)
        if method is None:
            known = ", ".join(self._methods)
            raise RpcError(
                ErrorCode.UNKNOWN_METHOD, f"no method {request.method[:40]!r}", f"there are {known}"
            )
        if request.method != "hello" and self._greeted[connection] is None:
            raise RpcError(ErrorCode.HELLO_FIRST, "say hello first")
        self._access.check(connection.peer, request.method)
        return method(connection, request.params)

    def _hello(self, connection: Connection, params: Params) -> Answer:
        theirs = params.integer("protocol", 0)
        if theirs != PROTOCOL_VERSION:
            raise RpcError(
                ErrorCode.OTHER_VERSION,
                f"neurond of machine {self._keeper.definition.machine!r} speaks protocol {PROTOCOL_VERSION} "
                f"(neurontools {__version__}), this program speaks {theirs}",
                "neurond restart",
                {"protocol": PROTOCOL_VERSION},
            )
        params.text("client")
        key = _key_of(connection)
        self._greeted[connection] = key
        process = self._keeper.machine.processes.get(key)
        if process is not None and params.boolean("owner", default=False):
            self._owners[key] = connection
        definition = self._keeper.definition
        return _json(
            {
                "protocol": PROTOCOL_VERSION,
                "version": __version__,
                "machine": definition.machine,
                "pid": os.getpid(),
                "registered": None if process is None else list(process.cores),
            }
        )

    def _describe(self, _connection: Connection, params: Params) -> Answer:
        params.only()
        definition, machine = self._keeper.definition, self._keeper.machine
        return _json(
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
                "client_count": self.client_count,
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
        params.only("period_s")
        self._watching.add(connection, params.number("period_s", _PERIOD_MIN_S, _PERIOD_MAX_S))
        return _json({})

    def _register(self, connection: Connection, params: Params) -> Answer:
        params.only("pid", "tag", "command", "uses_device", "cores", "count", "runtime_version")
        key = self._own_key(connection)
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
            tag=params.text("tag", "")[:_TEXT_MAX],
            command=params.text("command", "")[:_COMMAND_MAX],
            runtime_version=params.text("runtime_version", "")[:_TEXT_MAX] or "NA",
            uses_device=params.boolean("uses_device", default=True),
            cores=params.optional_integers("cores"),
            count=params.optional_integer("count", 0),
        )
        if key not in self._owners:
            self._keeper.leave(key, "registers anew")
        process, page_fd = self._keeper.register(event)
        self._owners[key] = connection
        definition = self._keeper.definition
        answer, _ = _json(
            {
                "cores": list(process.cores),
                "instance_type": definition.instance_type,
                "lnc": definition.lnc,
                "machine": definition.machine,
            }
        )
        return answer, (page_fd,)

    def _unregister(self, connection: Connection, params: Params) -> Answer:
        params.only()
        key = self._own_key(connection)
        self._owners.pop(key, None)
        return _json({"cores": list(self._keeper.leave(key, "unregistered"))})

    def _allocate(self, connection: Connection, params: Params) -> Answer:
        return self._reserve(Allocate, connection, params)

    def _free(self, connection: Connection, params: Params) -> Answer:
        return self._reserve(Free, connection, params)

    def _reserve(self, kind: type[Allocate | Free], connection: Connection, params: Params) -> Answer:
        params.only("core", "nbytes", "held")
        event = kind(
            self._own_key(connection),
            params.integer("core", 0),
            params.integer("nbytes", 1),
            params.optional_integer("held", 0),
        )
        return _json({"reserved_bytes": self._keeper.reserve(event)})

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
        return _json({"pid": os.getpid()})

    def _own_key(self, connection: Connection) -> ProcessKey:
        key = self._greeted[connection]
        if key is not None and key.start_ticks == _HIDDEN:
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"/proc hides process {key.pid} from neurond (hidepid), which could not tell when it is gone; "
                "it may look but not claim cores",
                "run neurond as root, or as a member of the group that /proc's option gid= names",
            )
        if key is None or not processes.is_alive(key):
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"the process that made this connection ({connection.peer.pid}) is gone; a forked child is not it",
            )
        return key


def _key_of(connection: Connection) -> ProcessKey:
    try:
        return processes.key_of(connection.peer.pid)
    except ProcessLookupError:
        if processes.is_hidden(connection.peer.pid):
            return ProcessKey(connection.peer.pid, _HIDDEN)
        raise RpcError(
            ErrorCode.PEER_REFUSED, f"process {connection.peer.pid} that made this connection is gone"
        ) from None


def _json(result: dict[str, Value]) -> Answer:
    return json.dumps(result, separators=(",", ":")), ()
