"""The directory of one machine as its daemon sees it: its socket, the recovery socket, and its logs.

Beside its socket a daemon listens on an abstract address made from the directory's path, the recovery socket. That
address is taken as long as the daemon runs, even when its files are deleted, so one directory never has two daemons.
A connection to it makes the daemon restore a deleted directory, so the daemon need not watch its files.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from neurontools import env, paths
from neurontools.base.files import owned_directory, remove_quietly, write_atomic
from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine import codec
from neurontools.machine.machine_config import DaemonInfo
from neurontools.machine.machine_names import check_name
from neurontools.machine.processes import peer_of
from neurontools.machine.sharing import RECORD_MODE, SOCKET_MODE, make_closed, make_shared, make_shared_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import TextIOWrapper

    from neurontools.machine.processes import Peer

RECORD = "neurond.json"
LOCK = "start.lock"

_POLL_PERIOD_S = 0.25
_KERNEL_LOG_BYTES = 1 << 20


class MachineDirectory:
    """Paths of one machine, created and deleted.

    `group` is the number of the group that it is shared with, None for a private one. It is remembered, so that a
    deleted shared directory is restored as one.
    """

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.path = paths.machine_dir(machine)
        self.pages = paths.pages_dir(machine)
        found = paths.shared(paths.runtime_dir())
        self.group = found[1] if found is not None and found[0] == os.getuid() else None
        ours = paths.owner() == os.getuid()
        self.state = f"{paths.state_dir() if ours else paths.runtime_dir() + '/state'}/{machine}"
        self.journal = f"{self.state}/journal.json"
        self.log = f"{self.state}/neurond.log"
        self.kernel_log = f"{self.state}/kern.log"
        self.record = f"{self.path}/{RECORD}"
        self._direct = f"{self.path}/neurond.sock"
        self.needs_pointer = paths.needs_short_socket(self._direct)
        self.socket = _short_socket(self.path) if self.needs_pointer else self._direct

    def make(self) -> None:
        """Create the missing directories.

        Raises:
            NeuronToolsError: a directory belongs to another user, is open to others, or cannot be created.
        """
        if self.group is None:
            paths.ensure_private(os.path.dirname(self.path))
            paths.ensure_private(self.path)
        else:
            make_shared_root(os.path.dirname(self.path), self.group)
            make_shared(self.path, self.group)
            make_closed(os.path.dirname(self.state))
        paths.ensure_private(self.pages)
        if self.needs_pointer:
            if self.group is not None:
                raise NeuronToolsError(
                    f"{self._direct} is too long for a socket that is shared",
                    "choose a shorter --dir or --machine",
                )
            shorts = os.path.dirname(self.socket)
            paths.ensure_private(os.path.dirname(shorts))
            paths.ensure_private(shorts)
            write_atomic(f"{self.path}/socket", self.socket + "\n", sync=False)
        paths.ensure_private(self.state)

    def is_whole(self) -> bool:
        """Return whether the socket, the pages directory and a group's mark exist, and the record can be read."""
        needed = [self.socket, self.pages]
        if self.group is not None:
            needed.append(f"{os.path.dirname(self.path)}/{paths.GROUP_MARK}")
        try:
            return all(map(os.path.exists, needed)) and read_record(self.machine) is not None
        except NeuronToolsError:
            return False

    @property
    def socket_mode(self) -> int:
        """The permissions of the socket."""
        return 0o600 if self.group is None else SOCKET_MODE

    def free_socket(self) -> None:
        """Remove a socket that a former daemon left.

        Raises:
            DaemonError: a daemon answers there.
        """
        if answers(self.socket):
            raise already_running_error(self.machine)
        remove_quietly(self.socket)

    def write_record(self, info: DaemonInfo) -> None:
        """Write neurond.json."""
        mode = 0o600 if self.group is None else RECORD_MODE
        write_atomic(self.record, codec.encode(info), mode=mode, exact_mode=True, sync=False)

    def clean(self) -> None:
        """Remove the files of a running daemon."""
        for path in (self.socket, self.record, f"{self.path}/socket"):
            remove_quietly(path)
        if os.path.exists(f"{self.path}/host"):  # the mirror of host files
            import shutil

            shutil.rmtree(f"{self.path}/host", ignore_errors=True)

    def delete(self) -> None:
        """Remove everything of this machine."""
        self.clean()
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)


def read_record(machine: str) -> DaemonInfo | None:
    """Return the content of a machine's neurond.json; None without one.

    Raises:
        NeuronToolsError: another user can write it.
    """
    owner, path = paths.owner(), paths.machine_dir(machine)
    remedy = f"set {env.RUNTIME_DIR} to another"
    try:
        with (
            owned_directory(os.path.dirname(path), owner, remedy) as root,
            owned_directory(path, owner, remedy, parent=root) as directory,
        ):
            return codec.read_file(RECORD, DaemonInfo, inside=directory)
    except OSError:
        return None


def answers(address: str) -> bool:
    """Return whether something listens on a Unix address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        return probe.connect_ex(address) == 0


def already_running_error(machine: str) -> DaemonError:
    """Return the error for a second daemon of one machine."""
    return DaemonError(f"machine {machine!r} is already running", "see 'neurond status'")


def recovery_address(machine_dir: str) -> str:
    """Return the abstract address of the recovery socket of a directory."""
    return f"\0neurontools/{os.getuid()}/{_digest(machine_dir + _mount_namespace())}"


def _mount_namespace() -> str:
    # Containers that share the host's network also share abstract addresses, but not what a path means.
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def open_recovery_socket(machine: str, machine_dir: str) -> socket.socket | None:
    """Return the listening recovery socket, None when another user has taken its address.

    Raises:
        DaemonError: a daemon of this user has it.
    """
    address = recovery_address(machine_dir)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        listener_now = _listener(address)
        if listener_now is not None and listener_now.uid == os.getuid():
            raise already_running_error(machine) from None
        return None
    return listener


def request_recovery(machine_dir: str) -> bool:
    """Make the daemon of a directory restore its deleted files and wait for it; return whether there is a daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        try:
            sock.connect(recovery_address(machine_dir))
            return peer_of(sock).uid == os.getuid() and sock.recv(1) == b"\n"
        except OSError:
            return False


def is_listening(process: int, machine: str) -> bool:
    """Return whether a process listens on a machine's socket or its recovery socket, as the kernel reports."""
    for address in (paths.socket_path(machine), recovery_address(paths.machine_dir(machine))):
        peer = _listener(address)
        if peer is not None and (peer.pid, peer.uid) == (process, paths.owner()):
            return True
    return False


def _listener(address: str) -> Peer | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(address)
            return peer_of(probe)
        except OSError:
            return None


def _short_socket(machine_dir: str) -> str:
    return f"/tmp/neurontools-{os.getuid()}/s/{_digest(machine_dir)}.sock"  # noqa: S108  checked by ensure_private


def _digest(machine_dir: str) -> str:
    import hashlib  # loads OpenSSL, which few programs need

    return hashlib.sha256(os.fsencode(machine_dir)).hexdigest()[:24]


class KernelLog:
    """Writes lines in the shape of dmesg: seconds since boot in brackets, then the text.

    The file is kept below a MiB: a full one is renamed to `<path>.1`.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, text: str) -> None:
        """Append a line.

        Raises:
            OSError: the file can't be written.
        """
        seconds, rest_ns = divmod(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 1_000_000_000)
        line = f"[{seconds:5d}.{rest_ns // 1000:06d}] {text}\n"
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            full = file.tell() > _KERNEL_LOG_BYTES
        if full:
            os.replace(self.path, f"{self.path}.1")


def lines(
    machine: str | None = None,
    *,
    follow: bool = False,
    kernel: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield the lines of a machine's current log file, without line ends.

    Args:
        machine: its name, None for NEURONTOOLS_MACHINE.
        follow: go on, across rotation, until the consumer stops.
        kernel: read what a driver would write to the kernel log instead of the daemon's own log; a log that does
            not exist yet counts as empty.
        pause: sleeps for a number of seconds before the log is read again.

    Raises:
        NeuronToolsError: there is no log, as no daemon ever ran under that name, or it is another user's.
    """
    directory = MachineDirectory(check_name(env.machine() if machine is None else machine))
    path = directory.kernel_log if kernel else directory.log
    file = _opened(path)
    if kernel and file is None and os.path.exists(directory.log):
        file = open(path if follow else os.devnull, "a+", encoding="utf-8")  # noqa: SIM115  closed below
    if file is None:
        raise NeuronToolsError(f"no log at {path}: no machine has run under that name", "neurond list")
    rest = ""
    while True:
        with file:
            while piece := _next(file, path, pause if follow else None):
                rest += piece
                if rest.endswith("\n"):
                    yield rest[:-1]
                    rest = ""
        if rest:
            yield rest
        following = _opened(path) if follow else None
        if following is None:
            return
        file = following


def _next(file: TextIOWrapper, path: str, pause: Callable[[float], None] | None) -> str:
    while True:
        replaced = _is_replaced(file, path)
        if piece := file.readline():
            return piece
        if replaced or pause is None:
            return ""
        pause(_POLL_PERIOD_S)


def _opened(path: str) -> TextIOWrapper | None:
    try:
        return open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise NeuronToolsError(
            f"cannot read {path}: {error.strerror}", "only the machine's owner may"
        ) from error


def _is_replaced(file: TextIOWrapper, path: str) -> bool:
    try:
        return not os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:  # a log that was full has no successor before the next line
        return not os.path.isdir(os.path.dirname(path))
    except OSError:
        return True
