"""The operations, data types, sizes and options of nccom-test, and the bus bandwidth factor.

Source: AWS Neuron documentation, nccom-test user guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from neurontools.base import units
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_BYTES = 32 * 2**20
MAX_BYTES = 2**40
MAX_ROWS = 4096

_Named = TypeVar("_Named", bound=StrEnum)


class DataType(StrEnum):
    """A data type by the name that is printed."""

    UINT8 = "uint8"
    INT8 = "int8"
    FP8 = "fp8"
    FP8E4 = "fp8e4"
    UINT16 = "uint16"
    INT16 = "int16"
    FP16 = "fp16"
    BF16 = "bf16"
    UINT32 = "uint32"
    INT32 = "int32"
    FP32 = "fp32"

    @property
    def nbytes(self) -> int:
        """Size of an element."""
        digits = self.value.removesuffix("e4").lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(digits) // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating point type."""
        return "int" not in self.value


def parse_name(kind: type[_Named], name: str, what: str, aliases: Iterable[str] = ()) -> _Named:
    """Return the member of an enumeration by its name; `what` it lists and `aliases` are for the error.

    Raises:
        UsageError: there is none.
    """
    try:
        return kind(name)
    except ValueError:
        raise UsageError(
            f"unknown {what} {name!r}", f"choose one of {', '.join((*kind, *aliases))}"
        ) from None


class Operation(StrEnum):
    """A collective operation."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    ALL_GATHERV = "all_gatherv"
    REDUCE_SCATTER = "reduce_scatter"
    SENDRECV = "sendrecv"
    ALLTOALL = "alltoall"
    ALLTOALLV = "alltoallv"
    PERMUTE = "permute"

    @property
    def reduces(self) -> bool:
        """Whether data of several ranks are added up."""
        return self in {Operation.ALL_REDUCE, Operation.REDUCE_SCATTER}

    @property
    def is_all_to_all(self) -> bool:
        """Whether every rank has a block for every other one."""
        return self in {Operation.ALLTOALL, Operation.ALLTOALLV}

    @property
    def is_point_to_point(self) -> bool:
        """Whether each rank sends to one other."""
        return self in {Operation.SENDRECV, Operation.PERMUTE}

    @property
    def is_variable(self) -> bool:
        """Whether the blocks may differ in size."""
        return self in {Operation.ALL_GATHERV, Operation.ALLTOALLV}


ALIASES = {
    "allr": Operation.ALL_REDUCE,
    "allg": Operation.ALL_GATHER,
    "allgv": Operation.ALL_GATHERV,
    "redsct": Operation.REDUCE_SCATTER,
}
NAMES = (*(operation.value for operation in Operation), *ALIASES)


def parse_operation(name: str) -> Operation:
    """Return the operation of a name or alias.

    Raises:
        UsageError: there is none.
    """
    return ALIASES.get(name) or parse_name(Operation, name, "operation", ALIASES)


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return bus bandwidth divided by algorithm bandwidth."""
    if operation.is_point_to_point:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if operation is Operation.ALL_REDUCE else share


def block_count(operation: Operation, ranks: int) -> int:
    """Return into how many blocks the data of an operation are divided in a group of ranks."""
    return ranks * ranks if operation.is_all_to_all else ranks


def input_bytes(operation: Operation, nbytes: int, ranks: int) -> int:
    """Return what a rank gives to an operation of a size."""
    return nbytes // ranks if operation in {Operation.ALL_GATHER, Operation.ALL_GATHERV} else nbytes


def output_bytes(operation: Operation, nbytes: int, ranks: int) -> int:
    """Return what a rank gets from an operation of a size."""
    return nbytes // ranks if operation is Operation.REDUCE_SCATTER else nbytes


def divisor(operation: Operation, ranks: int) -> int:
    """Return the number of equal parts into which an operation cuts its elements."""
    return 1 if operation.is_point_to_point else ranks


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of nccom-test and ours. None: not given.

    `algorithm` and `check_bytes` are ours. `hosts` are the names of the MPI hosts, from the flag or its file.
    """

    operation: str
    workers: int
    nodes: int = 1
    minbytes: str | None = None
    maxbytes: str | None = None
    stepbytes: str | None = None
    stepfactor: float | None = None
    iters: int = 20
    warmup_iters: int = 5
    neff_iters: int | None = None
    neff_warmup_iters: int | None = None
    datatype: str = "uint8"
    check: str | None = None
    seed: int = 0
    unique_buff: bool = False
    coalesced_cc_size_ratio: str | None = None
    shared_output_buff: bool = False
    variable_size_op_metadata: str | None = None
    stats: tuple[str, ...] = ("avg",)
    sb2sb: bool = False
    input_shape: str | None = None
    output_shape: str | None = None
    cc_dim: int | None = None
    data_parallel_dimension: int | None = None
    custom_replica_groups: str | None = None
    custom_src_target_pairs: str | None = None
    ops_per_iter: int = 1
    algorithm: str | None = None
    check_bytes: str | None = None
    hosts: tuple[str, ...] = ()
    slurm_mode: bool = False


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `1kb`, `32M`, `1.5GB` or `4096`; units are powers of 1024 in any case.

    Raises:
        UsageError: it is not a size, zero, or above 1 TiB.
    """
    size = units.parse_size(text, binary=True)
    if not 0 < size <= MAX_BYTES:
        raise UsageError(f"size {text!r} is out of range", "sizes go from 1 byte to 1024GB")
    return size


def sweep(
    minimum: int, maximum: int, *, step: int | None = None, factor: float | None = None
) -> tuple[int, ...]:
    """Return the sizes from `minimum` to `maximum`: by a step, by a factor, or in ten equal steps.

    Raises:
        UsageError: the limits are in the wrong order, or the step makes no or too many sizes.
    """
    if minimum > maximum:
        raise UsageError(
            f"the smallest size {minimum} is above the largest {maximum}",
            "set both: -b/--minbytes and -e/--maxbytes (each is 32MB by default)",
        )
    if step is not None and factor is not None:
        raise UsageError("-i/--stepbytes and -f/--stepfactor exclude each other", "give one of them")
    if factor is not None:
        return _by_factor(minimum, maximum, factor)
    return _by_step(minimum, maximum, step or (maximum - minimum) // 10 or maximum)


def _by_factor(minimum: int, maximum: int, factor: float) -> tuple[int, ...]:
    if not 1 < factor < float("inf"):
        raise UsageError(f"step factor {factor:g} is not a finite number above 1", "use e.g. -f 2")
    sizes, size = [minimum], float(minimum)
    while (size := size * factor) <= maximum:
        sizes.append(int(size))
        _check_count(len(sizes))
    return tuple(dict.fromkeys(sizes))


def _by_step(minimum: int, maximum: int, step: int) -> tuple[int, ...]:
    _check_count((maximum - minimum) // step + 1)
    return tuple(range(minimum, maximum + 1, step))


def _check_count(count: int) -> None:
    if count > MAX_ROWS:
        raise UsageError(f"the sweep has more than {MAX_ROWS} sizes", "use a larger step (-i) or factor (-f)")


def round_sizes(sizes: tuple[int, ...], multiple: int) -> tuple[int, ...]:
    """Return the sizes rounded down to a multiple, to at least one multiple, each once."""
    return tuple(dict.fromkeys(max(size - size % multiple, multiple) for size in sizes))
