"""The buffers of a check: what every rank has at first, and what it must have in the end by a direct computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.collectives.operations import Operation, block_count
from neurontools.collectives.values import decode, encode, generate, numpy

if TYPE_CHECKING:
    from neurontools.collectives.datatypes import DataType
    from neurontools.collectives.model import Workload
    from neurontools.collectives.moving import Memory


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


_GATHERS = {Operation.ALL_GATHER, Operation.ALL_GATHERV}


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
    sent = tuple((here, (here + 1) % ranks) for here in range(ranks)) if pairs is None else pairs
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
