"""neuron-ls: list the Neuron devices, the processes on them and how they are connected.

The plain forms are the fast path: one request to the daemon, which renders; its bytes are written as they are. What
this module imports must be what `python -c pass` has, `_socket`, and modules of ours that cost nothing; everything
else is in `ls_forms`.
"""

import _socket
import os
import sys
import time

from neurontools import env, paths
from neurontools.errors import DaemonError, NeuronToolsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

Reply = tuple[int, bytes, bytes]

TIMEOUT_S = 10.0

_PLAIN = ("--wide", "--show-all-procs", "--topology", "--json-output", "--csv")
_DEVICE = "--device="
_PLAIN_LETTERS = "watj"
_HEADER_LIMIT = 64
_CHUNK = 1 << 16
_BUSY_WAIT_S = 0.005
_INTERRUPTED = 130
_ROOT = 0


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not all(map(is_plain, words)):
            from neurontools.commands import ls_forms

            return ls_forms.main(words)
        try:
            reply = request(words)
        except ConnectionResetError:
            reply = None
        if reply is None:
            from neurontools.commands import ls_forms

            return ls_forms.without_reply(words)
        return show(reply)
    except NeuronToolsError as error:
        from neurontools.commands import ls_forms

        return ls_forms.failed(error)
    except KeyboardInterrupt:
        return _INTERRUPTED


def build_parser() -> "ArgumentParser":
    """Return the command's parser, which writes the help and the shell completion."""
    from neurontools.commands import ls_forms

    return ls_forms.build_parser()


def is_plain(word: str) -> bool:
    """Return whether an argument only chooses what the daemon renders."""
    if word[:2] == "--":
        return word in _PLAIN or (word.startswith(_DEVICE) and "\n" not in word)
    return len(word) > 1 and word[0] == "-" and not word[1:].strip(_PLAIN_LETTERS)


def request(words: list[str], machine: str | None = None) -> Reply | None:
    """Ask the daemon of a machine (None: the one that NEURONTOOLS_MACHINE names) to render.

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
        line = "\0".join(["neuron-ls", release, *words])
        connection.sendall(b"RENDER " + os.fsencode(line) + b"\n")
        return _receive(connection)
    except TimeoutError as error:
        raise DaemonError(
            f"neurond of machine {machine!r} does not answer within {TIMEOUT_S:g} s",
            "look at 'neurond logs', then 'neurond restart'",
        ) from error
    except BrokenPipeError as error:
        raise ConnectionResetError from error
    finally:
        connection.close()


def show(reply: Reply) -> int:
    """Write a reply as it is and return its exit code."""
    code, out, err = reply
    try:
        _write(1, out)
        _write(2, err)
    except BrokenPipeError:
        return 0
    except OSError as error:
        from neurontools.commands import ls_forms

        return ls_forms.cannot_write(error)
    return code


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
    # A directory that was not chosen by hand may be squatted in /tmp; the kernel says who listens.
    if os.environ.get(env.RUNTIME_DIR):
        return
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    owner = int.from_bytes(credentials[4:8], sys.byteorder)
    if owner not in {_ROOT, os.getuid()}:
        raise DaemonError(
            f"the daemon at {path} belongs to uid {owner}", f"set {env.RUNTIME_DIR} to a directory of yours"
        )


def _receive(connection: _socket.socket) -> Reply:
    data = b""
    while b"\n" not in data:
        if len(data) > _HEADER_LIMIT:
            raise _other_protocol(data)
        data += _chunk(connection)
    header, _, data = data.partition(b"\n")
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


def _other_protocol(data: bytes) -> DaemonError:
    start = data[:_HEADER_LIMIT].decode("ascii", "backslashreplace")
    return DaemonError(f"neurond speaks another protocol: {start!r}", "neurond restart")


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            time.sleep(_BUSY_WAIT_S)
