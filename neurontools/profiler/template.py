"""The device records of one execution, made once per model: an execution only shifts them in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.profiler.dependency import numpy
from neurontools.profiler.records import TRACK_OF_LABEL, Track, record_dtype

if TYPE_CHECKING:
    from neurontools.profiler.model import LoadedModel, Program


class DeviceTemplate:
    """One MODEL record that spans the execution, then one record per operation.

    Args:
        program: the operations and the modelled time.
        model: whose number and NeuronCore the records carry.
    """

    def __init__(self, program: Program, model: LoadedModel) -> None:
        operations = program.operations
        records: Any = numpy().zeros(len(operations) + 1, dtype=record_dtype())
        records["model"] = model.model
        records["nc"] = model.nc
        records["track"][0] = Track.MODEL
        records["duration_ns"][0] = program.total_ns
        records["start_ns"][1:] = [operation.start_ns for operation in operations]
        records["duration_ns"][1:] = [operation.duration_ns for operation in operations]
        records["operation"][1:] = range(len(operations))
        records["track"][1:] = [TRACK_OF_LABEL[operation.engine] for operation in operations]
        self._records = records
        self._offsets = records["start_ns"].copy()
        self.count = len(records)
        self.total_ns = program.total_ns

    def at(self, start_ns: int, execution: int, status: int) -> bytes:
        """Return the records of an execution that starts on the device at `start_ns`."""
        records = self._records
        records["start_ns"] = self._offsets + start_ns
        records["execution"] = execution & 0xFFFFFFFF
        records["status"] = status
        return bytes(records.tobytes())
