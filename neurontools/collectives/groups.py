"""Which ranks work together: replica groups, source-target pairs, block sizes, checked; in HLO's form and from files."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools.base.files import read_input
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
