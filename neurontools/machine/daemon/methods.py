"""What neurond answers to a line: the greeting, and the methods of each subject in a module of its own."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neurontools import __version__
from neurontools.errors import NeuronToolsError
from neurontools.machine.daemon.fault_methods import FaultMethods
from neurontools.machine.daemon.hardware_methods import HardwareMethods
from neurontools.machine.daemon.keeper import RefusedError
from neurontools.machine.daemon.machine_methods import MachineMethods
from neurontools.machine.daemon.process_methods import ProcessMethods
from neurontools.machine.daemon.refusals import rpc_error
from neurontools.machine.daemon.rendering import render_answer
from neurontools.machine.daemon.sessions import Answer, Sessions, answer
from neurontools.machine.daemon.synthetic_methods import SyntheticMethods
from neurontools.machine.daemon.watching import Watching
from neurontools.machine.protocol import (
    PROTOCOL_VERSION,
    RENDER,
    ErrorCode,
    Params,
    Request,
    RpcError,
    error_line,
    parse_request,
    result_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.access import Access
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.sessions import Method

log = logging.getLogger("neurond")

HELLO = "hello"
WATCH = "watch"


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
        self._on_clients = on_clients
        self._sessions = Sessions()
        self._watching = Watching(keeper)
        self._methods: dict[str, Method] = {
            HELLO: self._hello,
            **MachineMethods(keeper, self._sessions, self._watching, socket_path, stop).table,
            **ProcessMethods(keeper, self._sessions).table,
            **HardwareMethods(keeper).table,
            **FaultMethods(keeper, self._sessions).table,
            **SyntheticMethods(keeper, self._sessions).table,
        }

    @property
    def client_count(self) -> int:
        """The number of connections."""
        return len(self._sessions)

    def on_open(self, connection: Connection) -> None:
        """Take a new connection in."""
        self._sessions.open(connection)
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
            connection.send(render_answer(self._keeper, line[len(RENDER) :], connection.peer))
            return
        try:
            self._answer(connection, parse_request(line))
        except RpcError as error:
            connection.send(error_line(error))

    def on_close(self, connection: Connection) -> None:
        """Forget a connection. What its process holds stays its own until the process is gone."""
        for key in self._sessions.close(connection):
            self._keeper.unattended.add(key)
        self._watching.remove(connection)
        self._on_clients()

    def _answer(self, connection: Connection, request: Request) -> None:
        try:
            result, descriptors = self._call(connection, request)
        except RpcError as error:
            error.request_id = request.request_id
            raise
        except RefusedError as refused:
            refusal = rpc_error(refused.reason)
            refusal.request_id = request.request_id
            raise refusal from refused
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
        if request.method == WATCH:
            self._watching.push_first(connection)

    def _call(self, connection: Connection, request: Request) -> Answer:
        method = self._methods.get(request.method)
        if method is None:
            known = ", ".join(self._methods)
            raise RpcError(
                ErrorCode.UNKNOWN_METHOD, f"no method {request.method[:40]!r}", f"there are {known}"
            )
        if request.method != HELLO and not self._sessions.has_greeted(connection):
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
        key = self._sessions.greet(connection)
        process = self._keeper.machine.processes.get(key)
        if process is not None and params.boolean("owner", default=False):
            self._sessions.owners[key] = connection
            self._keeper.unattended.discard(key)
        return answer(
            {
                "protocol": PROTOCOL_VERSION,
                "version": __version__,
                "machine": self._keeper.definition.machine,
                "pid": os.getpid(),
                "registered": None if process is None else list(process.cores),
            }
        )
