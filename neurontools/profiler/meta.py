"""What a capture says about itself: meta.json, and the lines of models.jsonl."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from neurontools.base.files import write_atomic
from neurontools.errors import NeuronToolsError
from neurontools.profiler.records import FORMAT, META_FILE, RECORD, SCHEMA, SYSTEM_EVENTS

CLOCKS = {
    "wall": "measured on this computer, CLOCK_MONOTONIC nanoseconds",
    "device": "modelled by the cost model of the NEFF; an execution is placed at its wall start, or at the end of "
    "the previous one on that core when that is later",
}


class ProfileError(NeuronToolsError):
    """A directory or file is not a capture, or is damaged."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one logical NeuronCore can do at best, from the catalogue: the denominators of MFU and MBU."""

    tensor_flops_s: float = 0.0
    hbm_bytes_s: float = 0.0
    clock_hz: float = 0.0


@dataclass(frozen=True, slots=True)
class Meta:
    """A capture's own description.

    `dropped` counts by NeuronCore what went over the limit: (nc, system events, device executions). `ended_ns` is 0
    when the process did not end in order. `clean` is derived from it.
    """

    instance_type: str
    instance_id: str
    lnc: int
    cores: tuple[int, ...]
    pid: int
    command: tuple[str, ...]
    boot_id: str
    started_ns: int
    started_unix_ns: int
    device_profile: str
    max_events_per_nc: int
    peaks: Peaks = field(default=Peaks())
    version: str = ""
    ended_ns: int = 0
    dropped: tuple[tuple[int, int, int], ...] = ()

    def finished(self, ended_ns: int, dropped: tuple[tuple[int, int, int], ...]) -> Meta:
        """Return the description with its end and the number of dropped events."""
        return replace(self, ended_ns=ended_ns, dropped=dropped)

    def write(self, directory: str) -> None:
        """Write meta.json aside and rename it, so that a reader never sees half of it."""
        stored = {
            "format": FORMAT,
            "schema": SCHEMA,
            "is_simulation": True,
            "record_bytes": RECORD.size,
            "system_events": list(SYSTEM_EVENTS),
            "clocks": CLOCKS,
            **asdict(self),
        }
        path = os.path.join(directory, META_FILE)
        write_atomic(path, json.dumps(stored, indent=1) + "\n", sync=False)


def read_meta(directory: str) -> Meta:
    """Return the description of a capture.

    Raises:
        ProfileError: it is not there, damaged, of another program or of another schema.
    """
    path = os.path.join(directory, META_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        if stored["format"] != FORMAT:
            raise ProfileError(
                f"{path} is not part of a neurontools profile", "give the directory of a capture"
            )
        if stored["schema"] != SCHEMA or stored["record_bytes"] != RECORD.size:
            raise ProfileError(
                f"{path} has profile schema {stored['schema']}, supported is {SCHEMA}",
                "use the neurontools version that captured it",
            )
        return _meta(stored)
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "capture the run again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(
            f"{path} is damaged: {type(error).__name__}: {error}", "capture the run again"
        ) from error


def _meta(stored: dict[str, Any]) -> Meta:
    known = {name: stored[name] for name in (entry.name for entry in fields(Meta))}
    known["cores"] = tuple(int(core) for core in stored["cores"])
    known["command"] = tuple(str(word) for word in stored["command"])
    known["peaks"] = Peaks(**{name: float(value) for name, value in stored["peaks"].items()})
    known["dropped"] = tuple((int(nc), int(system), int(device)) for nc, system, device in stored["dropped"])
    for name in ("lnc", "pid", "started_ns", "started_unix_ns", "ended_ns", "max_events_per_nc"):
        known[name] = int(stored[name])
    return Meta(**known)
