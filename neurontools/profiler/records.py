"""The capture format: one directory per process, fixed records that numpy maps as they are.

<out>/<instance-id>_pid_<pid>/
    meta.json        what ran, on what, with which clocks and peaks (`Meta`)
    models.jsonl     one line per program (a NEFF's operations) and one per loaded model, each before its first event
    events.bin       32-byte little-endian records, appended
    neff_<hash>.neff a copy of every loaded NEFF, once

Times are CLOCK_MONOTONIC nanoseconds. Rows of the wall clock are measured on this computer; rows of the device clock
come from the cost model of the NEFF and are put where the execution started.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from neurontools.errors import MissingDependencyError

FORMAT = "neurontools-profile"
SCHEMA = 1

META_FILE = "meta.json"
MODELS_FILE = "models.jsonl"
EVENTS_FILE = "events.bin"

RECORD = struct.Struct("<qqIIIHBB")
RECORD_FIELDS = (
    ("start_ns", "<i8"),
    ("duration_ns", "<i8"),
    ("model", "<u4"),
    ("operation", "<u4"),
    ("execution", "<u4"),
    ("status", "<u2"),
    ("nc", "u1"),
    ("track", "u1"),
)

SYSTEM_EVENTS = ("nrt_load", "nrt_execute", "nc_exec_running")
NRT_LOAD, NRT_EXECUTE, NC_EXEC_RUNNING = range(3)


class Track(IntEnum):
    """The rows of one NeuronCore; the numbers are those of the file.

    RUNTIME and HARDWARE are measured (wall clock); the others are modelled (device clock). MODEL holds one interval
    per execution: the model running on the core, idle engines included.
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

    @property
    def label(self) -> str:
        """The name that the vendor's tools use (AWS Neuron documentation, neuron-profile user guide)."""
        return _LABELS[self]

    @property
    def measured(self) -> bool:
        """Whether times of this row are wall times; else they are modelled device times."""
        return self <= Track.HARDWARE


_LABELS = ("neuron_rt", "neuron_hw", "Model", "Tensor", "Vector", "Scalar", "GpSimd", "Sync", "DMA")
ENGINES = (Track.TENSOR, Track.VECTOR, Track.SCALAR, Track.GPSIMD, Track.SYNC)
TRACK_OF_LABEL = {track.label: track for track in Track}


def record_dtype() -> Any:
    """Return the numpy dtype of a record."""
    return require_numpy().dtype(list(RECORD_FIELDS))


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
