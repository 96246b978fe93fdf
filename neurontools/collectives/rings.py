"""Ring algorithms: every position sends to the next one of a tour, n - 1 times.

`ring` is one tour in one direction. `kangaring` cuts every block into pieces and sends each round a tour of its own:
all tours that share no link, in both directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.collectives.plans import Step, Transfer, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Tour = Sequence[int]
    Tours = Sequence[Tour]
    _Round = Callable[[Tour, int, int], Iterator[Step]]


def gather(tours: Tours) -> Iterator[Step]:
    """Yield the steps of an all_gather."""
    return _on_all(tours, _gather)


def reduce_scatter(tours: Tours) -> Iterator[Step]:
    """Yield the steps of a reduce_scatter."""
    return _on_all(tours, _reduce_scatter)


def all_to_all(tours: Tours) -> Iterator[Step]:
    """Yield the steps of an alltoall: blocks travel round the tour until they are where they belong."""
    return _on_all(tours, _all_to_all)


def _on_all(tours: Tours, one: _Round) -> Iterator[Step]:
    return side_by_side(one(tour, len(tours), channel) for channel, tour in enumerate(tours))


def _gather(tour: Tour, channels: int, channel: int) -> Iterator[Step]:
    count = len(tour)
    for step in range(count - 1):
        yield tuple(
            Transfer(tour[i], tour[(i + 1) % count], (tour[i - step] * channels + channel,))
            for i in range(count)
        )


def _reduce_scatter(tour: Tour, channels: int, channel: int) -> Iterator[Step]:
    count = len(tour)
    for step in range(count - 1):
        yield tuple(
            Transfer(tour[i], tour[(i + 1) % count], (tour[i - step - 1] * channels + channel,), reduce=True)
            for i in range(count)
        )


def _all_to_all(tour: Tour, channels: int, channel: int) -> Iterator[Step]:
    count = len(tour)
    for step in range(count - 1):
        yield tuple(
            Transfer(
                tour[i],
                tour[(i + 1) % count],
                tuple(
                    (tour[i - step] * count + tour[(i - step + distance) % count]) * channels + channel
                    for distance in range(step + 1, count)
                ),
                give=True,
            )
            for i in range(count)
        )
