"""Collectives from SBUF to SBUF: shapes instead of sizes (system-tools.md section 5: --sb2sb, from Trn2 on)."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from neurontools.collectives.operations import Operation
from neurontools.errors import UsageError
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from neurontools.collectives.datatypes import DataType
    from neurontools.collectives.fabric import Fabric
    from neurontools.collectives.options import Options

DEFAULT_CC_DIM = 1

_SHAPE = re.compile(r"\d{1,9}(?:[x,]\d{1,9}){0,7}", re.ASCII)
_WITH_SBUF_COLLECTIVES = ("NeuronCore-v3", "NeuronCore-v4")


def size_of(options: Options, operation: Operation, kind: DataType, over: Fabric, ranks: int) -> int | None:
    """Return the size of an SBUF collective, None where no input shape is given.

    Raises:
        UsageError: the instance cannot do it, or the shapes do not fit the operation, each other or the SBUF.
    """
    core = instance_type(over.instance).device.core
    if core.name not in _WITH_SBUF_COLLECTIVES:
        raise UsageError(f"--sb2sb is not supported on {over.instance}", "it needs Trn2 or later")
    if options.input_shape is None:
        if options.output_shape is not None or options.cc_dim is not None:
            raise UsageError("--output-shape and --cc-dim need --input-shape")
        return None
    given = parse_shape(options.input_shape)
    result = _output_shape(
        operation, given, DEFAULT_CC_DIM if options.cc_dim is None else options.cc_dim, ranks
    )
    if options.output_shape is not None and parse_shape(options.output_shape) != result:
        shown = ",".join(map(str, result))
        raise UsageError(
            f"--output-shape {options.output_shape} is not what {operation.value} makes: {shown}"
        )
    size = max(prod(given), prod(result)) * kind.nbytes
    room = core.sbuf_bytes * over.lnc
    if size > room:
        raise UsageError(f"{size} bytes do not fit into the SBUF of {room} bytes", "give smaller shapes")
    return size


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the dimensions of a shape such as `128,512` or `128x512`.

    Raises:
        UsageError: it is no shape.
    """
    if _SHAPE.fullmatch(text) is None or 0 in (shape := tuple(map(int, re.split("[x,]", text)))):
        raise UsageError(f"{text!r} is not a shape", "give dimensions such as 128,512")
    return shape


def _output_shape(operation: Operation, given: tuple[int, ...], dim: int, ranks: int) -> tuple[int, ...]:
    if not 0 <= dim < len(given):
        raise UsageError(f"--cc-dim {dim} is no dimension of a shape with {len(given)}")
    length = given[dim]
    if operation in {Operation.ALL_GATHER, Operation.ALL_GATHERV}:
        length *= ranks
    elif operation is Operation.REDUCE_SCATTER:
        if length % ranks:
            raise UsageError(f"dimension {dim} of {length} cannot be divided among {ranks} ranks")
        length //= ranks
    return (*given[:dim], length, *given[dim + 1 :])
