"""Starting, stopping and listing daemons. Starting is a handshake: the daemon reports on a pipe, nobody polls."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neurontools import env, paths
from neurontools.errors import DaemonError, NeuronToolsError, UsageError
from neurontools.machine import wire
from neurontools.machine.client_errors import no_machine
from neurontools.machine.directory import LOCK, RECORD, MachineDirectory, knock
from neurontools.machine.info import DaemonInfo, StartOptions, info_from_json
from neurontools.machine.naming import check_name, core_ranges
from neurontools.machine.processes import ProcessKey, boot_id, is_alive, is_hidden, is_readable, open_pidfd
from neurontools.machine.sharing import denied_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DaemonInfo", "StartOptions", "ensure_running", "list_machines", "restart", "start", "stop"]

IDLE_EXIT_S = 1800.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0


def ensure_running(machine: str | None = None, on_notice: Callable[[str], None] | None = None) -> None:
    """Start a machine if it does not run; it ends by itself after 30 minutes without clients and processes.

    Args:
        machine: its name, None for the one that NEURONTOOLS_MACHINE names.
        on_notice: gets a line for a person when something was started.

    Raises:
        NoMachineError: it does not run, and NEURONTOOLS_AUTOSTART=0 forbids starting it or the runtime directory
            is another user's.
        DaemonError: it could not be started.
    """
    name = check_name(env.machine() if machine is None else machine)
    if _is_running(name):
        return
    if not env.autostart() or paths.owner() != os.getuid():
        raise no_machine(name)
    info = start(StartOptions(machine=name, idle_exit_s=IDLE_EXIT_S, resume=True))
    if on_notice is not None and not info.was_running:
        on_notice(
            f"started machine {name!r} ({info.instance_type}); it ends after 30 minutes without clients"
        )


def start(options: StartOptions) -> DaemonInfo:
    """Start a machine, or find it running.

    Returns:
        The daemon's facts, `was_running` set if it ran already. With `foreground` after the daemon's end.

    Raises:
        UsageError: no machine can have that name, or a list of devices or modes makes no sense.
        UnknownInstanceError: no such instance type.
        NeuronToolsError: the type does not offer that LNC, device or UltraServer, or this is no Linux.
        DaemonError: the name belongs to another kind of machine, the runtime directory is another user's, or the
            daemon could not start.
    """
    _check_system()
    check_name(options.machine)
    _check_ours()
    if options.instance_type is not None:
        from neurontools.machine.instances import catalogue
        from neurontools.machine.kind_choice import kind_of

        kind_of(options, catalogue.instance_type(options.instance_type), None)
    with _start_lock(options.machine) as unlock:
        if _is_running(options.machine):
            return _same(options, find(options.machine))
        if options.foreground:
            return _serve_here(options, unlock)
        return _spawn(options)


def stop(machine: str | None = None, *, force: bool = False) -> DaemonInfo:
    """Stop a machine and return what it was when it has ended.

    Its processes go on; a new daemon of the same type finds them again.

    Args:
        machine: its name, None for the one that NEURONTOOLS_MACHINE names.
        force: stop it even if processes hold cores, and kill a daemon that does not answer.

    Raises:
        NoMachineError: it does not run.
        DaemonError: processes hold cores and `force` is not set, or the machine is another user's.
    """
    name = check_name(env.machine() if machine is None else machine)
    info = find(name)
    with _daemon_pidfd(info) as pidfd:
        if not force:
            _ask_to_stop(name)
        else:
            _signal(pidfd, signal.SIGTERM, info)
        if not _has_ended(pidfd):
            if not force:
                raise DaemonError(f"neurond of machine {name!r} does not end", "neurond stop --force")
            _signal(pidfd, signal.SIGKILL, info)
            _has_ended(pidfd)
    return info


def restart(machine: str | None = None) -> DaemonInfo:
    """Replace the daemon of a machine, whatever version it is of; processes keep their cores.

    Raises:
        NoMachineError: it does not run.
        DaemonError: the runtime directory is another user's, or the new daemon could not start.
    """
    from neurontools.machine.kind_choice import ALL

    _check_ours()
    info = stop(machine, force=True)
    return start(
        StartOptions(
            machine=info.machine,
            instance_type=info.instance_type,
            lnc=info.lnc,
            neighbours=info.neighbours,
            visible_devices=ALL if info.visible_devices is None else core_ranges(info.visible_devices),
            ultraserver_mode=_listed(info.ultraserver_modes),
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
    """
    info = _record(f"{paths.machine_dir(machine)}/{RECORD}")
    if info is None and knock(paths.machine_dir(machine)):
        info = _record(f"{paths.machine_dir(machine)}/{RECORD}")
    if info is None:
        root = paths.runtime_dir()
        if os.path.isdir(root) and not os.access(root, os.X_OK):
            raise DaemonError(f"cannot look into {root}: Permission denied", denied_hint())
        raise no_machine(machine)
    return info


def has_crashed(machine: str) -> bool:
    """Return whether a machine's daemon died without ending: a daemon that is stopped takes its record along."""
    path = f"{paths.machine_dir(machine)}/{RECORD}"
    return os.path.exists(path) and _record(path) is None


def list_machines() -> tuple[DaemonInfo, ...]:
    """Return the running daemons, by machine name."""
    root = paths.runtime_dir()
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return ()
    found = (_record(f"{root}/{name}/{RECORD}") for name in names)
    return tuple(info for info in found if info is not None)


def _is_running(machine: str) -> bool:
    if wire.is_answering(machine):
        return True
    return knock(paths.machine_dir(machine)) and wire.is_answering(machine)


def _record(path: str) -> DaemonInfo | None:
    try:
        with open(path, encoding="utf-8") as file:
            info = info_from_json(json.load(file))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    alive = is_alive(ProcessKey(info.pid, info.start_ticks)) or is_hidden(info.pid)
    return info if alive and info.boot_id == boot_id() else None


def _same(options: StartOptions, info: DaemonInfo) -> DaemonInfo:
    from dataclasses import replace

    from neurontools.machine.definition import other_type
    from neurontools.machine.instances import catalogue
    from neurontools.machine.kind_choice import kind_of

    instance = catalogue.instance_type(options.instance_type or info.instance_type)
    wanted = kind_of(options, instance, info.kind)
    if wanted != info.kind:
        raise other_type(info.machine, info.kind, wanted)
    return replace(info, was_running=True)


def _listed(numbers: tuple[int, ...] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))


@contextmanager
def _start_lock(machine: str) -> Iterator[Callable[[], None]]:
    directory = MachineDirectory(machine)
    path = f"{directory.path}/{LOCK}"
    while True:
        directory.make()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_file_of(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _check_system() -> None:
    system = os.uname().sysname
    if system != "Linux":
        raise NeuronToolsError(
            f"simulated machines need Linux, this is {system}",
            "use WSL2 or a container; see 'neurontools help containers'",
        )


def _is_file_of(descriptor: int, path: str) -> bool:
    # The directory may have been deleted, and made again by others, while we waited for the lock.
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _serve_here(options: StartOptions, on_running: Callable[[], None]) -> DaemonInfo:
    from neurontools.machine.daemon.process import serve

    infos: list[DaemonInfo] = []

    def ready(info: DaemonInfo) -> None:
        infos.append(info)
        on_running()

    serve(options, ready)
    return infos[0]


def _spawn(options: StartOptions) -> DaemonInfo:
    import subprocess

    read_fd, write_fd = os.pipe()
    log = MachineDirectory(options.machine).log
    try:
        with open(log, "ab") as log_file:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "neurontools.machine.daemon", *_arguments(options, write_fd)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=(write_fd,),
                start_new_session=True,
                env=_environment(),
            )
        os.close(write_fd)
        write_fd = -1
        child.wait()
        return _handshake(read_fd, options.machine, log)
    finally:
        os.close(read_fd)
        if write_fd >= 0:
            os.close(write_fd)


def _environment() -> dict[str, str]:
    values = {name: value for name, value in os.environ.items() if name not in env.FOR_CHILDREN}
    if env.runtime_dir():
        values[env.RUNTIME_DIR] = paths.runtime_dir()  # the daemon leaves our working directory
    return values


def _arguments(options: StartOptions, ready_fd: int) -> list[str]:
    from dataclasses import asdict

    return [options.machine, json.dumps(asdict(options)), str(ready_fd)]


def _handshake(read_fd: int, machine: str, log: str) -> DaemonInfo:
    received = b""
    while b"\n" not in received:
        if not is_readable(read_fd, _START_TIMEOUT_S):
            raise DaemonError(f"neurond of machine {machine!r} does not get ready", f"see {log}")
        data = os.read(read_fd, 1 << 16)
        if not data:
            raise DaemonError(f"neurond of machine {machine!r} ended before it was ready", f"see {log}")
        received += data
    message: dict[str, Any] = json.loads(received)
    if "ready" in message:
        return info_from_json(message["ready"])
    kinds = {UsageError.exit_code: UsageError, DaemonError.exit_code: DaemonError}
    raise kinds.get(message["exit_code"], NeuronToolsError)(message["error"], message["remedy"])


def _check_ours() -> None:
    owner = paths.owner()
    if owner != os.getuid():
        raise DaemonError(
            f"the machines in {paths.runtime_dir()} are uid {owner}'s, who alone can start them",
            f"unset {env.RUNTIME_DIR} for machines of your own",
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
    connection = wire.Wire(machine)
    try:
        connection.hello("neurond")
        connection.call("stop", {"force": False})
    except ConnectionError as error:
        raise DaemonError(f"neurond of machine {machine!r} ended", "neurond status") from error
    finally:
        connection.close()


@contextmanager
def _daemon_pidfd(info: DaemonInfo) -> Iterator[int]:
    try:
        descriptor = open_pidfd(ProcessKey(info.pid, info.start_ticks))
    except ProcessLookupError:
        raise no_machine(info.machine) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_ended(pidfd: int) -> bool:
    return is_readable(pidfd, _STOP_TIMEOUT_S)
