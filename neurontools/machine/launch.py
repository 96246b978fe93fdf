"""Starting, stopping and listing daemons. Starting is a handshake: the daemon reports on a pipe, without polling."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from neurontools import env, paths
from neurontools.base.locks import file_lock, unlock
from neurontools.base.procfs import read_boot_id, shows_this_process
from neurontools.base.text import suggest
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError, UsageError
from neurontools.machine import codec
from neurontools.machine.connection import (
    SyncConnection,
    connection_closed_error,
    is_answering,
    no_machine_error,
)
from neurontools.machine.directory import (
    LOCK,
    RECORD,
    MachineDirectory,
    is_listening,
    read_record,
    request_recovery,
)
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.machine_names import check_name, core_ranges
from neurontools.machine.processes import ProcessKey, is_alive, is_hidden, is_readable, open_pidfd
from neurontools.machine.protocol import BrokenConnectionError
from neurontools.machine.sharing import denied_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

__all__ = ["DaemonInfo", "StartOptions", "ensure_running", "list_machines", "restart", "start", "stop"]

IDLE_EXIT_S = 1800.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0


def ensure_running(machine: str | None = None, on_notice: Callable[[str], None] | None = None) -> None:
    """Start the default machine if it does not run; it ends after 30 minutes without clients and processes.

    Machines of other names, which may be misspelt, are only started again after a crash.

    Args:
        machine: its name, None for NEURONTOOLS_MACHINE.
        on_notice: called with a message if a machine was started.

    Raises:
        NoMachineError: it does not run, and it is not the default machine, NEURONTOOLS_AUTOSTART=0 forbids starting it,
            or the runtime directory is another user's.
        DaemonError: it could not be started.
    """
    name = check_name(env.machine() if machine is None else machine)
    if _is_running(name):
        return
    if not env.autostart() or paths.owner() != os.getuid():
        raise no_machine_error(name)
    if name != env.DEFAULT_MACHINE and not has_crashed(name):
        raise _other_machine_error(name)
    info = start(StartOptions(machine=name, idle_exit_s=IDLE_EXIT_S, resume=True))
    if on_notice is not None and not info.was_running:
        on_notice(
            f"started machine {name!r} ({info.instance_type}); it ends after 30 minutes without clients"
        )


def _other_machine_error(machine: str) -> NoMachineError:
    """Return the error for a machine that does not run, with the running one of a similar name."""
    error = no_machine_error(machine)
    near = suggest(machine, [info.machine for info in list_machines()])
    return NoMachineError(error.message, f"did you mean {near!r}?") if near else error


def start(options: StartOptions) -> DaemonInfo:
    """Start a machine, or find it running.

    Returns:
        The daemon's facts, `was_running` set if it ran already. With `foreground` after the daemon's exit.

    Raises:
        UsageError: the name is not valid, or a list of devices or modes is not.
        UnknownInstanceError: no such instance type.
        NeuronToolsError: the type does not offer that LNC, device or UltraServer, or this is not Linux.
        DaemonError: the name belongs to a machine of another configuration, the runtime directory is another user's, or the
            daemon speaks another protocol version, does not answer or could not start.
    """
    _check_system()
    check_name(options.machine)
    _check_ours()
    if options.instance_type is not None:
        from neurontools.machine.effective_config import resolve_config
        from neurontools.machine.instances import catalogue

        resolve_config(options, catalogue.instance_type(options.instance_type), None)
    with _start_lock(options.machine) as unlock:
        if _is_running(options.machine):
            _check_version(options.machine)
            return _check_same(options, find(options.machine))
        if options.foreground:
            return _serve_here(options, unlock)
        return _spawn(options)


def stop(machine: str | None = None, *, force: bool = False) -> DaemonInfo:
    """Stop a machine and return the facts of its daemon after its exit.

    Its processes keep running; a new daemon of the same type adopts them.

    Args:
        machine: its name, None for NEURONTOOLS_MACHINE.
        force: stop it even if processes hold cores, and kill a daemon that does not answer.

    Raises:
        NoMachineError: it does not run.
        DaemonError: processes hold cores and `force` is not set, or the machine is another user's.
        NeuronToolsError: another user can write its directory.
    """
    name = check_name(env.machine() if machine is None else machine)
    info = find(name)
    with _daemon_pidfd(info) as pidfd:
        may_kill = force and is_listening(info.pid, name)
        if not force:
            _ask_to_stop(name)
        elif may_kill:
            _signal(pidfd, signal.SIGTERM, info)
        if not _has_ended(pidfd):
            if not force:
                raise DaemonError(f"neurond of machine {name!r} did not exit", "neurond stop --force")
            if not may_kill:
                raise DaemonError(
                    f"cannot stop machine {name!r}: process {info.pid} does not listen on its socket",
                    f"if that process is neurond, end it: kill {info.pid}",
                )
            _signal(pidfd, signal.SIGKILL, info)
            _has_ended(pidfd)
    return info


def restart(machine: str | None = None) -> DaemonInfo:
    """Replace the daemon of a machine, of any version; processes keep their cores.

    Raises:
        NoMachineError: it does not run.
        DaemonError: the runtime directory is another user's, or the new daemon could not start.
    """
    from neurontools.machine.effective_config import ALL

    _check_ours()
    info = stop(machine, force=True)
    return start(
        StartOptions(
            machine=info.machine,
            instance_type=info.instance_type,
            lnc=info.lnc,
            neighbours=info.neighbours,
            visible_devices=ALL if info.visible_devices is None else core_ranges(info.visible_devices),
            ultraserver_mode=None
            if info.ultraserver_modes is None
            else ",".join(map(str, info.ultraserver_modes)),
            ultraserver_node=info.ultraserver_node,
            idle_exit_s=info.idle_exit_s,
            parent_pid=info.parent_pid,
        )
    )


def find(machine: str) -> DaemonInfo:
    """Return the running daemon of a machine.

    Raises:
        NoMachineError: there is none.
        DaemonError: the runtime directory is closed to this user.
        NeuronToolsError: another user can write the machine's directory.
    """
    info = _running(machine)
    if info is None and request_recovery(paths.machine_dir(machine)):
        info = _running(machine)
    if info is None:
        root = paths.runtime_dir()
        if os.path.isdir(root) and not os.access(root, os.X_OK):
            raise DaemonError(f"cannot read {root}: Permission denied", denied_hint())
        raise no_machine_error(machine)
    return info


def has_crashed(machine: str) -> bool:
    """Return whether a machine's daemon died without ending: a daemon that is stopped takes its record along."""
    try:
        return os.path.exists(f"{paths.machine_dir(machine)}/{RECORD}") and _running(machine) is None
    except NeuronToolsError:
        return False  # the directory is another user's


def list_machines() -> tuple[DaemonInfo, ...]:
    """Return the running daemons of this user, or of the one who shares the runtime directory, by machine name."""
    try:
        names = sorted(os.listdir(paths.runtime_dir()))
    except OSError:
        return ()
    found = []
    for name in names:
        with suppress(NeuronToolsError):  # another user's directory
            found.append(_running(name))
    return tuple(info for info in found if info is not None)


def _is_running(machine: str) -> bool:
    if is_answering(machine):
        return True
    return request_recovery(paths.machine_dir(machine)) and is_answering(machine)


def _running(machine: str) -> DaemonInfo | None:
    info = read_record(machine)
    if info is None:
        return None
    alive = is_alive(ProcessKey(info.pid, info.start_ticks)) or is_hidden(info.pid)
    return info if alive and info.boot_id == read_boot_id() else None


def _check_version(machine: str) -> None:
    connection = SyncConnection(machine)
    try:
        connection.hello()
    finally:
        connection.close()


def _check_same(options: StartOptions, info: DaemonInfo) -> DaemonInfo:
    from msgspec.structs import replace

    from neurontools.machine.effective_config import config_conflict, resolve_config
    from neurontools.machine.instances import catalogue

    instance = catalogue.instance_type(options.instance_type or info.instance_type)
    wanted = resolve_config(options, instance, info.config)
    if wanted != info.config:
        raise config_conflict(info.machine, info.config, wanted)
    return replace(info, was_running=True)


@contextmanager
def _start_lock(machine: str) -> Iterator[Callable[[], None]]:
    directory = MachineDirectory(machine)
    with ExitStack() as stack:
        while True:
            directory.make()
            try:
                descriptor = stack.enter_context(file_lock(f"{directory.path}/{LOCK}"))
            except FileNotFoundError:
                continue  # the directory was deleted while this process waited
            break
        yield lambda: unlock(descriptor)


def _check_system() -> None:
    system = os.uname().sysname
    if system != "Linux":
        raise NeuronToolsError(
            f"simulated machines need Linux, this is {system}",
            "use WSL2 or a container; see 'neurontools help containers'",
        )
    if not shows_this_process():
        raise NeuronToolsError(
            "/proc is not mounted or shows another pid namespace, and machines identify processes by it",
            "mount it: mount -t proc proc /proc (unshare: --mount-proc)",
        )


def _serve_here(options: StartOptions, on_running: Callable[[], None]) -> DaemonInfo:
    from neurontools.machine.daemon.daemon import serve

    infos: list[DaemonInfo] = []

    def ready(info: DaemonInfo) -> None:
        infos.append(info)
        on_running()

    serve(options, ready)
    return infos[0]


def _spawn(options: StartOptions) -> DaemonInfo:
    read_fd, write_fd = os.pipe()
    log = MachineDirectory(options.machine).log
    try:
        with open(
            os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab"
        ) as log_file:
            _start_process(options, write_fd, log_file)
        os.close(write_fd)
        write_fd = -1
        return _handshake(read_fd, options.machine, log)
    finally:
        os.close(read_fd)
        if write_fd >= 0:
            os.close(write_fd)


def _start_process(options: StartOptions, ready_fd: int, log_file: BinaryIO) -> None:
    """Start the daemon's process in a session of its own, and return when it has detached itself."""
    import subprocess

    subprocess.run(
        [sys.executable, "-P", "-m", "neurontools.machine.daemon", *_arguments(options, ready_fd)],
        stdin=subprocess.DEVNULL,
        stdout=log_file,
        stderr=log_file,
        pass_fds=(ready_fd,),
        start_new_session=True,
        env=_environment(),
        check=False,
    )


def _environment() -> dict[str, str]:
    values = {name: value for name, value in os.environ.items() if name not in env.FOR_CHILDREN}
    if env.runtime_dir():
        values[env.RUNTIME_DIR] = paths.runtime_dir()  # the daemon changes its working directory
    return values


def _arguments(options: StartOptions, ready_fd: int) -> list[str]:
    return [options.machine, codec.encode(options), str(ready_fd)]


def _handshake(read_fd: int, machine: str, log: str) -> DaemonInfo:
    received = b""
    while b"\n" not in received:
        if not is_readable(read_fd, _START_TIMEOUT_S):
            raise DaemonError(f"neurond of machine {machine!r} did not become ready", f"see {log}")
        data = os.read(read_fd, 1 << 16)
        if not data:
            raise DaemonError(f"neurond of machine {machine!r} ended before it was ready", f"see {log}")
        received += data
    message: dict[str, Any] = json.loads(received)
    if "ready" in message:
        return codec.convert(message["ready"], DaemonInfo)
    kinds = {UsageError.exit_code: UsageError, DaemonError.exit_code: DaemonError}
    raise kinds.get(message["exit_code"], NeuronToolsError)(message["error"], message["remedy"])


def _check_ours() -> None:
    owner = paths.owner()
    if owner != os.getuid():
        raise DaemonError(
            f"the machines in {paths.runtime_dir()} belong to uid {owner}, who alone can start them",
            f"unset {env.RUNTIME_DIR} to use your own machines",
        )


def _signal(pidfd: int, number: signal.Signals, info: DaemonInfo) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise DaemonError(
            f"only the owner of machine {info.machine!r}, uid {paths.owner()}, and root may stop it",
            "ask its owner",
        ) from None


def _ask_to_stop(machine: str) -> None:
    from neurontools.machine.requests import Empty, StopRequest

    connection = SyncConnection(machine)
    try:
        connection.hello()
        connection.request(StopRequest(), Empty)
    except BrokenConnectionError as error:
        raise connection_closed_error(machine) from error
    finally:
        connection.close()


@contextmanager
def _daemon_pidfd(info: DaemonInfo) -> Iterator[int]:
    try:
        descriptor = open_pidfd(ProcessKey(info.pid, info.start_ticks))
    except ProcessLookupError:
        raise no_machine_error(info.machine) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_ended(pidfd: int) -> bool:
    return is_readable(pidfd, _STOP_TIMEOUT_S)
