"""Programs of NEFFs and loaded models: the lines of models.jsonl, and their values."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neurontools.profiler.meta import ProfileError
from neurontools.profiler.records import MODELS_FILE, TRACK_OF_LABEL

if TYPE_CHECKING:
    from neurontools.compiler.cost import GraphCost


@dataclass(frozen=True, slots=True)
class ScheduledOperation:
    """One scheduled operation of a program; times are modelled, bytes are those of device memory (HBM)."""

    name: str
    opcode: str
    engine: str
    start_ns: int
    duration_ns: int
    flops: int
    read_bytes: int
    write_bytes: int
    shape: str
    source: str


@dataclass(frozen=True, slots=True)
class NeffProgram:
    """The operations of one NEFF in schedule order; `neff_hash` is the decimal number in `neff_<hash>.neff`."""

    neff_hash: str
    total_ns: int
    operations: tuple[ScheduledOperation, ...]


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


def program_line(program: NeffProgram) -> bytes:
    """Return the line that stores a program."""
    rows = [list(asdict(operation).values()) for operation in program.operations]
    return _line({"program": program.neff_hash, "total_ns": program.total_ns, "operations": rows})


def model_line(model: LoadedModel) -> bytes:
    """Return the line that stores a loaded model."""
    return _line(asdict(model))


def read_models(directory: str) -> tuple[dict[str, NeffProgram], tuple[LoadedModel, ...]]:
    """Return the programs by hash and the models by number; an unfinished last line is ignored.

    Raises:
        ProfileError: a finished line is damaged.
    """
    path = os.path.join(directory, MODELS_FILE)
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "capture the run again") from error
    programs: dict[str, NeffProgram] = {}
    models: list[LoadedModel] = []
    for number, line in enumerate(lines, 1):
        try:
            stored = json.loads(line)
            if "program" in stored:
                program = _program(stored)
                programs[program.neff_hash] = program
            else:
                models.append(_model(stored, len(models), programs))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{path}, line {number}, is damaged: {type(error).__name__}: {error}"
            raise ProfileError(reason, "capture the run again") from error
    return programs, tuple(models)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _program(stored: dict[str, Any]) -> NeffProgram:
    operations = []
    for name, opcode, engine, start, duration, flops, read, write, shape, source in stored["operations"]:
        if engine not in TRACK_OF_LABEL:
            raise ValueError(f"unknown engine {engine!r}")
        times = (int(start), int(duration), int(flops), int(read), int(write))
        if min(times) < 0:
            raise ValueError(f"operation {name!r} has a negative cost")
        operations.append(
            ScheduledOperation(str(name), str(opcode), str(engine), *times, str(shape), str(source))
        )
    return NeffProgram(str(stored["program"]), int(stored["total_ns"]), tuple(operations))


def _model(stored: dict[str, Any], expected: int, programs: dict[str, NeffProgram]) -> LoadedModel:
    if stored["model"] != expected or stored["neff_hash"] not in programs:
        raise ValueError(f"model {stored['model']!r} is out of order")
    return LoadedModel(
        model=expected,
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

    return program_of_cost(pairing_hash(neff), parse(neff).cost)


def program_of_cost(neff_hash: str, cost: GraphCost) -> NeffProgram:
    """Return the operations of a cost model."""
    operations = tuple(
        ScheduledOperation(
            name=op.name,
            opcode=op.opcode,
            engine=op.engine.value,
            start_ns=op.start_ns,
            duration_ns=op.duration_ns,
            flops=op.flops,
            read_bytes=op.read_bytes,
            write_bytes=op.write_bytes,
            shape=op.shape,
            source=op.source,
        )
        for op in cost.ops
    )
    return NeffProgram(neff_hash, cost.total_ns, operations)
