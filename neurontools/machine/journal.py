"""What outlives the daemon: the machine's definition, its history, and who holds what.

`journal.json` in the state directory is synced to the disk soon after a change: it holds across a power failure. The record of a process
lies beside its telemetry page and is not synced: it is of use only while the process lives, and a process does not
survive what an unsynced file does not survive. Every file is written aside and renamed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from neurontools.machine.atomic_files import write_aside
from neurontools.machine.events import Process
from neurontools.machine.faults.book import NO_FAULTS, FaultRecord, record_from_json
from neurontools.machine.history import History, history_from_json
from neurontools.machine.kind import HOST, Kind, kind_in
from neurontools.machine.processes import ProcessKey

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Definition:
    """What a machine is, and when it ends by itself.

    `neighbours`, `visible_devices` and the UltraServer's fields are those of `Kind`. `idle_exit_s` is the time without clients and processes after which the daemon ends, `parent` the process with
    which a private machine ends; None: never.
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
    def kind(self) -> Kind:
        """What two starts of this machine must have in common."""
        return kind_in(self)


@dataclass(frozen=True, slots=True)
class Journal:
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
    write_aside(path, json.dumps({"version": _VERSION, **_fields_of(journal)}, default=_fields_of), sync=sync)


def load_journal(path: str) -> Journal | None:
    """Return the journal, None when there is none or it is damaged or of another version."""
    data = _load(path)
    if data is None or data.get("version") != _VERSION:
        return None
    try:
        definition = dict(data["definition"])
        if definition["parent"] is not None:
            definition["parent"] = ProcessKey(**definition["parent"])
        for field in ("visible_devices", "ultraserver_modes"):
            if definition.get(field) is not None:
                definition[field] = tuple(int(number) for number in definition[field])
        return Journal(
            Definition(**definition),
            str(data["boot_id"]),
            bool(data["running"]),
            history_from_json(data["history"]),
            record_from_json(data["faults"]) if "faults" in data else NO_FAULTS,
            tuple(map(_key, data.get("counted", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def save_record(path: str, process: Process, boot: str) -> None:
    """Write the record of a registered process."""
    write_aside(path, json.dumps({"version": _VERSION, "boot_id": boot, **asdict(process)}), sync=False)


def load_record(path: str) -> tuple[Process, str] | None:
    """Return a process and its boot id, None when the record is damaged or of another version."""
    data = _load(path)
    if data is None or data.pop("version", None) != _VERSION:
        return None
    try:
        boot = str(data.pop("boot_id"))
        data["key"] = _key(data["key"])
        data["player"] = None if data.get("player") is None else _key(data["player"])
        data["cores"] = tuple(int(core) for core in data["cores"])
        data["reserved"] = tuple((int(core), int(nbytes)) for core, nbytes in data["reserved"])
        return Process(**data), boot
    except (KeyError, TypeError, ValueError):
        return None


def _fields_of(value: Any) -> dict[str, Any]:
    # As `asdict` does, but without a copy of everything first: a machine of 512 cores is written often.
    return {name: getattr(value, name) for name in value.__slots__}


def _key(data: dict[str, Any]) -> ProcessKey:
    return ProcessKey(int(data["pid"]), int(data["start_ticks"]))


def _load(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
