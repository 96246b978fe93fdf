"""The mesh algorithm: everybody sends to everybody at once. One step, or two for all_reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.collectives.plans import Step, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    _Pieces = Callable[[int, int], tuple[int, ...]]


def gather(ranks: int) -> Iterator[Step]:
    """Yield the step of an all_gather."""
    yield _exchange(ranks, lambda source, _: (source,))


def reduce_scatter(ranks: int) -> Iterator[Step]:
    """Yield the step of a reduce_scatter."""
    yield _exchange(ranks, lambda _, target: (target,), reduce=True)


def all_to_all(ranks: int) -> Iterator[Step]:
    """Yield the step of an alltoall."""
    yield _exchange(ranks, lambda source, target: (source * ranks + target,))


def permute(pairs: Sequence[tuple[int, int]]) -> Iterator[Step]:
    """Yield the step in which every pair's first position sends its block to the second."""
    yield tuple(Transfer(source, target, (source,)) for source, target in pairs)


def _exchange(ranks: int, pieces: _Pieces, *, reduce: bool = False) -> Step:
    return tuple(
        Transfer(source, target, pieces(source, target), reduce)
        for source in range(ranks)
        for target in range(ranks)
        if source != target
    )
