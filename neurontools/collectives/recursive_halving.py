"""Recursive doubling and halving (rdh): log2 n steps with partners whose numbers differ in one bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.collectives.plans import Step, Transfer

if TYPE_CHECKING:
    from collections.abc import Iterator


def gather(ranks: int) -> Iterator[Step]:
    """Yield the steps of an all_gather: what is held doubles every time."""
    for bit in range(_bits(ranks)):
        size = 1 << bit
        yield tuple(
            Transfer(here, here ^ size, tuple(range(here & -size, (here & -size) + size)))
            for here in range(ranks)
        )


def reduce_scatter(ranks: int) -> Iterator[Step]:
    """Yield the steps of a reduce_scatter: what is open halves every time."""
    for bit in reversed(range(_bits(ranks))):
        size = 1 << bit
        yield tuple(
            Transfer(here, there, tuple(range(there & -size, (there & -size) + size)), reduce=True)
            for here in range(ranks)
            for there in (here ^ size,)
        )


def all_to_all(ranks: int) -> Iterator[Step]:
    """Yield the steps of an alltoall: after step k the last k bits of holder and destination agree."""
    for bit in range(_bits(ranks)):
        size = 1 << bit
        yield tuple(
            Transfer(
                here,
                here ^ size,
                tuple(
                    origin * ranks + destination
                    for origin in range(here & -size, (here & -size) + size)
                    for destination in range((here ^ size) & (2 * size - 1), ranks, 2 * size)
                ),
                give=True,
            )
            for here in range(ranks)
        )


def _bits(ranks: int) -> int:
    return ranks.bit_length() - 1
