"""Passes events to the simulated machine, and its effects to pages, records and watched processes. No sockets."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from neurontools.base.files import remove_quietly
from neurontools.base.text import plural
from neurontools.machine.daemon.exit_watcher import ExecDetector, ExitWatcher, PageLimits, is_replaced
from neurontools.machine.daemon.fault_service import FaultService, ProfileRequests
from neurontools.machine.daemon.telemetry import SnapshotBuilder, Telemetry
from neurontools.machine.devices import Layout, device_count
from neurontools.machine.events import (
    Adopt,
    Changed,
    Effect,
    Event,
    FaultEvent,
    HardwareEvent,
    Joined,
    Leave,
    Process,
    Register,
    Reserve,
)
from neurontools.machine.journal import PAGE, RECORD, RecordWriter, file_name, load_record
from neurontools.machine.machine_names import format_cores
from neurontools.machine.pages.page import (
    PageError,
    PageFullError,
    PageIdentity,
    create_page,
    create_private_page,
)
from neurontools.machine.processes import ProcessKey, is_alive
from neurontools.machine.protocol import RefusedError
from neurontools.machine.state import MachineState

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Collection, Sequence

    from neurontools.machine.directory import KernelLog
    from neurontools.machine.faults.registry import FaultRecord
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.journal import Definition
    from neurontools.machine.requests import ResetDevice
    from neurontools.machine.snapshot import History, Snapshot

log = logging.getLogger("neurond")


class MachineService:
    """One machine: its state, and the pages and records of its processes.

    Args:
        definition: the machine's configuration.
        instance: its instance type.
        history: counters of former daemons.
        faults: the faults of a former daemon.
        pages_dir: directory of pages and records.
        kernel_log: for the driver's lines.
        boot: id of this boot.
        loop: runs timers and watches processes.
        on_change: called after a change that the journal or the daemon's idle timer depends on; with True when the
            journal must be written before the client gets its answer.
        on_lost_directory: creates the pages directory again; called when it is missing.
    """

    def __init__(
        self,
        definition: Definition,
        instance: InstanceType,
        history: History,
        faults: FaultRecord,
        pages_dir: str,
        kernel_log: KernelLog,
        boot: str,
        loop: AbstractEventLoop,
        on_change: Callable[[bool], None],
        on_lost_directory: Callable[[], None],
    ) -> None:
        self.instance = instance
        self.definition = definition
        self._snapshots = SnapshotBuilder(definition, instance)
        layout = Layout(
            device_count(definition.config, instance),
            instance.cores_per_device(definition.lnc),
            instance.device.memory_bytes,
            self._snapshots.links,
        )
        self.machine = MachineState(layout, history, faults)
        self._pages_dir = pages_dir
        self._boot = boot
        self._on_change = on_change
        self._on_lost_directory = on_lost_directory
        self._telemetry: dict[ProcessKey, Telemetry] = {}
        self._exited_keys: dict[ProcessKey, None] = {}
        self._records = RecordWriter(pages_dir, boot, loop)
        self._exits = ExitWatcher(loop, self._on_exit)
        self.exec_detector = ExecDetector(loop, self.machine.processes.get, self._on_exec)
        self.page_limits = PageLimits(loop, self.machine.processes.__contains__, self._on_page_growth)
        self._faults = FaultService(self.machine, self._telemetry, kernel_log, loop, on_change)
        self.profiles = ProfileRequests(self._telemetry)

    def register(self, event: Register) -> tuple[Process, int]:
        """Put a process on the machine; return it with the descriptor of its page, which stays the service's.

        Raises:
            RefusedError: the cores are not free, or the request is not valid.
            PageError: the page cannot be created.
            ProcessLookupError: the process has exited.
        """
        try:
            process, page_fd = self._admit(event)
        except RefusedError:
            self._on_change(False)
            raise
        log.info("process %d (%r) holds %s", process.key.pid, process.command, format_cores(process.cores))
        self._on_change(True)
        return process, page_fd

    def register_synthetic(self, events: Sequence[Register]) -> list[tuple[Process, int] | RefusedError]:
        """Put synthetic processes of one player on the machine, as `register` does; return each or why it was refused.

        Raises:
            PageError: a page cannot be created; the processes before it stay registered.
            ProcessLookupError: the player has exited.
        """
        admitted: list[tuple[Process, int] | RefusedError] = []
        try:
            for event in events:
                try:
                    admitted.append(self._admit(event))
                except RefusedError as refused:
                    admitted.append(refused)
        finally:
            self._on_change(True)
        added = sum(not isinstance(answer, RefusedError) for answer in admitted)
        log.info("a scenario added %s", plural(added, "synthetic process", "synthetic processes"))
        return admitted

    def synthetic_of(self, player: ProcessKey) -> dict[int, Process]:
        """Return the synthetic processes of a player by pid."""
        processes = (self.machine.processes[key] for key in self._exits.watched_with(player))
        return {process.key.pid: process for process in processes if process.player == player}

    def leave(self, key: ProcessKey, why: str, *, at_once: bool = False) -> tuple[int, ...]:
        """Take a process off the machine; return the cores that are free now.

        Args:
            key: the process.
            why: for the log.
            at_once: whether its files must be deleted when this returns.
        """
        telemetry = self._telemetry.pop(key, None)
        if telemetry is None:
            return ()
        self._exits.unwatch(key)
        self.exec_detector.discard(key)
        self._count_and_close(telemetry)
        self._faults.left(key)
        self.profiles.left(key)
        level = logging.INFO if telemetry.process.player is None else logging.DEBUG
        log.log(level, "process %d %s, cores %s are free", key.pid, why, telemetry.process.cores)
        self._on_change(at_once)
        return telemetry.process.cores

    def reserve(self, event: Reserve) -> None:
        """Set the device memory that a process holds for a core.

        Raises:
            RefusedError: the device is full, or the request is not valid.
        """
        try:
            process = _process_of(self._handle(event))
        except RefusedError:
            self._on_change(False)
            raise
        self._telemetry[process.key].process = process
        self._records.save(process)

    def change_hardware(self, event: HardwareEvent) -> None:
        """Count memory errors of a device, or set its counters to zero.

        Raises:
            RefusedError: the request is not valid.
        """
        self._handle(event)
        self._on_change(False)

    def change_faults(self, event: FaultEvent | ResetDevice) -> Effect:
        """Pass an event about faults to the machine and return the effect that answers it.

        Raises:
            RefusedError: the request is not valid, or a device is in use.
        """
        return self._faults.handle(event)

    @property
    def exited(self) -> tuple[ProcessKey, ...]:
        """The exited processes that are counted and whose files still exist: see `purge`."""
        return tuple(self._exited_keys)

    def purge(self) -> None:
        """Delete the files of exited processes, once the journal counts them.

        So whenever a daemon is killed, the next one finds each exited process either in the journal or as a page, and
        counts it once.
        """
        for key in self._exited_keys:
            self._records.remove(key)
        self._exited_keys.clear()

    def adopt(self, counted: Collection[ProcessKey]) -> None:
        """Take over the living processes of a former daemon, count the exited ones, and delete stale files.

        Args:
            counted: exited processes that the former daemon counted itself; their files may still exist.
        """
        names = _names(self._pages_dir)
        living = []
        for process in _recorded_processes(self._pages_dir, self._boot):
            if process.key in counted:
                continue
            if is_alive(process.ends_with) and not is_replaced(process):
                living.append(process)
            else:
                self._count_exited(process)
        for process in sorted(living, key=lambda process: process.registered_ns):
            self._adopt(process)
        kept = {
            file_name(key, suffix)
            for key in (*self._telemetry, *self._exited_keys)
            for suffix in (PAGE, RECORD)
        }
        for name in set(names) - kept:
            log.info("deleting stale %s", name)
            remove_quietly(f"{self._pages_dir}/{name}")
        self._faults.adopted()
        self.profiles.adopted()

    def rewrite_records(self) -> None:
        """Write every record again, after the directory was lost."""
        for telemetry in self._telemetry.values():
            self._records.save(telemetry.process)

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        return self._snapshots.snapshot(
            self.machine, self._telemetry.values(), time.monotonic_ns(), time.time()
        )

    def encoded_snapshot(self) -> str:
        """Return the current snapshot as JSON text."""
        return self._snapshots.encoded(
            self.machine, self._telemetry.values(), time.monotonic_ns(), time.time()
        )

    def close(self) -> None:
        """Close every descriptor. Pages and records stay for the next daemon."""
        for telemetry in self._telemetry.values():
            telemetry.close()
        self._exits.close()
        self._records.close()
        self.exec_detector.close()
        self.page_limits.close()
        self._faults.close()
        self._telemetry.clear()

    def _handle(self, event: Event) -> tuple[Effect, ...]:
        return self.machine.handle(event, time.monotonic_ns())

    def _admit(self, event: Register) -> tuple[Process, int]:
        process = _process_of(self._handle(event))
        try:
            self._exits.watch(process.key, process.ends_with)
            page_fd = self._create_page(process)
        except (PageError, OSError):
            self._exits.unwatch(process.key)
            self._handle(Leave(process.key))
            raise
        self._watch(process, page_fd)
        self._records.save(process)
        self._faults.joined(process.key)
        return process, page_fd

    def _on_exit(self, keys: tuple[ProcessKey, ...]) -> None:
        if keys and self.machine.processes[keys[0]].player is not None:
            log.info(
                "a scenario ended with its %s", plural(len(keys), "synthetic process", "synthetic processes")
            )
        for key in keys:
            self.leave(key, "exited")

    def _on_page_growth(self, key: ProcessKey) -> None:
        self.leave(key, "wrote beyond its telemetry page")

    def _on_exec(self, key: ProcessKey) -> None:
        self.leave(key, "became another program")

    def _create_page(self, process: Process) -> int:
        identity = PageIdentity(
            machine=self.definition.machine,
            pid=process.key.pid,
            start_ticks=process.key.start_ticks,
            boot_id=self._boot,
            uid=process.uid,
            tag=process.tag,
            command=process.command,
            runtime_version=process.runtime_version,
            registered_ns=process.registered_ns,
        )
        if process.key in self._exited_keys:
            self._on_change(True)  # purges the files of its earlier registration
            self._exited_keys.pop(
                process.key, None
            )  # not purged on a full disk: the new page takes its place
        path = self._records.path(process.key, PAGE)
        if not os.path.isdir(self._pages_dir):
            self._on_lost_directory()
        remove_quietly(path)
        try:
            return create_page(path, identity, process.cores)
        except PageFullError as error:
            page_fd = create_private_page(identity, process.cores)
            log.warning("process %d gets a private page in memory: %s", process.key.pid, error.message)
            return page_fd

    def _adopt(self, process: Process) -> None:
        try:
            self._exits.watch(process.key, process.ends_with)
        except ProcessLookupError:
            self._count_exited(process)  # it exited just now
            return
        except OSError as error:
            log.error("process %d can't be watched: %s", process.key.pid, error)  # noqa: TRY400  no traceback wanted
            return
        try:
            self._handle_adopt(process)
        except RefusedError as refused:
            self._exits.unwatch(process.key)
            log.warning("process %d can't be adopted: %s", process.key.pid, refused)
            return
        self._watch(process, self._open_page(process))
        self.exec_detector.add(process.key)
        log.info("process %d (%r) keeps %s", process.key.pid, process.command, format_cores(process.cores))

    def _open_page(self, process: Process) -> int | None:
        try:
            return os.open(self._records.path(process.key, PAGE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            log.warning("the page of process %d is lost: %s", process.key.pid, error.strerror)
            return None

    def _count_exited(self, process: Process) -> None:
        telemetry = Telemetry(process, self._open_page(process))
        try:
            self._handle_adopt(process)
        except RefusedError as refused:
            log.warning("exited process %d can't be counted: %s", process.key.pid, refused)
            telemetry.close()
            return
        self._count_and_close(telemetry)
        log.info("process %d (%r) exited without a daemon", process.key.pid, process.command)

    def _count_and_close(self, telemetry: Telemetry) -> None:
        key = telemetry.process.key
        telemetry.take_last(time.monotonic_ns())
        self._handle(Leave(key, telemetry.totals(), telemetry.core_totals()))
        telemetry.close()
        self._exited_keys[key] = None

    def _handle_adopt(self, process: Process) -> None:
        _process_of(self._handle(Adopt(process)))

    def _watch(self, process: Process, page_fd: int | None) -> None:
        if page_fd is not None and process.player is None:
            self.page_limits.add(process.key, process.uid, page_fd)
        self._telemetry[process.key] = telemetry = Telemetry(process, page_fd)
        telemetry.refresh(time.monotonic_ns())


def living_processes(pages_dir: str, boot: str) -> list[Process]:
    """Return the processes whose records are in a directory and that live."""
    return [process for process in _recorded_processes(pages_dir, boot) if is_alive(process.ends_with)]


def _recorded_processes(pages_dir: str, boot: str) -> list[Process]:
    found = []
    for name in _names(pages_dir):
        record = load_record(f"{pages_dir}/{name}") if name.endswith(RECORD) else None
        if record and record[1] == boot and name == file_name(record[0].key, RECORD):
            found.append(record[0])
    return found


def _names(pages_dir: str) -> list[str]:
    try:
        return os.listdir(pages_dir)
    except OSError:
        return []


def _process_of(effects: tuple[Effect, ...]) -> Process:
    (effect,) = effects
    assert isinstance(effect, Joined | Changed)
    return effect.process
