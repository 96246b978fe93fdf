"""A synchronous connection to a daemon, and how a daemon's socket is opened and checked."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from neurontools import env, paths
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine import codec
from neurontools.machine.client_errors import error_from, no_machine, silent
from neurontools.machine.processes import peer_of, wait_for_end
from neurontools.machine.protocol import (
    MAX_DESCRIPTORS,
    PROTOCOL_VERSION,
    AnswerError,
    ClientSession,
    Greeting,
    HelloRequest,
    Notification,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.protocol import Request

ANSWER_TIMEOUT_S = 10.0
RECEIVE_BYTES = 1 << 18

T = TypeVar("T")


class SyncConnection:
    """A connection that speaks the protocol.

    Args:
        machine: the name of the machine.

    Raises:
        NoMachineError: no daemon listens there.
        DaemonError: it is another user's, or does not answer in time (every method).
        ConnectionError: the daemon closed the connection (every method).
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        path = paths.socket_path(machine)
        with checked_socket(machine, path) as sock:
            sock.settimeout(ANSWER_TIMEOUT_S)
            sock.connect(path)
        self._sock = sock
        self._session = ClientSession()
        self._descriptors: list[int] = []

    def request(self, request: Request, result_type: type[T]) -> T:
        """Return the result of a method, or raise its error."""
        return self.call(request.method, codec.to_builtins(request), result_type)

    def call(self, method: str, params: dict[str, Any], result_type: type[T]) -> T:
        """Return the result of a method that is given by its name, or raise its error."""
        try:
            self._sock.sendall(self._session.request(method, params))
        except TimeoutError:
            raise silent(self._machine) from None
        try:
            while (answer := self._session.next_answer()) is None:
                self._receive()
        except AnswerError as error:
            raise error_from(error.body) from None
        return answer.result(result_type)

    def next_notification(self, within_s: float) -> Notification:
        """Return the next notification."""
        self._sock.settimeout(within_s)
        while (notification := self._session.next_notification()) is None:
            self._receive()
        return notification

    def hello(self, *, owner: bool = False) -> Greeting:
        """Greet, which every other method needs.

        Args:
            owner: whether this connection speaks for the process's registration.
        """
        return self.request(hello_request(owner=owner), Greeting)

    @property
    def daemon_pid(self) -> int:
        """The daemon's process, as the kernel says."""
        return peer_of(self._sock).pid

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

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._sock, RECEIVE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            raise silent(self._machine) from None
        self._descriptors += descriptors
        self._session.feed(data)


def hello_request(*, owner: bool = False) -> HelloRequest:
    """Return this program's greeting."""
    return HelloRequest(PROTOCOL_VERSION, os.path.basename(sys.argv[0]), owner)


@contextmanager
def checked_socket(machine: str, path: str) -> Iterator[socket.socket]:
    """Give a socket to connect to the daemon at a path; check afterwards who listens there.

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


def is_answering(machine: str) -> bool:
    """Return whether a daemon of this user serves a machine; waits for the exit of a daemon that is being killed."""
    try:
        connection = SyncConnection(machine)
    except NoMachineError:
        return False
    try:
        connection.hello()
    except ConnectionError:
        wait_for_end(connection.daemon_pid, ANSWER_TIMEOUT_S)
        return False
    except DaemonError:
        return True  # it refuses or hangs: the next call reports why
    finally:
        connection.close()
    return True


def _check_owner(sock: socket.socket, path: str) -> None:
    owner = peer_of(sock).uid
    if owner not in {os.getuid(), paths.owner()}:
        raise DaemonError(
            f"the machine at {path} belongs to uid {owner}", f"set {env.RUNTIME_DIR} to your own directory"
        )


def _denied_hint() -> str:
    from neurontools.machine.sharing import denied_hint

    return denied_hint()
