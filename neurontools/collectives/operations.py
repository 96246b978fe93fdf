"""The operations, data types, sizes and options of nccom-test, the bus bandwidth factor, and groups of ranks.

Groups are replica groups, source-target pairs and block sizes, checked; in the form of HLO and from files.

Source: AWS Neuron documentation, nccom-test user guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from neurontools.base import units
from neurontools.base.files import read_input
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


Ranks = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def read_json(path: str) -> Any:
    """Return the content of a JSON file.

    Raises:
        UsageError: it cannot be read, or is not JSON.
    """
    from neurontools.base.json_reader import load_json

    try:
        return load_json(read_input(path, UsageError))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "correct the file") from error


def format_groups(groups: Sequence[Sequence[int]]) -> str:
    """Return replica groups as HLO writes them: {{0,1},{2,3}}."""
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


@cache
def parse_groups(text: str) -> tuple[Ranks, ...]:
    """Return the groups of `format_groups`."""
    inner = text[2:-2]
    return tuple(tuple(map(int, group.split(","))) for group in inner.split("},{")) if inner else ()


def whole(ranks: int) -> tuple[Ranks, ...]:
    """Return one group of all ranks."""
    return (tuple(range(ranks)),)


def data_parallel(ranks: int, dimension: int) -> tuple[Ranks, ...]:
    """Return groups of `dimension` ranks each, the ranks of a group `ranks / dimension` apart.

    Raises:
        UsageError: the ranks cannot be divided so.
    """
    if dimension < 2 or ranks % dimension:
        raise UsageError(
            f"--data-parallel-dimension {dimension} does not divide {ranks} ranks into groups of at least 2",
            "give a divisor of -r above 1",
        )
    apart = ranks // dimension
    return tuple(tuple(range(first, ranks, apart)) for first in range(apart))


def replica_groups(path: str, ranks: int) -> tuple[tuple[Ranks, ...], ...]:
    """Return the lists of groups of a file `{"replica_groups": [[[0, 1], [2, 3]], ...]}`.

    Raises:
        UsageError: the file is not of that form, or a list is not a division of all ranks into groups of one size.
    """
    lists = _lists(path, "replica_groups", "lists of lists of ranks")
    return tuple(_division(path, groups, ranks) for groups in lists)


def _division(path: str, groups: Any, ranks: int) -> tuple[Ranks, ...]:
    if not isinstance(groups, list) or not all(isinstance(group, list) and group for group in groups):
        raise UsageError(f"{path}: replica_groups must be lists of lists of ranks")
    members = [rank for group in groups for rank in group]
    _check_ranks(path, members, ranks)
    if sorted(members) != list(range(ranks)):
        raise UsageError(
            f"{path}: the replica groups do not hold each of the {ranks} ranks once", "list every rank once"
        )
    if len({len(group) for group in groups}) > 1 or len(groups[0]) < 2:
        raise UsageError(f"{path}: the replica groups must be of one size of at least 2")
    return tuple(map(tuple, groups))


def source_target_pairs(path: str, ranks: int) -> tuple[Pairs, ...]:
    """Return the lists of pairs of a file `{"src_target_pairs": [[[0, 1], [1, 0]], ...]}`.

    Raises:
        UsageError: the file is not of that form, or a rank sends or receives twice.
    """
    lists = _lists(path, "src_target_pairs", "lists of pairs of ranks")
    return tuple(_pairs(path, pairs, ranks) for pairs in lists)


def _pairs(path: str, pairs: Any, ranks: int) -> Pairs:
    if not isinstance(pairs, list) or not pairs:
        raise UsageError(f"{path}: src_target_pairs must be lists of pairs of ranks")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise UsageError(f"{path}: {pair!r} is not a pair of ranks")
        _check_ranks(path, pair, ranks)
    for name, side in (("sends", 0), ("receives", 1)):
        used = [pair[side] for pair in pairs]
        twice = sorted({rank for rank in used if used.count(rank) > 1})
        if twice:
            raise UsageError(f"{path}: rank {twice[0]} {name} more than once in a list of pairs")
    return tuple((pair[0], pair[1]) for pair in pairs)


def block_elements(path: str, ranks: int, *, all_to_all: bool) -> tuple[int, ...]:
    """Return the elements of every block of a file `{"counts": ...}`.

    A list has one number for each rank (all_gatherv); of a table, row i has what rank i sends to each rank
    (alltoallv).

    Raises:
        UsageError: the file is not of that form, or all blocks are empty.
    """
    document = read_json(path)
    counts = document.get("counts") if isinstance(document, dict) else None
    rows: Any = counts if all_to_all else [counts]
    form = f"{ranks} lists of {ranks} element counts" if all_to_all else f"{ranks} element counts"
    right = isinstance(rows, list) and len(rows) == (ranks if all_to_all else 1)
    if not right or not all(
        isinstance(row, list) and len(row) == ranks and all(map(_is_whole, row)) for row in rows
    ):
        raise UsageError(f'{path} must be {{"counts": ...}} with {form}', "whole numbers of at least 0")
    elements = tuple(count for row in rows or () for count in row)
    if not any(elements):
        raise UsageError(f"{path}: all counts are 0")
    return elements


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**40


def _lists(path: str, key: str, form: str) -> list[Any]:
    document = read_json(path)
    lists = document.get(key) if isinstance(document, dict) else None
    if not isinstance(lists, list) or not lists:
        raise UsageError(f'{path} must be {{"{key}": [...]}} with {form}')
    return lists


def _check_ranks(path: str, members: Iterable[Any], ranks: int) -> None:
    for rank in members:
        if not _is_whole(rank) or rank >= ranks:
            raise UsageError(f"{path}: {rank!r} is not a rank", f"ranks are 0 to {ranks - 1}")
