"""One connection to a daemon: lines and descriptors in, lines out."""

from __future__ import annotations

import json
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neurontools import env, paths
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine.client_errors import ended, error_of, no_machine, silent
from neurontools.machine.processes import peer_of, wait_for_end
from neurontools.machine.protocol import MAX_DESCRIPTORS, PROTOCOL_VERSION, request_line

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_TIMEOUT_S = 10.0
_RECEIVE_BYTES = 1 << 18


class Wire:
    """A connection that speaks the protocol.

    Args:
        machine: whose daemon.

    Raises:
        NoMachineError: no daemon listens there.
        DaemonError: it is another user's, or does not answer in time (every method).
        ConnectionError: the daemon closed the connection (every method).
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._sock = open_socket(machine)
        self._received = b""
        self._descriptors: list[int] = []
        self._last_id = 0

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """Return a method's result, or raise its error."""
        self._last_id += 1
        try:
            self._sock.sendall(request_line(self._last_id, method, params))
        except TimeoutError:
            raise silent(self._machine) from None
        while True:
            message = self._message()
            if answers(message, self._last_id):
                return message["result"]

    def push(self, within_s: float) -> tuple[str, Any]:
        """Return method and parameters of the next notification."""
        self._sock.settimeout(within_s)
        while "method" not in (message := self._message()):
            continue
        return message["method"], message["params"]

    def hello(self, client: str, *, owner: bool = False) -> Any:
        """Greet, which every other method needs, and return what the daemon says of itself and of this process.

        Args:
            client: the program's name.
            owner: whether this connection is the one that speaks for what the process registered.
        """
        return self.call("hello", greeting(client, owner=owner))

    @property
    def daemon_pid(self) -> int:
        """The daemon's process, as the kernel says."""
        return peer_of(self._sock).pid

    def take_descriptor(self) -> int | None:
        """Return a descriptor that came with an answer, the caller's from now on."""
        return self._descriptors.pop() if self._descriptors else None

    def take_descriptors(self, count: int) -> list[int]:
        """Return the descriptors that came with an answer, in its order, the caller's from now on."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def close(self) -> None:
        """Close the connection and every descriptor that was not taken."""
        self._sock.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _message(self) -> dict[str, Any]:
        pieces = [self._received]
        while b"\n" not in pieces[-1]:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._sock, _RECEIVE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except TimeoutError:
                raise silent(self._machine) from None
            self._descriptors += descriptors
            if not data:
                raise ConnectionResetError("end of stream")
            pieces.append(data)
        line, _, self._received = b"".join(pieces).partition(b"\n")
        return message_of(line)


def greeting(client: str, *, owner: bool = False) -> dict[str, Any]:
    """Return the parameters of `hello`."""
    return {"protocol": PROTOCOL_VERSION, "client": client, "owner": owner}


def message_of(line: bytes) -> dict[str, Any]:
    """Return the message in a line of the daemon.

    Raises:
        ConnectionError: it is not the protocol.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ConnectionResetError("not the protocol") from error
    if not isinstance(message, dict):
        raise ConnectionResetError("not the protocol")
    return message


def answers(message: dict[str, Any], request_id: int) -> bool:
    """Return whether a message is the answer to a request, or raise the error that the answer is."""
    if "error" in message and message.get("id") in {request_id, None}:
        raise error_of(message["error"])
    return bool(message.get("id") == request_id)


def rendered(machine: str, line: bytes) -> tuple[int, bytes, bytes]:
    """Send a `RENDER` line and return exit code, stdout and stderr.

    Raises:
        NoMachineError: no daemon listens there.
        DaemonError: the answer breaks off or is none.
    """
    with open_socket(machine) as sock:
        try:
            sock.sendall(line)
        except OSError as error:
            raise ended(machine) from error
        answer = bytearray()
        while b"\n" not in answer:
            answer += _some(sock, machine)
        head, _, body = bytes(answer).partition(b"\n")
        try:
            code, out_bytes, err_bytes = map(int, head.split())
        except ValueError:
            raise DaemonError(f"neurond of machine {machine!r} refuses: {head.decode()}") from None
        while len(body) < out_bytes + err_bytes:
            body += _some(sock, machine)
    return code, body[:out_bytes], body[out_bytes:]


def open_socket(machine: str) -> socket.socket:
    """Return a connection to the daemon of a machine.

    Raises:
        NoMachineError: no daemon listens there.
        DaemonError: it is another user's.
    """
    path = paths.socket_path(machine)
    with dialling(machine, path) as sock:
        sock.settimeout(ANSWER_TIMEOUT_S)
        sock.connect(path)
    return sock


@contextmanager
def dialling(machine: str, path: str) -> Iterator[socket.socket]:
    """Give a socket to connect to the daemon at a path; check who listens there, name what goes wrong.

    Raises:
        NoMachineError: no daemon listens there.
        DaemonError: it is another user's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        yield sock
        _check_owner(sock, path)
    except BaseException as error:
        sock.close()
        if isinstance(error, PermissionError):
            raise DaemonError(f"cannot connect to {path}: {error.strerror}", _denied_hint()) from error
        if isinstance(error, OSError):
            raise no_machine(machine) from error
        raise


def _check_owner(sock: socket.socket, path: str) -> None:
    owner = peer_of(sock).uid
    if owner not in {os.getuid(), paths.owner()}:
        raise DaemonError(
            f"the machine at {path} belongs to uid {owner}", f"set {env.RUNTIME_DIR} to a directory of yours"
        )


def _denied_hint() -> str:
    from neurontools.machine.sharing import denied_hint

    return denied_hint()


def _some(sock: socket.socket, machine: str) -> bytes:
    try:
        data = sock.recv(_RECEIVE_BYTES)
    except OSError as error:
        raise DaemonError(
            f"neurond of machine {machine!r} does not answer: {error}", "neurond restart"
        ) from error
    if not data:
        raise DaemonError(f"neurond of machine {machine!r} ended", "neurond status")
    return data


def is_answering(machine: str) -> bool:
    """Return whether a daemon of this user serves a machine; waits for the end of one that is being killed."""
    try:
        wire = Wire(machine)
    except NoMachineError:
        return False
    try:
        wire.hello("probe")
    except ConnectionError:
        wait_for_end(wire.daemon_pid, ANSWER_TIMEOUT_S)
        return False
    except DaemonError:
        return True  # it refuses or hangs: whoever goes on to use it gets the reason
    finally:
        wire.close()
    return True
