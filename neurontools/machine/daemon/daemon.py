"""The daemon of one machine: its process, start from the journal, serving, exit.

It starts its own session, and reports the start by one line of JSON on an inherited pipe: the daemon's facts, or
an error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import logging.handlers
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from neurontools import __version__
from neurontools.base.files import TEMPORARY_PREFIX, remove_quietly
from neurontools.base.procfs import read_boot_id, read_start_ticks
from neurontools.base.text import printable, printable_lines
from neurontools.errors import NeuronToolsError
from neurontools.machine import codec, processes
from neurontools.machine.daemon.rpc import RpcHandler, load_renderers
from neurontools.machine.daemon.server import Server
from neurontools.machine.daemon.service import MachineService, living_processes
from neurontools.machine.directory import KernelLog, MachineDirectory, open_recovery_socket
from neurontools.machine.effective_config import PreviousRun, resolve
from neurontools.machine.instances import catalogue
from neurontools.machine.journal import RETRY_S, Journal, JournalWriter, load_journal
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.processes import peer_of
from neurontools.machine.protocol import PROTOCOL_VERSION
from neurontools.machine.sharing import group_name

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence


log = logging.getLogger("neurond")

_SYNC_DELAY_S = 0.5


class Daemon:
    """One machine's daemon.

    Args:
        options: the machine.
        on_ready: called when clients can connect.
    """

    def __init__(self, options: StartOptions, on_ready: Callable[[DaemonInfo], None]) -> None:
        self._options = options
        self._on_ready = on_ready
        self._directory = MachineDirectory(options.machine)
        self._boot = read_boot_id()
        self._end = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._journal_timer: asyncio.TimerHandle | None = None
        self._journal_due = False
        self._journal_failed = False
        self._journal = JournalWriter(self._directory.journal)
        self._parent_gone = False

    async def run(self) -> None:
        """Serve until the daemon is stopped or ends by itself.

        Raises:
            NeuronToolsError: the machine cannot be created, or is already running.
        """
        self._loop = asyncio.get_running_loop()
        _raise_descriptor_limit()
        self._directory.make()
        recovery_socket = open_recovery_socket(self._options.machine, self._directory.path)
        try:
            await self._serve(recovery_socket)
        finally:
            if recovery_socket is not None:
                self._loop.remove_reader(recovery_socket.fileno())
                recovery_socket.close()

    def restore(self) -> None:
        """Recreate the directory, the socket and the records if they were deleted or damaged."""
        if self._directory.is_whole():
            return
        try:
            self._directory.make()
            for handler in logging.getLogger().handlers:
                handler.close()  # the next line opens its file again
            self._listen()
            self._service.rewrite_records()
            self._save_journal()
            log.warning("%s was deleted or damaged; it was restored", self._directory.path)
        except (NeuronToolsError, OSError) as error:
            log.error("cannot restore %s: %s", self._directory.path, error)  # noqa: TRY400  no traceback wanted

    async def _serve(self, recovery_socket: socket.socket | None) -> None:
        self._directory.free_socket()
        for path in (self._directory.state, self._directory.path):
            _remove_temporaries(path)
        previous = self._previous_run()
        definition = self._definition = resolve(self._options, previous)
        instance = catalogue.instance_type(definition.instance_type)
        self._service = MachineService(
            definition,
            instance,
            previous.history(definition),
            previous.faults(definition),
            self._directory.pages,
            KernelLog(self._directory.kernel_log),
            self._boot,
            self._loop,
            on_change=self._changed,
            on_lost_directory=self.restore,
        )
        parent_fd = self._watch_parent()
        handler = RpcHandler(
            self._service,
            self._directory.group,
            self._directory.socket,
            self._end.set,
            self._restart_idle_timer,
        )
        self._server = Server(self._loop, handler)
        try:
            self._service.adopt(previous.counted)
            self._listen()
            self._changed(at_once=True)
            self._handle_signals(recovery_socket)
            log.info(
                "machine %s (%s) is ready, pid %d", definition.machine, definition.instance_type, os.getpid()
            )
            self._on_ready(self.info())
            self._loop.call_soon(load_renderers)  # while the first client is on its way
            self._restart_idle_timer()
            await self._end.wait()
        finally:
            self._close(parent_fd)

    def info(self) -> DaemonInfo:
        """Return the content of neurond.json."""
        definition, layout = self._definition, self._service.machine.layout
        process = processes.this_process()
        return DaemonInfo(
            machine=definition.machine,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=self._boot,
            instance_type=definition.instance_type,
            lnc=definition.lnc,
            device_count=layout.device_count,
            core_count=layout.core_count,
            socket=self._directory.socket,
            log=self._directory.log,
            started_unix_s=definition.started_unix_s,
            idle_exit_s=definition.idle_exit_s,
            parent_pid=definition.parent.pid if definition.parent else None,
            protocol=PROTOCOL_VERSION,
            version=__version__,
            group=None if self._directory.group is None else group_name(self._directory.group),
            neighbours=definition.neighbours,
            visible_devices=definition.visible_devices,
            ultraserver_modes=definition.ultraserver_modes,
            ultraserver_node=definition.ultraserver_node,
        )

    def _previous_run(self) -> PreviousRun:
        living = living_processes(self._directory.pages, self._boot)
        inhabited = any(process.uses_device for process in living)
        return PreviousRun(load_journal(self._directory.journal), self._boot, inhabited)

    def _listen(self) -> None:
        try:
            os.unlink(self._directory.socket)
        except FileNotFoundError:
            pass
        try:
            self._server.listen(self._directory.socket, self._directory.socket_mode)
            self._directory.write_record(self.info())
        except OSError as error:
            raise NeuronToolsError(
                f"cannot listen on {self._directory.socket}: {error.strerror}",
                "set NEURONTOOLS_RUNTIME_DIR to another",
            ) from error

    def _handle_signals(self, recovery_socket: socket.socket | None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._end.set)
        self._loop.add_signal_handler(signal.SIGHUP, self.restore)
        if recovery_socket is not None:
            self._loop.add_reader(recovery_socket.fileno(), self._recover, recovery_socket)

    def _recover(self, recovery_socket: socket.socket) -> None:
        try:
            sock, _ = recovery_socket.accept()
        except OSError:
            return
        with sock:
            if peer_of(sock).uid == os.getuid():
                self.restore()
                with suppress(OSError):  # the client may have exited meanwhile
                    sock.send(b"\n")

    def _watch_parent(self) -> int | None:
        parent = self._definition.parent
        if parent is None:
            return None
        descriptor = processes.open_pidfd(parent)
        self._loop.add_reader(descriptor, self._parent_ended)
        return descriptor

    def _parent_ended(self) -> None:
        log.info("the process of this private machine exited")
        self._parent_gone = True
        self._end.set()

    def _changed(self, at_once: bool) -> None:
        self._restart_idle_timer()
        if self._journal_timer is None:
            self._journal_timer = self._loop.call_later(_SYNC_DELAY_S, self._save_journal)
        if at_once:
            self._write_journal(running=True, sync=False)
        elif not self._journal_due:
            self._journal_due = True
            self._loop.call_soon(self._write_soon)

    def _write_soon(self) -> None:
        # One write for all processes that ended together.
        self._journal_due = False
        self._write_journal(running=True, sync=False)

    def _restart_idle_timer(self) -> None:
        idle_exit_s = self._definition.idle_exit_s
        idle = not self._server.connections and not self._service.machine.processes
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if idle and idle_exit_s is not None:
            self._idle_timer = self._loop.call_later(idle_exit_s, self._end_idle)

    def _end_idle(self) -> None:
        log.info("no client for %.0f s", self._definition.idle_exit_s)
        self._end.set()

    def _save_journal(self, *, running: bool = True) -> None:
        if self._journal_timer is not None:
            self._journal_timer.cancel()
            self._journal_timer = None
        self._write_journal(running=running, sync=True)

    def _write_journal(self, *, running: bool, sync: bool) -> None:
        machine = self._service.machine
        journal = Journal(
            self._definition,
            self._boot,
            running,
            machine.history(),
            machine.faults.record(),
            self._service.exited,
        )
        try:
            self._journal.save(journal, sync=sync)
        except OSError as error:
            if not self._journal_failed:
                log.error("cannot write the journal: %s", error)  # noqa: TRY400  no traceback wanted
            self._journal_failed = True
            if self._journal_timer is None:
                self._journal_timer = self._loop.call_later(RETRY_S, self._save_journal)
            return
        self._journal_failed = False
        self._service.purge()

    def _close(self, parent_fd: int | None) -> None:
        log.info("machine %s ends", self._definition.machine)
        inhabited = any(process.uses_device for process in self._service.machine.processes.values())
        self._save_journal(running=False)
        self._journal.close()
        self._server.close()
        self._service.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if parent_fd is not None:
            self._loop.remove_reader(parent_fd)
            os.close(parent_fd)
        if self._parent_gone or (self._definition.parent is not None and not inhabited):
            self._directory.delete()
        else:
            self._directory.clean()


def _raise_descriptor_limit() -> None:
    # A client takes three descriptors: connection, page, pidfd.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("the descriptor limit can't be raised: %s", error)


def _remove_temporaries(directory: str) -> None:
    # `write_atomic` leaves these behind when its process is killed.
    for name in os.listdir(directory):
        pid = name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
        if name.startswith(TEMPORARY_PREFIX) and pid.isdecimal() and read_start_ticks(int(pid)) is None:
            remove_quietly(f"{directory}/{name}")


_LOG_BYTES = 1 << 20
_LOG_FILES = 2
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def serve(options: StartOptions, on_ready: Callable[[DaemonInfo], None]) -> None:
    """Run a machine's daemon in this process until it ends.

    Raises:
        NeuronToolsError: it could not start.
    """

    async def run() -> None:
        await Daemon(options, on_ready).run()

    os.umask(0o077)
    try:
        MachineDirectory(options.machine).make()
        _log_to_file(MachineDirectory(options.machine).log, foreground=options.foreground)
        asyncio.run(run())
    except OSError as error:
        raise NeuronToolsError(
            f"machine {options.machine!r} cannot start: {error}", "see 'neurond logs'"
        ) from error
    finally:
        logging.shutdown()


def main(argv: Sequence[str]) -> int:
    """Run the daemon's process and return its exit code.

    Args:
        argv: the machine's name (shown by ps), the options as JSON, the descriptor for the report.
    """
    _, options_json, ready_fd = argv
    options = codec.decode(options_json, StartOptions)
    if os.fork():
        os._exit(0)
    os.chdir("/")

    report = os.fdopen(int(ready_fd), "wb", buffering=0)

    def report_start(message: dict[str, object]) -> None:
        if report.closed:
            return  # the start was reported already
        try:
            with report:
                report.write(json.dumps(message).encode() + b"\n")
        except OSError:
            logging.getLogger("neurond").warning("the process that started the daemon did not wait")

    def ready(info: DaemonInfo) -> None:
        report_start({"ready": info.to_json()})
        gc.freeze()  # objects made so far live as long as the daemon
        gc.enable()

    gc.disable()
    try:
        serve(options, ready)
    except NeuronToolsError as error:
        report_start({"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code})
        return error.exit_code
    return 0


class _LogFormatter(logging.Formatter):
    """Shows names of clients so that a log in a terminal is harmless: one line each, only tracebacks have several."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class names it so
        """Return the line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  the base class names it so
        """Return the traceback."""
        return printable_lines(super().formatException(ei))


def _log_to_file(path: str, *, foreground: bool) -> None:
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(
            path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8", errors="backslashreplace"
        )
    ]
    if foreground:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(_LogFormatter(_LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
