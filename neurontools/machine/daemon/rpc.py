"""How neurond answers a line of a client: JSON-RPC requests by their methods, `RENDER` lines with the text of a tool."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections import Counter
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from msgspec.structs import fields

from neurontools.base.text import did_you_mean, format_error
from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine import codec
from neurontools.machine.changes import compute_changes
from neurontools.machine.daemon.methods import Methods
from neurontools.machine.protocol import (
    CHANGES,
    RENDER,
    SNAPSHOT,
    ErrorCode,
    HelloRequest,
    InvalidParamsError,
    PeerRefusedError,
    RefusedError,
    Request,
    RpcCall,
    error_line,
    parse_request,
    push_line,
    result_line,
)
from neurontools.machine.requests import WatchRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from neurontools.machine.daemon.methods import MethodResult
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.service import MachineService
    from neurontools.machine.processes import Peer
    from neurontools.machine.snapshot import Snapshot

log = logging.getLogger("neurond")

_RENDERERS = {"neuron-ls": "neurontools.machine.listing.text", "host-files": "neurontools.sysfs.host_files"}
_SHOWN_LENGTH = 40

# Modules are imported on first use; an upgrade may have moved them by then.
_REPLACED = b"error: neurond is older than the installed neurontools\nhint: restart it: neurond restart\n"


_DESCRIPTORS_PER_CLIENT = 3  # connection, page, pidfd
_USERS = 4  # that have room for all their clients at the same time
# These change the machine for all users of it.
_OWNER_METHODS = {
    "clear_faults": "remove faults from",
    "count_hardware": "count memory errors of",
    "inject_fault": "inject faults into",
    "register_synthetic": "run scenarios on",
    "reserve_synthetic": "run scenarios on",
    "reset_device": "reset devices of",
    "reset_hardware": "reset the error counters of",
    "stop": "stop",
    "unregister_synthetic": "run scenarios on",
}


class RpcHandler:
    """Answers request lines.

    Args:
        service: the machine.
        group: the number of the group that the machine is shared with, None for a private machine.
        socket_path: where this daemon listens, for `describe`.
        stop: ends the daemon after the answer is sent.
        on_clients: called when a client connected or disconnected.
    """

    def __init__(
        self,
        service: MachineService,
        group: int | None,
        socket_path: str,
        stop: Callable[[], None],
        on_clients: Callable[[], None],
    ) -> None:
        self._service = service
        self._group = group
        self._on_clients = on_clients
        self._users: Counter[int] = Counter()
        self._watching = Watching(service.snapshot, service.encoded_snapshot)
        self._methods = Methods(service, self._watch, socket_path, stop, self._users.total)

    def on_open(self, connection: Connection) -> None:
        """Add a new connection."""
        uid = connection.peer.uid
        self._users[uid] += 1
        self._on_clients()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = descriptors // (_DESCRIPTORS_PER_CLIENT * _USERS)
        if self._users[uid] > most and not connection.peer.may_administer:
            _refuse(connection, f"uid {uid} has {most} connections to this machine, the most for one user")

    def on_line(self, connection: Connection, line: bytes | None) -> None:
        """Answer a line."""
        if reason := refusal_reason(connection.peer, self._group):
            _refuse(connection, reason)
            return
        if line is not None and line.startswith(RENDER):
            connection.send(render_answer(self._service, line[len(RENDER) :], connection.peer))
            return
        try:
            call = parse_request(line)
        except RefusedError as error:
            connection.send(error_line(error))
            connection.count_invalid_line()
            return
        self._answer(connection, call)

    def on_close(self, connection: Connection) -> None:
        """Forget a connection. Its process keeps what it holds until it exits."""
        self._users[connection.peer.uid] -= 1
        self._methods.forget(connection)
        self._watching.remove(connection)
        self._on_clients()

    def _watch(self, connection: Connection, request: WatchRequest) -> None:
        self._watching.add(connection, request.period_s, changes=request.changes)

    def _answer(self, connection: Connection, call: RpcCall) -> None:
        try:
            result, descriptors = self._call(connection, call)
        except RefusedError as refused:
            error = refused
        except NeuronToolsError as failure:
            error = RefusedError(failure.message, failure.remedy)
        except ProcessLookupError:
            error = PeerRefusedError(f"process {connection.peer.pid} that made this connection is gone")
        except Exception:
            log.exception("method %r failed", call.method)
            error = RefusedError("neurond failed; see `neurond logs`", code=ErrorCode.INTERNAL)
        else:
            if call.request_id is not None:
                connection.send(result_line(call.request_id, result), descriptors)
            if call.method == WatchRequest.method:
                self._watching.push_first(connection)
            return
        error.request_id = call.request_id
        connection.send(error_line(error))

    def _call(self, connection: Connection, call: RpcCall) -> MethodResult:
        request_type = self._methods.request_type(call.method)
        if request_type is not HelloRequest and connection.key is None:
            raise RefusedError("the first method must be hello", code=ErrorCode.HELLO_FIRST)
        check_rights(connection.peer, call.method, self._service.definition.machine)
        given = {name: value for name, value in call.params.items() if value is not None}
        return self._methods.call(connection, convert_params(given, request_type))


def refusal_reason(peer: Peer, group: int | None) -> str:
    """Return why a process may not call any method, "" if it may.

    Only its owner may use a private machine. A shared one has a directory and a socket whose modes admit the group and
    root.
    """
    if group is None and peer.uid != os.getuid():
        return f"uid {peer.uid} may not use a machine of uid {os.getuid()}"
    if peer.pid == 0:
        return "the client runs in another pid namespace, where its process cannot be identified"
    return ""


def check_rights(peer: Peer, method: str, machine: str) -> None:
    """Check that a method is for this process's user.

    Raises:
        PeerRefusedError: it is only for the machine's owner and root.
    """
    if method in _OWNER_METHODS and not peer.may_administer:
        raise PeerRefusedError(
            f"uid {peer.uid} may not {_OWNER_METHODS[method]} machine {machine!r}: "
            f"only its owner, uid {os.getuid()}, and root may",
            "ask its owner",
        )


def convert_params(given: dict[str, Any], request_type: type[Request]) -> Request:
    """Return the parameters of a method.

    Raises:
        InvalidParamsError: they do not fit the method; it names the parameter.
    """
    try:
        return codec.convert(given, request_type)
    except ValueError:
        parameters = {field.name: field for field in fields(request_type)}
        for name, value in given.items():
            short_name = name[:_SHOWN_LENGTH]
            if name not in parameters:
                raise InvalidParamsError(
                    f"unknown parameter {short_name!r}", did_you_mean(name, parameters)
                ) from None
            try:
                codec.convert(value, parameters[name].type)
            except ValueError as error:
                if choices := _choices(parameters[name].type):
                    message = f"unknown {name} {str(value)[:_SHOWN_LENGTH]!r}"
                    raise InvalidParamsError(message, did_you_mean(str(value), choices)) from None
                reason = str(error).replace("`", "")
                raise InvalidParamsError(f"parameter {name!r}: {reason[0].lower()}{reason[1:]}") from None
        missing = next(name for name, field in parameters.items() if field.required and name not in given)
        raise InvalidParamsError(f"parameter {missing!r} is missing") from None


def _choices(value_type: Any) -> list[str]:
    """Return the values of an enumeration, also of an optional one; none for another type."""
    kinds = [kind for kind in get_args(value_type) or [value_type] if isinstance(kind, type)]
    return [str(choice) for kind in kinds if issubclass(kind, Enum) for choice in kind]


def _refuse(connection: Connection, reason: str) -> None:
    log.warning("refused a client: %s", reason)
    connection.send(error_line(PeerRefusedError(reason)))
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
        if tool not in _RENDERERS:
            raise NeuronToolsError(f"neurond does not render {tool[:40]!r}")  # noqa: TRY301  answered as any error
        code, out, err = import_module(_RENDERERS[tool]).render(
            service.snapshot(), argv, emulate, asker=(asker.pid, asker.uid, " ".join([tool, *argv]))
        )
    except NeuronToolsError as error:
        code, out, err = error.exit_code, b"", format_error(error).encode("utf-8", "replace")
    except ImportError:
        log.exception("rendering %r failed", line[:200])
        code, out, err = DaemonError.exit_code, b"", _REPLACED
    except Exception:
        log.exception("rendering %r failed", line[:200])
        code, out, err = DaemonError.exit_code, b"", b"error: neurond failed\nhint: see `neurond logs`\n"
    return b"%d %d %d\n%b%b" % (code, len(out), len(err), out, err)


class Watching:
    """The watchers and their periods. Without watchers there is no timer.

    Args:
        snapshot: returns the machine as a value.
        encoded_snapshot: returns it as JSON text.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], encoded_snapshot: Callable[[], str]) -> None:
        self._snapshot = snapshot
        self._encoded_snapshot = encoded_snapshot
        self._whole: dict[float, set[Connection]] = {}
        # By connection, its last snapshot: lines arrive in order, or the connection is dropped.
        self._changes: dict[float, dict[Connection, Snapshot | None]] = {}
        self._periods: dict[Connection, float] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def add(self, connection: Connection, period_s: float, *, changes: bool = False) -> None:
        """Push a snapshot to a connection every `period_s` seconds; a former period is forgotten.

        Args:
            connection: whose.
            period_s: seconds between two.
            changes: push only the first one whole, then what changed.
        """
        self.remove(connection)
        self._periods[connection] = period_s
        if changes:
            self._changes.setdefault(period_s, {})[connection] = None
        else:
            self._whole.setdefault(period_s, set()).add(connection)
        if period_s not in self._timers:
            self._schedule(period_s)

    def remove(self, connection: Connection) -> None:
        """Stop pushing to a connection."""
        period_s = self._periods.pop(connection, None)
        if period_s is None:
            return
        whole, bases = self._whole.get(period_s, set()), self._changes.get(period_s, {})
        whole.discard(connection)
        bases.pop(connection, None)
        if not whole and not bases:
            self._whole.pop(period_s, None)
            self._changes.pop(period_s, None)
            self._timers.pop(period_s).cancel()

    def push_first(self, connection: Connection) -> None:
        """Push a snapshot now: a new watcher need not wait."""
        if connection not in self._periods:
            return  # it was dropped meanwhile
        bases = self._changes.get(self._periods[connection], {})
        if connection in bases:
            bases[connection] = snapshot = self._snapshot()
            connection.send(push_line(SNAPSHOT, codec.encode(snapshot)))
        else:
            connection.send(self._whole_line())

    def _schedule(self, period_s: float) -> None:
        self._timers[period_s] = asyncio.get_running_loop().call_later(period_s, self._tick, period_s)

    def _tick(self, period_s: float) -> None:
        whole, bases = self._whole.get(period_s), self._changes.get(period_s)
        self._schedule(period_s)
        if whole:
            line = self._whole_line()
            for connection in list(whole):
                connection.send(line)
        if bases:
            self._push_changes(bases)

    def _push_changes(self, bases: dict[Connection, Snapshot | None]) -> None:
        snapshot = self._snapshot()
        lines: dict[int, bytes] = {}
        for connection, base in list(bases.items()):
            if base is None:
                continue
            line = lines.get(id(base))
            if line is None:
                line = lines[id(base)] = push_line(CHANGES, codec.encode(compute_changes(base, snapshot)))
            bases[connection] = snapshot
            connection.send(line)

    def _whole_line(self) -> bytes:
        return push_line(SNAPSHOT, self._encoded_snapshot())
