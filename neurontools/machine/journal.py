"""State that outlives the daemon: the machine's definition, its history, and what each process holds.

`journal.json` in the state directory is synced to the disk soon after a change, so it survives a power failure. The
record of a process lies beside its telemetry page and is not synced: it is of use only while the process lives, and
no process survives a power failure. Every file is written aside and renamed.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from neurontools.base.files import remove_quietly, write_atomic
from neurontools.machine import codec
from neurontools.machine.events import Process
from neurontools.machine.faults.registry import NO_FAULTS, FaultRecord
from neurontools.machine.machine_config import HOST, MachineConfig, config_of
from neurontools.machine.processes import ProcessKey
from neurontools.machine.snapshot import History

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

log = logging.getLogger("neurond")

_VERSION = 2
PAGE, RECORD = ".page", ".json"
RETRY_S = 1.0
_RESERVED_BYTES = 1 << 15


class Definition(Struct, frozen=True):
    """What a machine is, and when it ends by itself.

    `neighbours`, `visible_devices` and the UltraServer's fields are those of `MachineConfig`. `idle_exit_s` is the time
    without clients and processes after which the daemon ends, `parent` the process with which a private machine ends;
    None: never.
    """

    machine: str
    instance_type: str
    lnc: int
    started_unix_s: float
    idle_exit_s: float | None = None
    parent: ProcessKey | None = None
    neighbours: str = HOST
    visible_devices: tuple[int, ...] | None = None
    ultraserver_modes: tuple[int, ...] | None = None
    ultraserver_node: int | None = None

    @property
    def config(self) -> MachineConfig:
        """What two starts of this machine must have in common."""
        return config_of(self)


class Journal(Struct, frozen=True, tag_field="version", tag=_VERSION):
    """The journal's content. `running` is set while a daemon should be running: it was killed if there is none.

    `faults` are those of a machine that goes on after its daemon was killed. `counted` names the processes that are
    gone and whose pages, which may still be there, `history` counts already.
    """

    definition: Definition
    boot_id: str
    running: bool
    history: History
    faults: FaultRecord = NO_FAULTS
    counted: tuple[ProcessKey, ...] = ()


def save_journal(path: str, journal: Journal, *, sync: bool = True) -> None:
    """Write the journal; unsynced it survives the daemon's death but not a power failure."""
    write_atomic(path, codec.encode(journal), sync=sync)


class JournalWriter:
    """Writes the journal of a running daemon; disk space is reserved so that it can be written on a full disk.

    Pages of exited processes are deleted only after the journal was written. If they filled the disk, it could never be.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._reserve = f"{path}.reserve"
        self._is_reserved = False

    def save(self, journal: Journal, *, sync: bool) -> None:
        """Write the journal, as `save_journal` does.

        Raises:
            OSError: it cannot be written.
        """
        try:
            save_journal(self._path, journal, sync=sync)
        except OSError:
            if not self._is_reserved:
                raise
            self.close()
            save_journal(self._path, journal, sync=sync)
        if not self._is_reserved:
            self._is_reserved = _reserve_space(self._reserve)

    def close(self) -> None:
        """Free the reserved space."""
        self._is_reserved = False
        remove_quietly(self._reserve)


def _reserve_space(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _RESERVED_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        remove_quietly(path)
        return False
    return True


def load_journal(path: str) -> Journal | None:
    """Return the journal, None when there is none or it is damaged or of another version."""
    return codec.read_file(path, Journal)


def save_record(path: str, process: Process, boot: str) -> None:
    """Write the record of a registered process."""
    fields = codec.to_builtins(process)
    write_atomic(path, codec.encode({"version": _VERSION, "boot_id": boot, **fields}), sync=False)


def load_record(path: str) -> tuple[Process, str] | None:
    """Return a process and its boot id, None when the record is damaged or of another version."""
    data = codec.read_file(path, dict[str, Any])
    if data is None or data.get("version") != _VERSION:
        return None
    try:
        return codec.convert(data, Process), codec.convert(data.get("boot_id"), str)
    except ValueError:
        return None


class RecordWriter:
    """The records in one directory.

    Args:
        pages_dir: their directory, which also holds the pages.
        boot: id of this boot.
        loop: runs the timer of the records that could not be written.
    """

    def __init__(self, pages_dir: str, boot: str, loop: AbstractEventLoop) -> None:
        self._pages_dir = pages_dir
        self._boot = boot
        self._loop = loop
        self._unsaved: dict[ProcessKey, Process] = {}
        self._timer: TimerHandle | None = None

    def save(self, process: Process) -> None:
        """Write the record of a process; retry every second if it can't be written."""
        try:
            save_record(self.path(process.key, RECORD), process, self._boot)
        except OSError as error:
            if process.key not in self._unsaved:
                log.error("no record of process %d: %s", process.key.pid, error)  # noqa: TRY400  no traceback wanted
            self._unsaved[process.key] = process
            if self._timer is None:
                self._timer = self._loop.call_later(RETRY_S, self._retry)
        else:
            self._unsaved.pop(process.key, None)

    def remove(self, key: ProcessKey) -> None:
        """Delete the record and the page of a process."""
        self._unsaved.pop(key, None)
        for suffix in (PAGE, RECORD):
            remove_quietly(self.path(key, suffix))

    def path(self, key: ProcessKey, suffix: str) -> str:
        """Return the path of the record or the page of a process."""
        return f"{self._pages_dir}/{file_name(key, suffix)}"

    def close(self) -> None:
        """Stop retrying."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _retry(self) -> None:
        self._timer = None
        for process in list(self._unsaved.values()):
            self.save(process)


def file_name(key: ProcessKey, suffix: str) -> str:
    """Return the name of the record or the page of a process."""
    return f"{key.pid}-{key.start_ticks}{suffix}"
