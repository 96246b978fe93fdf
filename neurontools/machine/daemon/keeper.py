"""Carries events to the simulated machine and its effects away: pages, records, watched processes. No sockets."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from neurontools.machine.daemon import report
from neurontools.machine.daemon.fault_desk import FaultDesk
from neurontools.machine.daemon.lives import Lives
from neurontools.machine.daemon.records import PAGE, RECORD, Records, file_name, remove
from neurontools.machine.daemon.telemetry import Telemetry
from neurontools.machine.daemon.unattended import Unattended, is_replaced
from neurontools.machine.devices import device_count
from neurontools.machine.events import (
    Adopt,
    Allocate,
    Changed,
    CountHardware,
    Effect,
    Event,
    FaultEvent,
    Free,
    Joined,
    Layout,
    Leave,
    Process,
    Refusal,
    Refused,
    Register,
    ResetDevice,
    ResetHardware,
)
from neurontools.machine.journal import load_record
from neurontools.machine.pages.page import (
    PageError,
    PageFullError,
    PageIdentity,
    create_page,
    create_private_page,
)
from neurontools.machine.processes import ProcessKey, is_alive
from neurontools.machine.state import Machine

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Collection, Sequence

    from neurontools.machine.faults.book import FaultRecord
    from neurontools.machine.history import History
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.journal import Definition
    from neurontools.machine.kernel_log import KernelLog
    from neurontools.machine.snapshot import Snapshot

log = logging.getLogger("neurond")


class RefusedError(Exception):
    """The machine's rules refuse a request; `reason` says why."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Keeper:
    """Keeps one machine.

    Args:
        definition: what the machine is.
        instance: its instance type.
        history: what former daemons counted.
        faults: what went wrong with it under a former daemon.
        pages_dir: directory of pages and records.
        kernel_log: where the driver's lines go.
        boot: id of this boot.
        loop: tells when a watched process is gone.
        on_change: called after something changed that the journal or the daemon's life depends on; with True when
            the journal must tell it before the client hears of it.
        on_lost_directory: called when the pages directory is missing; makes it again.
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
        self._report = report.Report(definition, instance)
        layout = Layout(
            device_count(definition.kind, instance),
            instance.cores_per_device(definition.lnc),
            instance.device.memory_bytes,
            self._report.links,
        )
        self.machine = Machine(layout, history, faults)
        self._pages_dir = pages_dir
        self._boot = boot
        self._on_change = on_change
        self._on_lost_directory = on_lost_directory
        self._telemetry: dict[ProcessKey, Telemetry] = {}
        self._departed: dict[ProcessKey, None] = {}
        self._records = Records(pages_dir, boot, loop)
        self._lives = Lives(loop, self._ended)
        self.unattended = Unattended(loop, self.machine.processes.get, self._replaced)
        self._faults = FaultDesk(self.machine, self._telemetry, kernel_log, loop, on_change)

    def register(self, event: Register) -> tuple[Process, int]:
        """Put a process on the machine; return it with the descriptor of its page, which stays the keeper's.

        Raises:
            RefusedError: the cores are not free, or the request makes no sense.
            PageError: the page can't be made.
            ProcessLookupError: the process is gone.
        """
        try:
            process, page_fd = self._admit(event)
        except RefusedError:
            self._on_change(False)
            raise
        log.info("process %d (%r) holds cores %s", process.key.pid, process.command, process.cores)
        self._on_change(True)
        return process, page_fd

    def register_synthetic(self, events: Sequence[Register]) -> list[tuple[Process, int] | RefusedError]:
        """Put synthetic processes of one player on the machine, as `register` does, each or the reason why not.

        Raises:
            PageError: a page can't be made; those before it are registered all the same.
            ProcessLookupError: the player is gone.
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
        log.info("a player puts %d synthetic processes on the machine", len(admitted))
        return admitted

    def synthetic_of(self, player: ProcessKey) -> dict[int, Process]:
        """Return the synthetic processes of a player by pid."""
        processes = (self.machine.processes[key] for key in self._lives.tied_to(player))
        return {process.key.pid: process for process in processes if process.player == player}

    def leave(self, key: ProcessKey, why: str, *, at_once: bool = False) -> tuple[int, ...]:
        """Take a process off the machine; return the cores that are free now.

        Args:
            key: the process.
            why: for the log.
            at_once: whether its files are to be gone when this returns.
        """
        telemetry = self._telemetry.pop(key, None)
        if telemetry is None:
            return ()
        self._lives.untie(key)
        self.unattended.discard(key)
        self._count_and_close(telemetry)
        self._faults.left(key)
        level = logging.INFO if telemetry.process.player is None else logging.DEBUG
        log.log(level, "process %d %s, cores %s are free", key.pid, why, telemetry.process.cores)
        self._on_change(at_once)
        return telemetry.process.cores

    def reserve(self, event: Allocate | Free) -> int:
        """Reserve or give back device memory; return what the process holds on that core then.

        Raises:
            RefusedError: the memory is not there, or the request makes no sense.
        """
        try:
            process = _process_of(self._handle(event))
        except RefusedError:
            self._on_change(False)
            raise
        self._telemetry[process.key].process = process
        self._records.save(process)
        return process.reserved_on(event.core)

    def change_hardware(self, event: CountHardware | ResetHardware) -> None:
        """Count memory errors of a device, or set its counters to zero.

        Raises:
            RefusedError: the request makes no sense.
        """
        (effect,) = self._handle(event)
        if isinstance(effect, Refused):
            raise RefusedError(effect.reason)
        self._on_change(False)

    def change_faults(self, event: FaultEvent | ResetDevice) -> Effect:
        """Carry an event about faults to the machine and return the effect that answers it.

        Raises:
            RefusedError: the request makes no sense, or a device is in use.
        """
        effect = self._faults.handle(event)
        if isinstance(effect, Refused):
            raise RefusedError(effect.reason)
        return effect

    @property
    def departed(self) -> tuple[ProcessKey, ...]:
        """The processes that are counted as gone and whose files are still there: see `bury`."""
        return tuple(self._departed)

    def bury(self) -> None:
        """Delete the files of those that departed, once the journal counts them.

        Whatever moment a daemon is killed at, the next one finds each process that is gone either in the journal or
        as a page, and counts it once.
        """
        for key in self._departed:
            self._records.remove(key)
        self._departed.clear()

    def adopt(self, counted: Collection[ProcessKey]) -> None:
        """Take over the living processes of a former daemon, count the dead ones, and delete what is of no use.

        Args:
            counted: those that had left, which the former daemon counted itself; it may not have come to delete
                their files.
        """
        names = _names(self._pages_dir)
        living = []
        for process in _recorded_processes(self._pages_dir, self._boot):
            if process.key in counted:
                continue
            if is_alive(process.lives_with) and not is_replaced(process):
                living.append(process)
            else:
                self._count_dead(process)
        for process in sorted(living, key=lambda process: process.registered_ns):
            self._adopt(process)
        kept = {
            file_name(key, suffix) for key in (*self._telemetry, *self._departed) for suffix in (PAGE, RECORD)
        }
        for name in set(names) - kept:
            log.info("deleting stale %s", name)
            remove(f"{self._pages_dir}/{name}")
        self._faults.adopted()

    def rewrite_records(self) -> None:
        """Write every record again, after the directory was lost."""
        for telemetry in self._telemetry.values():
            self._records.save(telemetry.process)

    def snapshot(self) -> Snapshot:
        """Return the machine at this moment."""
        return self._report.snapshot(self.machine, self._telemetry.values(), report.now())

    def encoded_snapshot(self) -> str:
        """Return the machine at this moment as JSON text."""
        return self._report.encoded(self.machine, self._telemetry.values(), report.now())

    def close(self) -> None:
        """Close every descriptor. Pages and records stay for the next daemon."""
        for telemetry in self._telemetry.values():
            telemetry.close()
        self._lives.close()
        self._records.close()
        self.unattended.close()
        self._faults.close()
        self._telemetry.clear()

    def _handle(self, event: Event) -> tuple[Effect, ...]:
        return self.machine.handle(event, time.monotonic_ns())

    def _admit(self, event: Register) -> tuple[Process, int]:
        process = _process_of(self._handle(event))
        try:
            self._lives.tie(process.key, process.lives_with)
            page_fd = self._create_page(process)
        except (PageError, OSError):
            self._lives.untie(process.key)
            self._handle(Leave(process.key))
            raise
        self._watch(process, page_fd)
        self._records.save(process)
        self._faults.joined(process.key)
        return process, page_fd

    def _ended(self, keys: tuple[ProcessKey, ...]) -> None:
        if keys and self.machine.processes[keys[0]].player is not None:
            log.info("a player is gone, and its %d synthetic processes with it", len(keys))
        for key in keys:
            self.leave(key, "is gone")

    def _replaced(self, key: ProcessKey) -> None:
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
        if process.key in self._departed:
            self._on_change(True)  # buries what it left when it was registered before
        path = self._records.path(process.key, PAGE)
        if not os.path.isdir(self._pages_dir):
            self._on_lost_directory()
        remove(path)
        try:
            return create_page(path, identity, process.cores)
        except PageFullError as error:
            page_fd = create_private_page(identity, process.cores)
            log.warning("process %d gets a private page in memory: %s", process.key.pid, error.message)
            return page_fd

    def _adopt(self, process: Process) -> None:
        try:
            self._lives.tie(process.key, process.lives_with)
        except ProcessLookupError:
            self._count_dead(process)  # it ended just now
            return
        except OSError as error:
            log.error("process %d can't be watched: %s", process.key.pid, error)  # noqa: TRY400  no traceback wanted
            return
        try:
            self._handle_adopt(process)
        except RefusedError as refused:
            self._lives.untie(process.key)
            log.warning("process %d can't be adopted: %s", process.key.pid, refused.reason)
            return
        self._watch(process, self._open_page(process))
        self.unattended.add(process.key)
        log.info("process %d (%r) keeps cores %s", process.key.pid, process.command, process.cores)

    def _open_page(self, process: Process) -> int | None:
        try:
            return os.open(self._records.path(process.key, PAGE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            log.warning("the page of process %d is lost: %s", process.key.pid, error.strerror)
            return None

    def _count_dead(self, process: Process) -> None:
        telemetry = Telemetry(process, self._open_page(process))
        try:
            self._handle_adopt(process)
        except RefusedError as refused:
            log.warning("process %d, now gone, can't be counted: %s", process.key.pid, refused.reason)
            telemetry.close()
            return
        self._count_and_close(telemetry)
        log.info("process %d (%r) ended without a daemon", process.key.pid, process.command)

    def _count_and_close(self, telemetry: Telemetry) -> None:
        key = telemetry.process.key
        telemetry.take_last(time.monotonic_ns())
        self._handle(Leave(key, telemetry.totals(), telemetry.core_totals()))
        telemetry.close()
        self._departed[key] = None

    def _handle_adopt(self, process: Process) -> None:
        _process_of(self._handle(Adopt(process)))

    def _watch(self, process: Process, page_fd: int | None) -> None:
        self._telemetry[process.key] = telemetry = Telemetry(process, page_fd)
        telemetry.refresh(time.monotonic_ns())


def living_processes(pages_dir: str, boot: str) -> list[Process]:
    """Return the processes whose records are in a directory and that live."""
    return [process for process in _recorded_processes(pages_dir, boot) if is_alive(process.lives_with)]


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
    if isinstance(effect, Refused):
        raise RefusedError(effect.reason)
    assert isinstance(effect, Joined | Changed)
    return effect.process
