"""Synchronous connections to a daemon: opening and checking its socket, requests, and the errors of the clients."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from neurontools import env, paths
from neurontools.base.interrupts import is_of_handler
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine import codec
from neurontools.machine.processes import peer_of, wait_for_end
from neurontools.machine.protocol import (
    MAX_DESCRIPTORS,
    PROTOCOL_VERSION,
    AnswerError,
    BrokenConnectionError,
    ClientSession,
    Greeting,
    HelloRequest,
    Notification,
    Request,
    refused_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


ANSWER_TIMEOUT_S = 10.0
RECEIVE_BYTES = 1 << 18

T = TypeVar("T")


class SilentDaemonError(DaemonError):
    """The daemon does not answer in time."""


def no_answer_error(machine: str) -> SilentDaemonError:
    """Return the error for a daemon that does not answer."""
    return SilentDaemonError(f"neurond of machine {machine!r} does not answer", "restart it: neurond restart")


def connection_closed_error(machine: str) -> DaemonError:
    """Return the error for a daemon that closed the connection."""
    return DaemonError(f"neurond of machine {machine!r} ended", "check it with 'neurond status'")


def restarted_daemon_error(machine: str) -> DaemonError:
    """Return the error for a daemon whose successor closed the connection too."""
    return DaemonError(f"neurond of machine {machine!r} keeps exiting", "see 'neurond logs'")


def no_machine_error(machine: str) -> NoMachineError:
    """Return the error for a machine that does not run."""
    owner = paths.owner()
    if owner != os.getuid():
        return NoMachineError(
            f"no machine {machine!r} is running in {paths.runtime_dir()}",
            f"only uid {owner}, who shares that directory, can start it; unset {env.RUNTIME_DIR} to use your own",
        )
    flag = "" if machine == env.DEFAULT_MACHINE else f" --machine {machine}"
    return NoMachineError(f"no machine {machine!r} is running", f"start it: neurond start{flag}")


class SyncConnection:
    """A connection that speaks the protocol.

    Args:
        machine: the name of the machine.

    Raises:
        NoMachineError: no daemon listens there.
        DaemonError: it is another user's, or does not answer in time (every method).
        BrokenConnectionError: the daemon closed the connection (every method).
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
        line = self._session.request(method, params)
        with self._transfer():
            self._sock.sendall(line)
        try:
            while (answer := self._session.next_answer()) is None:
                self._receive()
        except AnswerError as error:
            raise refused_error(error.body) from None
        return answer.result(result_type)

    def next_notification(self, within_s: float) -> Notification:
        """Return the next notification."""
        self._sock.settimeout(within_s)
        while (notification := self._session.next_notification()) is None:
            self._receive()
        return notification

    def hello(self, *, owner: bool = False) -> Greeting:
        """Say hello, which must come before every other method.

        Args:
            owner: whether this connection speaks for the process's registration.
        """
        return self.request(hello_request(owner=owner), Greeting)

    @property
    def daemon_pid(self) -> int:
        """The daemon's pid, as the kernel reports it."""
        return peer_of(self._sock).pid

    def take_descriptors(self, count: int) -> list[int]:
        """Return the descriptors that came with an answer, in order; the caller now owns them."""
        descriptors, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return descriptors

    def close(self) -> None:
        """Close the connection and every descriptor that was not taken."""
        self._sock.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _receive(self) -> None:
        with self._transfer():
            data, descriptors, _, _ = socket.recv_fds(
                self._sock, RECEIVE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        self._descriptors += descriptors
        self._session.feed(data)

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        """Raise the errors of the socket as ours: a signal handler may raise the same ones."""
        try:
            yield
        except OSError as error:
            if is_of_handler(error):
                raise
            if isinstance(error, TimeoutError):
                raise no_answer_error(self._machine) from None
            raise BrokenConnectionError(*error.args) from error


def hello_request(*, owner: bool = False) -> HelloRequest:
    """Return this program's greeting."""
    return HelloRequest(PROTOCOL_VERSION, os.path.basename(sys.argv[0]), owner)


@contextmanager
def checked_socket(machine: str, path: str) -> Iterator[socket.socket]:
    """Yield a socket for connecting to the daemon at a path; afterwards check who listens there.

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
        if is_of_handler(error):
            raise
        if isinstance(error, PermissionError):
            raise DaemonError(f"cannot connect to {path}: {error.strerror}", _denied_hint()) from error
        if isinstance(error, OSError):
            raise no_machine_error(machine) from error
        raise


def is_answering(machine: str) -> bool:
    """Return whether a daemon of this user serves a machine; waits for the exit of a daemon that is being killed.

    Raises:
        SilentDaemonError: it does not answer in time.
    """
    try:
        connection = SyncConnection(machine)
    except NoMachineError:
        return False
    try:
        connection.hello()
    except BrokenConnectionError:
        wait_for_end(connection.daemon_pid, ANSWER_TIMEOUT_S)
        return False
    except SilentDaemonError:
        raise
    except DaemonError:
        return True  # it refuses: the next call reports why
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
