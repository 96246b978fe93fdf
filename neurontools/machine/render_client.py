"""Asks a daemon to render, with `_socket` alone: the fast path of neuron-ls.

This module may import only what `python -c pass` imports, `_socket`, and modules of this package that cost nothing.
"""

import _socket
import os
import sys
import time

from neurontools import env, paths
from neurontools.errors import DaemonError

Reply = tuple[int, bytes, bytes]

TIMEOUT_S = 10.0

_HEADER_LIMIT = 64
_CHUNK = 1 << 16
_BUSY_WAIT_S = 0.005
_ROOT = 0


def request(words: list[str], machine: str | None = None, *, tool: str = "neuron-ls") -> Reply | None:
    """Ask the daemon of a machine (None: NEURONTOOLS_MACHINE) to render.

    Returns:
        Exit code, standard output and standard error; None when no daemon listens.

    Raises:
        ConnectionResetError: the daemon ended before its reply was complete.
        DaemonError: it may not be asked, does not answer, or speaks another protocol.
    """
    machine = machine or env.machine()
    path = paths.socket_path(machine)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(TIMEOUT_S)
        if not _connect(connection, path):
            return None
        _check_owner(connection, path)
        release = " ".join(env.emulate().split())
        line = "\0".join([tool, release, *words])
        try:
            connection.sendall(b"RENDER " + os.fsencode(line) + b"\n")
        except BrokenPipeError:
            pass  # a daemon that refuses this user closes the connection after the reason
        return _receive(connection)
    except TimeoutError as error:
        raise DaemonError(
            f"neurond of machine {machine!r} does not answer within {TIMEOUT_S:g} s",
            "see 'neurond logs', then run 'neurond restart'",
        ) from error
    finally:
        connection.close()


def _connect(connection: _socket.socket, path: str) -> bool:
    give_up = time.monotonic() + TIMEOUT_S
    while True:
        try:
            connection.connect(path)
        except BlockingIOError as error:
            if time.monotonic() > give_up:
                raise TimeoutError from error
            time.sleep(_BUSY_WAIT_S)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except OSError as error:
            if paths.needs_short_socket(path):
                return False
            from neurontools.machine.sharing import denied_hint

            raise DaemonError(f"cannot reach neurond at {path}: {error.strerror}", denied_hint()) from error
        else:
            return True


def _check_owner(connection: _socket.socket, path: str) -> None:
    # Another user may have created the default directory in /tmp; the kernel reports who listens.
    if env.runtime_dir():
        return
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    owner = int.from_bytes(credentials[4:8], sys.byteorder)
    if owner not in {_ROOT, os.getuid()}:
        raise DaemonError(
            f"the daemon at {path} belongs to uid {owner}", f"set {env.RUNTIME_DIR} to your own directory"
        )


def _receive(connection: _socket.socket) -> Reply:
    data = b""
    while b"\n" not in data:
        if len(data) > _HEADER_LIMIT:
            raise _other_protocol(data)
        data += _chunk(connection)
    header, _, data = data.partition(b"\n")
    if header.startswith(b"{"):
        raise _refusal(header)
    fields = header.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise _other_protocol(header)
    code, out_length, err_length = (int(field) for field in fields)
    parts = [data]
    missing = out_length + err_length - len(data)
    while missing > 0:
        parts.append(_chunk(connection))
        missing -= len(parts[-1])
    data = b"".join(parts)
    return code, data[:out_length], data[out_length : out_length + err_length]


def _chunk(connection: _socket.socket) -> bytes:
    data = connection.recv(_CHUNK)
    if not data:
        raise ConnectionResetError
    return data


def _refusal(line: bytes) -> DaemonError:
    from neurontools.base.json_reader import load_json

    try:
        error = load_json(line)["error"]
        return DaemonError(str(error["message"]), str(error["data"]["remedy"]))
    except (KeyError, TypeError, ValueError):
        return _other_protocol(line)


def _other_protocol(data: bytes) -> DaemonError:
    start = data[:_HEADER_LIMIT].decode("ascii", "backslashreplace")
    return DaemonError(f"neurond speaks another protocol: {start!r}", "restart it: neurond restart")
