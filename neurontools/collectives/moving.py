"""Carrying out a plan on real buffers: every transfer copies or adds what it says, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.collectives.plans import Plan, Transfer

    Memory = list[dict[int, Any]]  # by position: pieces by number
    Tamper = Callable[[int, Transfer, int, Any], Any]  # step, transfer, piece, data -> data that arrives


def carry_out(
    plan: Plan,
    memory: Memory,
    *,
    tamper: Tamper | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> None:
    """Carry out the steps of a plan.

    All transfers of a step read what was there before it.

    Args:
        plan: the steps.
        memory: the arrays that each position holds by piece; changed in place.
        tamper: changes what arrives, to try whether a check finds it.
        on_step: told how many steps of how many are done.

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
