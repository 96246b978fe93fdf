"""A plan: the steps of an algorithm, each a set of transfers that happen at once.

The cost model prices a plan and `moving` carries it out, so what is timed is what is checked. Ranks appear by their
position in the group. Data are divided into blocks: block p is that of position p; of an all-to-all operation block
p * n + q is what p has for q. Where an algorithm uses several channels, each block is cut into as many pieces, and
piece b * channels + c is the part of block b that channel c moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Transfer:
    """Pieces that one position sends to another, which keeps them or (`reduce`) adds them to its own.

    With `give` the source has no use for them any more: they are on their way to somebody else.
    """

    source: int
    target: int
    pieces: tuple[int, ...]
    reduce: bool = False
    give: bool = False


Step = tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of an algorithm, and into how many pieces every block is cut."""

    channels: int
    steps: tuple[Step, ...]


def side_by_side(parts: Iterable[Iterable[Step]]) -> Iterator[Step]:
    """Yield the steps of several plans that run at the same time."""
    for steps in zip_longest(*parts, fillvalue=()):
        yield tuple(transfer for step in steps for transfer in step)
