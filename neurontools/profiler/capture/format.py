"""The capture format: one directory per process, fixed records that numpy maps as they are.

<out>/<instance-id>_pid_<pid>/
    meta.json                what ran, on what, with which clocks and peaks (`Meta`)
    models.jsonl             one line per loaded model, before its first record
    strings.jsonl            names that records refer to by line number, before the first record that does
    events-<number>.bin      40-byte little-endian records, appended; <number> is that of its first record. At the limit
                             the oldest file is removed
    neff_<hash>.neff         a copy of every loaded NEFF, once: the program of its executions

Times are CLOCK_MONOTONIC nanoseconds, measured on this computer. An execution is one record: what the engines did is the
schedule in the NEFF, put where the execution started.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from neurontools.base.files import open_input, write_atomic
from neurontools.base.json_reader import load_json
from neurontools.errors import MissingDependencyError, NeuronToolsError
from neurontools.machine.codec import convert

if TYPE_CHECKING:
    from neurontools.compiler.engines.cost import OpCost

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e24)]

FORMAT = "neurontools-profile"
SCHEMA = 2

META_FILE = "meta.json"
MODELS_FILE = "models.jsonl"
STRINGS_FILE = "strings.jsonl"
EVENTS_FILE = re.compile(r"events-([0-9]{1,18})\.bin")

RECORD = struct.Struct("<qqqIIIHBB")
_FIELDS = [
    ("start_ns", "<i8"),
    ("duration_ns", "<i8"),
    ("value", "<i8"),
    ("name", "<u4"),
    ("link", "<u4"),
    ("execution", "<u4"),
    ("status", "<u2"),
    ("nc", "u1"),
    ("track", "u1"),
]
NO_CORE = 255
"""The NeuronCore of records about the whole process."""

SYSTEM_EVENTS = ("nrt_load", "nrt_execute", "nc_exec_running")
NRT_LOAD, NRT_EXECUTE, NC_EXEC_RUNNING = range(3)

CLOCKS = {
    "wall": "measured on this computer, CLOCK_MONOTONIC nanoseconds",
    "device": "modelled by the cost model of the NEFF; an execution is placed at its wall start, or at the end of "
    "the previous one on that core when that is later",
}


class Track(IntEnum):
    """The rows of one NeuronCore, and of the process (HOST); the numbers are those of the file.

    RUNTIME, HARDWARE, HOST, MEMORY, DEVICE, CPU, RAM and ANNOTATION are measured (wall clock); the others are modelled
    (device clock). MODEL holds one interval per execution: the model running on the core, idle engines included. DEVICE
    is what another program measured on a device, ANNOTATION its ranges and waits there, in which the device may do
    nothing; no record has them.

    Records of a file have one of six: RUNTIME (a load: `link` is the model), MODEL (an execution, wall times; `link` is
    the model, `value` its modelled time where that is not the program's), HOST and MEMORY (see files.py), CPU and
    RAM (see observer.py).
    """

    RUNTIME = 0
    HARDWARE = 1
    MODEL = 2
    TENSOR = 3
    VECTOR = 4
    SCALAR = 5
    GPSIMD = 6
    SYNC = 7
    DMA = 8
    CC = 9
    HOST = 10
    MEMORY = 11
    DEVICE = 12
    CPU = 13
    RAM = 14
    ANNOTATION = 15

    @property
    def label(self) -> str:
        """The name that the vendor's tools use (AWS Neuron documentation, neuron-profile user guide)."""
        return _LABELS[self]

    @property
    def measured(self) -> bool:
        """Whether times of this row are wall times; else they are modelled device times."""
        return self in _MEASURED


_LABELS = (
    "neuron_rt",
    "neuron_hw",
    "Model",
    "Tensor",
    "Vector",
    "Scalar",
    "GpSimd",
    "Sync",
    "DMA",
    "CC-cores",
    "Host",
    "Memory",
    "Device",
    "Host CPU",
    "Host memory",
    "Annotations",
)
SAMPLED_TRACKS = frozenset({Track.CPU, Track.RAM})
"""Rows of samples of the computer, see observer.py."""
IDLE_TRACKS = SAMPLED_TRACKS | {Track.ANNOTATION}
"""Rows whose events are not work: nothing is busy with them."""
NAMED_TRACKS = SAMPLED_TRACKS | {Track.HOST, Track.MEMORY}
"""Rows whose records carry their names; they do not belong to executions."""
_MEASURED = NAMED_TRACKS | {Track.RUNTIME, Track.HARDWARE, Track.DEVICE, Track.ANNOTATION}
ENGINES = (Track.TENSOR, Track.VECTOR, Track.SCALAR, Track.GPSIMD, Track.SYNC)
DEVICE_TRACKS = (*ENGINES, Track.DMA, Track.CC)
TRACK_OF_LABEL = {track.label: track for track in Track}


def record_dtype() -> Any:
    """Return the numpy dtype of a record."""
    return require_numpy().dtype(_FIELDS)


def require_numpy() -> Any:
    """Return the numpy module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingDependencyError(
            "profiles need numpy, which is not installed", "pip install 'neurontools[profile]'"
        ) from error
    return np


class ProfileError(NeuronToolsError):
    """A directory or file is not a capture, or is damaged."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one logical NeuronCore can do at best, from the catalogue: the denominators of MFU and MBU."""

    tensor_flops_s: Rate = 0.0
    hbm_bytes_s: Rate = 0.0
    clock_hz: Rate = 0.0


@dataclass(frozen=True, slots=True)
class Meta:
    """A capture's own description.

    `ended_ns` is 0 when the process did not end in order. `session` is the same for all processes of one run.
    `system_events` names the rows of executions on the wall clock. `rank` is None if the process is the only worker.
    """

    instance_type: str
    instance_id: str
    lnc: Count
    cores: tuple[Count, ...]
    pid: Count
    command: tuple[str, ...]
    boot_id: str
    started_ns: Count
    started_unix_ns: Count
    device_profile: str
    max_events_per_nc: Count
    peaks: Peaks = field(default=Peaks())
    version: str = ""
    ended_ns: Count = 0
    session: str = ""
    system_events: tuple[str, ...] = SYSTEM_EVENTS
    rank: Count | None = None
    world_size: Count = 1

    @property
    def label(self) -> str:
        """The process, with its rank if it is one of several workers."""
        return process_label(self.pid, self.rank)

    def write(self, directory: str) -> None:
        """Write meta.json aside and rename it, so that a reader never sees half of it."""
        stored = {
            "format": FORMAT,
            "schema": SCHEMA,
            "is_simulation": True,
            "record_bytes": RECORD.size,
            "clocks": CLOCKS,
            **asdict(self),
        }
        path = os.path.join(directory, META_FILE)
        write_atomic(path, json.dumps(stored, indent=1) + "\n", sync=False)


def process_label(pid: int, rank: int | None) -> str:
    """Return the name of a process in reports: its rank, if it is one of several workers, and its pid."""
    return f"pid {pid}" if rank is None else f"rank {rank} (pid {pid})"


def read_meta(directory: str) -> Meta:
    """Return the description of a capture.

    Raises:
        ProfileError: it is not there, damaged, of another program or of another schema.
    """
    path = os.path.join(directory, META_FILE)
    try:
        with open_input(path) as file:
            data = file.read()
        if not data.strip():
            raise ProfileError(f"{path} is empty", "capture the run again")
        stored = load_json(data, any_text=True)
        if stored["format"] != FORMAT:
            raise ProfileError(
                f"{path} is not part of a neurontools profile", "give the directory of a capture"
            )
        if stored["schema"] != SCHEMA or stored["record_bytes"] != RECORD.size:
            raise ProfileError(
                f"{path} has profile schema {stored['schema']}, supported is {SCHEMA}",
                "use the neurontools version that captured it",
            )
        return convert(stored, Meta)
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "capture the run again") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ProfileError(
            f"{path} is damaged: {type(error).__name__}: {error}", "capture the run again"
        ) from error


@dataclass(frozen=True, slots=True)
class NeffProgram:
    """The operations of one NEFF in schedule order; `neff_hash` is the decimal number in `neff_<hash>.neff`.

    Times are modelled, bytes are those of device memory (HBM).
    """

    neff_hash: str
    total_ns: int
    operations: tuple[OpCost, ...]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on a core. `model` is its number in the event records, `nc` the process-local core."""

    model: int
    model_id: int
    name: str
    uuid: str
    nc: int
    core: int
    neff_hash: str


def model_line(model: LoadedModel) -> bytes:
    """Return the line that stores a loaded model."""
    return json_line(asdict(model))


def json_line(value: object) -> bytes:
    """Return a line of models.jsonl or strings.jsonl."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def parse_model(line: bytes) -> LoadedModel:
    """Return the model of a stored line.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: it is damaged.
    """
    stored = load_json(line, any_text=True)
    return LoadedModel(
        model=int(stored["model"]),
        model_id=int(stored["model_id"]),
        name=str(stored["name"]),
        uuid=str(stored["uuid"]),
        nc=int(stored["nc"]),
        core=int(stored["core"]),
        neff_hash=str(stored["neff_hash"]),
    )


def pairing_hash(neff: bytes) -> str:
    """Return the decimal number that pairs a NEFF with its records, as in the vendor's `neff_<hash>.neff`."""
    return str(int.from_bytes(hashlib.sha256(neff).digest()[:8], "big"))


def program_of_neff(neff: bytes) -> NeffProgram:
    """Return the operations of a NEFF as its cost model scheduled them.

    Raises:
        NeffError: the bytes are not a NEFF of this simulator.
    """
    from neurontools.compiler.neff import parse

    cost = parse(neff).cost
    return NeffProgram(pairing_hash(neff), cost.total_ns, cost.ops)
