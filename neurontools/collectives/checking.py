"""--check: move real data between buffers by an algorithm's own steps and compare with a direct result.

Random floating point values are multiples of 1/8 that the type holds exactly, and sums are kept in float32, in which
all sums of up to 128 such values are exact; they are rounded to the type once, at the end. So any algorithm must give
the same bits as a direct sum. Integers wrap around. fp8 is the E4M3 format without infinities.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.collectives.model import make_plan
from neurontools.collectives.operations import DataType, Operation, block_count, parse_size
from neurontools.collectives.plans import execute_plan
from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.collectives.model import Algorithm, Workload
    from neurontools.collectives.plans import Memory, Tamper

Array = Any  # a numpy array; numpy is optional

RANDOM = "random"
ALL_ONES = "all_ones"

_FP8_MAX = 448.0

_RAW = {
    DataType.FP8: "uint8",
    DataType.FP8E4: "uint8",
    DataType.BF16: "uint16",
    DataType.FP16: "float16",
    DataType.FP32: "float32",
}
_EIGHTHS = {
    DataType.FP8: 15,
    DataType.FP8E4: 15,
    DataType.BF16: 127,
    DataType.FP16: 1023,
    DataType.FP32: 2**16,
}

_GATHERS = {Operation.ALL_GATHER, Operation.ALL_GATHERV}

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%", re.ASCII)
DEFAULT_BUDGET_BYTES = 2**30
_COPIES = 1.5  # of a rank's data: its own, what it works on, what is on the way


def numpy() -> Any:
    """Return the numpy module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingDependencyError(
            "--check moves real data, which needs numpy", "pip install 'neurontools[collectives]'"
        ) from error
    return np


def generate(kind: DataType, count: int, pattern: str, seed: tuple[int, ...]) -> Array:
    """Return test data as the type is stored: raw bits for bf16 and fp8.

    Args:
        kind: the data type.
        count: number of elements.
        pattern: `random` or `all_ones`.
        seed: what the random values depend on.
    """
    np = numpy()
    if pattern == ALL_ONES:
        wide = np.ones(count, np.float32 if kind.is_float else kind.value)
        return encode(kind, wide)
    random = np.random.default_rng(seed)
    if kind.is_float:
        limit = _EIGHTHS[kind]
        return encode(kind, random.integers(-limit, limit + 1, count).astype(np.float32) / np.float32(8))
    limits = np.iinfo(kind.value)
    values: Array = random.integers(limits.min, limits.max, count, dtype=kind.value, endpoint=True)
    return values


def decode(kind: DataType, raw: Array) -> Array:
    """Return values in the type in which they are added up: float32, or the integer type itself."""
    np = numpy()
    if kind is DataType.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if kind in {DataType.FP8, DataType.FP8E4}:
        return _fp8_values()[raw]
    return raw.astype(np.float32) if kind.is_float else raw


def encode(kind: DataType, wide: Array) -> Array:
    """Return values as the type is stored, rounded to the nearest, ties to even."""
    np = numpy()
    if kind is DataType.BF16:
        bits = wide.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if kind in {DataType.FP8, DataType.FP8E4}:
        return _to_fp8(wide)
    return wide.astype(_RAW.get(kind, kind.value))


def same_bits(left: Array, right: Array) -> bool:
    """Return whether two arrays hold the same bytes."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    np = numpy()
    return bool(np.array_equal(left.view(np.uint8), right.view(np.uint8)))


@cache
def _fp8_values() -> Array:
    np = numpy()
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[codes & 127 == 127] = np.nan
    return np.where(codes > 127, -values, values).astype(np.float32)


def _to_fp8(wide: Array) -> Array:
    np = numpy()
    size = np.minimum(np.abs(wide), np.float32(_FP8_MAX))
    bits = size.view(np.uint32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)  # exponent bias 127 becomes 7
    small = np.rint(size * np.float32(512)).astype(np.uint32)  # below 2**-6 codes count in steps of 2**-9
    code = np.where(size < np.float32(2**-6), small, normal)
    return (code | np.where(np.signbit(wide), np.uint32(128), np.uint32(0))).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class RankData:
    """The data of one group: `given` holds by position the blocks that it starts with, as they are stored."""

    operation: Operation
    kind: DataType
    given: tuple[dict[int, Any], ...]
    nbytes: int


def rank_data(
    work: Workload, kind: DataType, ranks: int, elements: int, pattern: str, seed: tuple[int, ...]
) -> RankData:
    """Return made-up data of one group; `elements` is the size of the operation."""
    operation = work.operation
    if work.shares is not None:
        sizes = tuple(round(share * elements) for share in work.shares)
    elif operation.is_point_to_point:
        sizes = (elements,) * ranks
    else:
        sizes = (max(elements // ranks, 1),) * block_count(operation, ranks)
    given = tuple(
        {
            block: generate(kind, sizes[block], pattern, (*seed, position, block))
            for block in _own_blocks(operation, position, ranks)
        }
        for position in range(ranks)
    )
    most = max(sum(data.nbytes for data in blocks.values()) for blocks in given)
    gathered = sum(sizes) * kind.nbytes if operation in _GATHERS else most
    return RankData(operation, kind, given, gathered)


def _own_blocks(operation: Operation, position: int, ranks: int) -> range:
    if operation.reduces:
        return range(ranks)
    if operation.is_all_to_all:
        return range(position * ranks, (position + 1) * ranks)
    return range(position, position + 1)


def starting_memory(data: RankData, channels: int) -> Memory:
    """Return the pieces that every position works on: copies, as wide as sums need."""
    return [
        {
            block * channels + channel: piece.copy()
            for block, stored in blocks.items()
            for channel, piece in enumerate(_pieces(data, stored, channels))
        }
        for blocks in data.given
    ]


def _pieces(data: RankData, stored: Any, channels: int) -> list[Any]:
    wide = decode(data.kind, stored) if data.operation.reduces else stored
    pieces: list[Any] = numpy().array_split(wide, channels)
    return pieces


def result(data: RankData, held: dict[int, Any], block: int, channels: int) -> Any:
    """Return a block as a position holds it in the end, as it is stored.

    Raises:
        KeyError: it lacks a piece.
    """
    pieces = [held[block * channels + channel] for channel in range(channels)]
    whole = pieces[0] if channels == 1 else numpy().concatenate(pieces)
    return encode(data.kind, whole) if data.operation.reduces else whole


def expected(data: RankData, pairs: tuple[tuple[int, int], ...] | None) -> tuple[dict[int, Any], ...]:
    """Return by position the blocks that it must hold in the end, computed without any algorithm's steps."""
    ranks = len(data.given)
    if data.operation.reduces:
        sums = {block: _direct_sum(data, block) for block in range(ranks)}
        everything = data.operation is Operation.ALL_REDUCE
        return tuple(sums if everything else {position: sums[position]} for position in range(ranks))
    if data.operation.is_all_to_all:
        return tuple(
            {block: data.given[block // ranks][block] for block in range(position, ranks * ranks, ranks)}
            for position in range(ranks)
        )
    if data.operation in _GATHERS:
        gathered = {block: stored for blocks in data.given for block, stored in blocks.items()}
        return (gathered,) * ranks
    sent = tuple((rank, (rank + 1) % ranks) for rank in range(ranks)) if pairs is None else pairs
    return tuple(
        {source: data.given[source][source] for source, target in sent if target == position}
        for position in range(ranks)
    )


def _direct_sum(data: RankData, block: int) -> Any:
    np = numpy()
    wide = [decode(data.kind, blocks[block]) for blocks in data.given]
    if not data.kind.is_float:
        return np.add.reduce(wide, dtype=wide[0].dtype)
    total = np.add.reduce(wide, dtype=np.float64)
    return encode(data.kind, total.astype(np.float32))


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What a check moved: bytes of each rank (of `asked_bytes`), and the ranks whose result was wrong.

    `receivers` of the `ranks` get data: in a permute some may get none.
    """

    ranks: int
    receivers: int
    verified_bytes: int
    asked_bytes: int
    wrong: tuple[int, ...]
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether every rank has the right result."""
        return not self.wrong


def check(
    work: Workload,
    kind: DataType,
    algorithm: Algorithm,
    nbytes: int,
    *,
    pattern: str = RANDOM,
    seed: int = 0,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    tamper: Tamper | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> DataCheck:
    """Carry out a workload on real buffers and compare every rank's result, bit for bit.

    Args:
        work: operation and groups of one instance.
        kind: the data type.
        algorithm: whose steps to carry out.
        nbytes: the size; less is moved where the budget is too small.
        pattern: `random` or `all_ones`.
        seed: of the random data.
        budget_bytes: of this computer's memory for all buffers together.
        tamper: changes what arrives, to try the check.
        on_step: gets how many steps of how many are done, for each group.

    Raises:
        MissingDependencyError: numpy is not installed.
    """
    numpy()
    ranks = sum(map(len, work.groups))
    elements = min(nbytes // kind.nbytes, _affordable(work, kind, ranks, budget_bytes))
    wrong: list[int] = []
    moved, receivers, detail = 0, 0, ""
    for number, group in enumerate(work.groups):
        data = rank_data(work, kind, len(group), elements, pattern, (seed, number))
        steps = make_plan(algorithm, work.operation, group, work.fabric, work.pairs)
        memory = starting_memory(data, steps.channels)
        try:
            execute_plan(steps, memory, tamper=tamper, on_step=on_step)
        except KeyError as error:
            detail = f"a step needs piece {error}, which its rank does not hold"
        wanted_by_position = expected(data, work.pairs)
        receivers += sum(map(bool, wanted_by_position))
        wrong += [
            group[position]
            for position, wanted in enumerate(wanted_by_position)
            if not _is_right(data, memory[position], wanted, steps.channels)
        ]
        moved = max(moved, data.nbytes)
    rank_of = {
        core: rank for rank, core in enumerate(sorted(core for group in work.groups for core in group))
    }
    wrong_ranks = tuple(sorted(rank_of[core] for core in wrong))
    return DataCheck(ranks, receivers, moved, nbytes, wrong_ranks, detail)


def _affordable(work: Workload, kind: DataType, ranks: int, budget_bytes: int) -> int:
    wide = 4 if work.operation.reduces and kind.is_float else kind.nbytes
    return max(int(budget_bytes / (ranks * (kind.nbytes + wide) * _COPIES)), len(work.groups[0]))


def _is_right(data: RankData, held: dict[int, Any], wanted: dict[int, Any], channels: int) -> bool:
    try:
        return all(same_bits(result(data, held, block, channels), wanted[block]) for block in wanted)
    except KeyError:
        return False


def check_budget(given: str | None) -> int:
    """Return the bytes of this computer's memory that a check may take.

    That is the size given, else 1 GiB; never more than NEURONTOOLS_HOST_MEMORY allows of what is available.

    Raises:
        UsageError: a size is invalid.
    """
    wanted = DEFAULT_BUDGET_BYTES if given is None else parse_size(given)
    return max(min(wanted, _allowed(env.host_memory())), 1)


def _allowed(text: str) -> int:
    match = _PERCENT.fullmatch(text)
    if match is None:
        return parse_size(text)
    return int(_available_bytes() * min(float(match[1]), 100.0) / 100)


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            facts = dict(line.split(":", 1) for line in file)
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 4 * DEFAULT_BUDGET_BYTES
