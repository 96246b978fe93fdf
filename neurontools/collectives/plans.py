"""A plan: the steps of an algorithm, each a set of transfers that happen at once.

The cost model prices a plan and `execute_plan` executes it, so what is timed is what is checked. Ranks appear by their
position in the group. Data are divided into blocks: block p is that of position p; of an all-to-all operation block
p * n + q is what p has for q. Where an algorithm uses several channels, each block is cut into as many pieces, and
piece b * channels + c is the part of block b that channel c moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Memory = list[dict[int, Any]]  # by position: pieces by number
    Tamper = Callable[[int, "Transfer", int, Any], Any]  # step, transfer, piece, data -> data that arrives


@dataclass(frozen=True, slots=True)
class Transfer:
    """Pieces that one position sends to another, which keeps them or (`reduce`) adds them to its own.

    With `give` the source drops them: they are in transit to another position.
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


def execute_plan(
    plan: Plan,
    memory: Memory,
    *,
    tamper: Tamper | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> None:
    """Execute the steps of a plan on real buffers: every transfer copies or adds what it names.

    All transfers of a step read what was there before it.

    Args:
        plan: the steps.
        memory: the arrays that each position holds by piece; changed in place.
        tamper: changes what arrives, to test that a check finds it.
        on_step: gets how many steps of how many are done.

    Raises:
        KeyError: a step sends or adds to a piece that the position does not hold.
    """
    for number, step in enumerate(plan.steps):
        sent = [
            (transfer, piece, memory[transfer.source][piece])
            for transfer in step
            for piece in transfer.pieces
        ]
        for transfer in step:
            if transfer.give:
                for piece in transfer.pieces:
                    del memory[transfer.source][piece]
        for transfer, piece, data in sent:
            arrived = data if tamper is None else tamper(number, transfer, piece, data)
            held = memory[transfer.target]
            held[piece] = held[piece] + arrived if transfer.reduce else arrived.copy()
        if on_step is not None:
            on_step(number + 1, len(plan.steps))
