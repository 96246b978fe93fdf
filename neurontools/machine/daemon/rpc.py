"""How neurond answers requests: hello, methods about the machine as a whole, and rendered text of a tool.

Rendering is the fast path of neuron-ls: the daemon renders the text, so that the tool itself only prints bytes.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools import __version__
from neurontools.base.text import format_error
from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine import codec
from neurontools.machine.daemon.methods import FaultMethods, ProcessMethods, ProfileMethods
from neurontools.machine.daemon.rpc_errors import format_holders, invalid_params, refusal_error
from neurontools.machine.daemon.service import RefusedError
from neurontools.machine.daemon.sessions import Reply, Sessions, Watching, reply
from neurontools.machine.machine_names import instance_id
from neurontools.machine.protocol import (
    PROTOCOL_VERSION,
    RENDER,
    ErrorCode,
    Greeting,
    HelloRequest,
    RpcError,
    error_line,
    parse_request,
    result_line,
)
from neurontools.machine.requests import (
    DescribeRequest,
    Empty,
    MachineDescription,
    SnapshotRequest,
    StopRequest,
    WatchRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.service import MachineService
    from neurontools.machine.daemon.sessions import Authorization, Handlers
    from neurontools.machine.processes import Peer
    from neurontools.machine.protocol import RpcCall

log = logging.getLogger("neurond")

_RENDERERS = {"neuron-ls": "neurontools.machine.listing.text"}

# Modules are imported on first use; an upgrade may have moved them by then.
_REPLACED = b"error: neurond is older than the installed neurontools\nhint: restart it: neurond restart\n"


class RpcHandler:
    """Answers request lines.

    Args:
        service: the machine.
        authorization: the access rules.
        socket_path: where this daemon listens, for `describe`.
        stop: ends the daemon after the answer is sent.
        on_clients: called when a client connected or disconnected.
    """

    def __init__(
        self,
        service: MachineService,
        authorization: Authorization,
        socket_path: str,
        stop: Callable[[], None],
        on_clients: Callable[[], None],
    ) -> None:
        self._service = service
        self._authorization = authorization
        self._socket_path = socket_path
        self._stop = stop
        self._on_clients = on_clients
        self._sessions = Sessions()
        self._watching = Watching(service.snapshot, service.encoded_snapshot)
        handlers: Handlers = {
            HelloRequest: self._hello,
            DescribeRequest: self._describe,
            SnapshotRequest: self._snapshot,
            WatchRequest: self._watch,
            StopRequest: self._stop_daemon,
            **ProcessMethods(service, self._sessions).handlers,
            **FaultMethods(service, self._sessions).handlers,
            **ProfileMethods(service, self._sessions).handlers,
        }
        self._methods = {request_type.method: request_type for request_type in handlers}
        self._handlers = handlers

    def on_open(self, connection: Connection) -> None:
        """Add a new connection."""
        self._sessions.open(connection)
        self._on_clients()
        reason = self._sessions.excess(connection.peer)
        if reason:
            _refuse(connection, reason)

    def on_line(self, connection: Connection, line: bytes | None) -> None:
        """Answer a line."""
        reason = self._authorization.refusal_reason(connection.peer)
        if reason:
            _refuse(connection, reason)
            return
        if line is not None and line.startswith(RENDER):
            connection.send(render_answer(self._service, line[len(RENDER) :], connection.peer))
            return
        try:
            call = parse_request(line)
        except RpcError as error:
            connection.send(error_line(error))
            connection.count_invalid_line()
            return
        try:
            self._answer(connection, call)
        except RpcError as error:
            connection.send(error_line(error))

    def on_close(self, connection: Connection) -> None:
        """Forget a connection. Its process keeps what it holds until it exits."""
        for key in self._sessions.close(connection):
            self._service.exec_detector.add(key)
        self._watching.remove(connection)
        self._on_clients()

    def _answer(self, connection: Connection, call: RpcCall) -> None:
        try:
            result, descriptors = self._call(connection, call)
        except RpcError as error:
            error.request_id = call.request_id
            raise
        except RefusedError as refused:
            refusal = refusal_error(refused.reason)
            refusal.request_id = call.request_id
            raise refusal from refused
        except NeuronToolsError as failure:
            raise RpcError(
                ErrorCode.REFUSED, failure.message, failure.remedy, request_id=call.request_id
            ) from failure
        except ProcessLookupError as gone:
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"process {connection.peer.pid} that made this connection is gone",
                request_id=call.request_id,
            ) from gone
        except Exception as failure:
            log.exception("method %r failed", call.method)
            raise RpcError(
                ErrorCode.INTERNAL, "neurond failed; see `neurond logs`", request_id=call.request_id
            ) from failure
        if call.request_id is not None:
            connection.send(result_line(call.request_id, result), descriptors)
        if call.method == WatchRequest.method:
            self._watching.push_first(connection)

    def _call(self, connection: Connection, call: RpcCall) -> Reply:
        request_type = self._methods.get(call.method)
        if request_type is None:
            known = ", ".join(self._methods)
            raise RpcError(
                ErrorCode.UNKNOWN_METHOD, f"unknown method {call.method[:40]!r}", f"the methods are {known}"
            )
        if request_type is not HelloRequest and not self._sessions.has_greeted(connection):
            raise RpcError(ErrorCode.HELLO_FIRST, "the first method must be hello")
        self._authorization.check(connection.peer, call.method)
        given = {name: value for name, value in call.params.items() if value is not None}
        try:
            request = codec.convert(given, request_type)
        except ValueError as error:
            raise invalid_params(error, request_type) from error
        return self._handlers[request_type](connection, request)

    def _hello(self, connection: Connection, request: HelloRequest) -> Reply:
        if request.protocol != PROTOCOL_VERSION:
            raise RpcError(
                ErrorCode.OTHER_VERSION,
                f"neurond of machine {self._service.definition.machine!r} speaks protocol {PROTOCOL_VERSION} "
                f"(neurontools {__version__}), this program speaks {request.protocol}",
                "restart it: neurond restart",
                {"protocol": PROTOCOL_VERSION},
            )
        key = self._sessions.greet(connection)
        process = self._service.machine.processes.get(key)
        if process is not None and request.owner:
            self._sessions.owners[key] = connection
            self._service.exec_detector.discard(key)
        return reply(
            Greeting(
                PROTOCOL_VERSION,
                __version__,
                self._service.definition.machine,
                os.getpid(),
                None if process is None else process.cores,
            )
        )

    def _describe(self, _connection: Connection, _request: DescribeRequest) -> Reply:
        definition, machine = self._service.definition, self._service.machine
        return reply(
            MachineDescription(
                machine=definition.machine,
                instance_type=definition.instance_type,
                instance_id=instance_id(definition.machine, os.getuid()),
                lnc=definition.lnc,
                device_count=machine.layout.device_count,
                core_count=machine.layout.core_count,
                claimed_core_count=machine.claimed_count(),
                device_memory_bytes=machine.layout.memory_bytes,
                process_count=len(machine.processes),
                client_count=len(self._sessions),
                pid=os.getpid(),
                socket=self._socket_path,
                started_unix_s=definition.started_unix_s,
                idle_exit_s=definition.idle_exit_s,
                parent_pid=definition.parent.pid if definition.parent else None,
                protocol=PROTOCOL_VERSION,
                version=__version__,
            )
        )

    def _snapshot(self, _connection: Connection, _request: SnapshotRequest) -> Reply:
        return self._service.encoded_snapshot(), ()

    def _watch(self, connection: Connection, request: WatchRequest) -> Reply:
        self._watching.add(connection, request.period_s, changes=request.changes)
        return reply(Empty())

    def _stop_daemon(self, _connection: Connection, request: StopRequest) -> Reply:
        users = tuple(process for process in self._service.machine.processes.values() if process.cores)
        if users and not request.force:
            raise RpcError(
                ErrorCode.REFUSED,
                f"machine {self._service.definition.machine!r} is in use: {format_holders(users)}",
                "end them, or use --force",
            )
        self._stop()
        return reply({"pid": os.getpid()})


def _refuse(connection: Connection, reason: str) -> None:
    log.warning("refused a client: %s", reason)
    connection.send(error_line(RpcError(ErrorCode.PEER_REFUSED, reason)))
    connection.end()


def load_renderers() -> None:
    """Import the renderers before they are needed."""
    for module in _RENDERERS.values():
        import_module(module)


def render_answer(service: MachineService, line: bytes, asker: Peer) -> bytes:
    """Return exit code, lengths and text for the line of a `RENDER` request, its first word removed.

    Args:
        service: the machine.
        line: the request.
        asker: the process that sent it.
    """
    tool, _, rest = line.decode("utf-8", "surrogateescape").partition("\0")
    emulate, *argv = rest.split("\0")
    try:
        code, out, err = _rendered(service, tool, argv, emulate, asker)
    except NeuronToolsError as error:
        code, out, err = error.exit_code, b"", format_error(error).encode("utf-8", "replace")
    except ImportError:
        log.exception("rendering %r failed", line[:200])
        code, out, err = DaemonError.exit_code, b"", _REPLACED
    except Exception:
        log.exception("rendering %r failed", line[:200])
        code, out, err = DaemonError.exit_code, b"", b"error: neurond failed\nhint: see `neurond logs`\n"
    return b"%d %d %d\n%b%b" % (code, len(out), len(err), out, err)


def _rendered(
    service: MachineService, tool: str, argv: list[str], emulate: str, asker: Peer
) -> tuple[int, bytes, bytes]:
    if tool not in _RENDERERS:
        raise NeuronToolsError(f"neurond does not render {tool[:40]!r}")
    renderer = import_module(_RENDERERS[tool])
    result: tuple[int, bytes, bytes] = renderer.render(
        service.snapshot(), argv, emulate, asker=(asker.pid, asker.uid, " ".join([tool, *argv]))
    )
    return result
