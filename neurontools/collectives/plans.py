"""Plans: the steps of the algorithms, each a set of transfers that happen at once, and their execution on buffers.

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
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Memory = list[dict[int, Any]]  # by position: pieces by number
    Tour = Sequence[int]
    Tours = Sequence[Tour]
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


class Mesh:
    """Everybody sends to everybody at once (mesh). One step, or two for all_reduce."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def gather(self) -> Iterator[Step]:
        """Yield the step of an all_gather."""
        yield _exchange(range(self._ranks), lambda source, _: (source,))

    def reduce_scatter(self) -> Iterator[Step]:
        """Yield the step of a reduce_scatter."""
        yield _exchange(range(self._ranks), lambda _, target: (target,), reduce=True)

    def all_to_all(self) -> Iterator[Step]:
        """Yield the step of an alltoall."""
        yield _exchange(range(self._ranks), lambda source, target: (source * self._ranks + target,))


def permute(pairs: Sequence[tuple[int, int]]) -> Step:
    """Return the step in which every pair's first position sends its block to the second."""
    return tuple(Transfer(source, target, (source,)) for source, target in pairs)


class RecursiveHalving:
    """Recursive doubling and halving (rdh): log2 n steps with partners whose numbers differ in one bit."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._bits = ranks.bit_length() - 1

    def gather(self) -> Iterator[Step]:
        """Yield the steps of an all_gather: the part held doubles every time."""
        for bit in range(self._bits):
            size = 1 << bit
            yield tuple(
                Transfer(rank, rank ^ size, tuple(range(rank & -size, (rank & -size) + size)))
                for rank in range(self._ranks)
            )

    def reduce_scatter(self) -> Iterator[Step]:
        """Yield the steps of a reduce_scatter: the open part halves every time."""
        for bit in reversed(range(self._bits)):
            size = 1 << bit
            yield tuple(
                Transfer(rank, partner, tuple(range(partner & -size, (partner & -size) + size)), reduce=True)
                for rank in range(self._ranks)
                for partner in (rank ^ size,)
            )

    def all_to_all(self) -> Iterator[Step]:
        """Yield the steps of an alltoall: after step k the last k bits of holder and destination agree."""
        for bit in range(self._bits):
            size = 1 << bit
            yield tuple(
                Transfer(
                    rank,
                    rank ^ size,
                    tuple(
                        origin * self._ranks + destination
                        for origin in range(rank & -size, (rank & -size) + size)
                        for destination in range((rank ^ size) & (2 * size - 1), self._ranks, 2 * size)
                    ),
                    give=True,
                )
                for rank in range(self._ranks)
            )


class Rings:
    """Every position sends to the next one of a tour, n - 1 times.

    `ring` is one tour in one direction. `kangaring` cuts every block into pieces and sends each round a tour of its
    own: all tours that share no link, in both directions.
    """

    def __init__(self, tours: Tours) -> None:
        self._tours = tours

    def gather(self) -> Iterator[Step]:
        """Yield the steps of an all_gather."""
        return self._on_all(_ring_gather)

    def reduce_scatter(self) -> Iterator[Step]:
        """Yield the steps of a reduce_scatter."""
        return self._on_all(_ring_reduce_scatter)

    def all_to_all(self) -> Iterator[Step]:
        """Yield the steps of an alltoall: blocks travel round the tour until they are where they belong."""
        return self._on_all(_ring_all_to_all)

    def _on_all(self, steps: Callable[[Tour, int, int], Iterator[Step]]) -> Iterator[Step]:
        return side_by_side(
            steps(tour, len(self._tours), channel) for channel, tour in enumerate(self._tours)
        )


def _ring_gather(tour: Tour, channels: int, channel: int) -> Iterator[Step]:
    return _pass_on(tour, lambda step, i: (tour[i - step] * channels + channel,))


def _ring_reduce_scatter(tour: Tour, channels: int, channel: int) -> Iterator[Step]:
    return _pass_on(tour, lambda step, i: (tour[i - step - 1] * channels + channel,), reduce=True)


def _ring_all_to_all(tour: Tour, channels: int, channel: int) -> Iterator[Step]:
    count = len(tour)

    def pieces(step: int, i: int) -> tuple[int, ...]:
        return tuple(
            (tour[i - step] * count + tour[(i - step + distance) % count]) * channels + channel
            for distance in range(step + 1, count)
        )

    return _pass_on(tour, pieces, give=True)


def _pass_on(
    tour: Tour, pieces: Callable[[int, int], tuple[int, ...]], *, reduce: bool = False, give: bool = False
) -> Iterator[Step]:
    """Yield the steps in which everybody sends to the next; `pieces` by step and place in the tour."""
    count = len(tour)
    for step in range(count - 1):
        yield tuple(
            Transfer(tour[i], tour[(i + 1) % count], pieces(step, i), reduce, give) for i in range(count)
        )


class Hierarchy:
    """One level inside of every device, one between the devices (hier).

    Positions are numbered device by device, `width` on each. Column c is the c-th position of every device; between
    devices a column works on its own, over the same tours as the rings.
    """

    def __init__(self, tours: Tours, width: int) -> None:
        self._rings = Rings(tours)
        self._channels = len(tours)
        self._devices = len(tours[0])
        self._width = width

    def gather(self) -> Iterator[Step]:
        """Yield the steps of an all_gather: columns first, then inside of the devices."""
        yield from self._on_columns(self._rings.gather)
        yield self._inside(lambda source, _: self._pieces_of_column(source % self._width))

    def reduce_scatter(self) -> Iterator[Step]:
        """Yield the steps of a reduce_scatter: inside of the devices first, then columns."""
        yield self._inside(lambda _, target: self._pieces_of_column(target % self._width), reduce=True)
        yield from self._on_columns(self._rings.reduce_scatter)

    def all_to_all(self) -> Iterator[Step]:
        """Yield the steps of an alltoall: inside of a device to the right column, then to the right device."""
        devices, width = self._devices, self._width
        ranks = devices * width
        yield self._inside(
            lambda source, target: tuple(
                source * ranks + device * width + target % width for device in range(devices)
            )
        )
        yield tuple(
            Transfer(
                source * width + column,
                target * width + column,
                tuple(
                    origin * ranks + target * width + column
                    for origin in range(source * width, (source + 1) * width)
                ),
            )
            for source in range(devices)
            for target in range(devices)
            if source != target
            for column in range(width)
        )

    def _on_columns(self, steps: Callable[[], Iterator[Step]]) -> Iterator[Step]:
        return side_by_side(self._column(steps(), column) for column in range(self._width))

    def _column(self, steps: Iterator[Step], column: int) -> Iterator[Step]:
        width, channels = self._width, self._channels
        for step in steps:
            yield tuple(
                Transfer(
                    transfer.source * width + column,
                    transfer.target * width + column,
                    tuple(
                        (piece // channels * width + column) * channels + piece % channels
                        for piece in transfer.pieces
                    ),
                    transfer.reduce,
                )
                for transfer in step
            )

    def _pieces_of_column(self, column: int) -> tuple[int, ...]:
        return tuple(
            (device * self._width + column) * self._channels + channel
            for device in range(self._devices)
            for channel in range(self._channels)
        )

    def _inside(self, pieces: Callable[[int, int], tuple[int, ...]], *, reduce: bool = False) -> Step:
        return tuple(
            transfer
            for device in range(self._devices)
            for transfer in _exchange(
                range(device * self._width, (device + 1) * self._width), pieces, reduce=reduce
            )
        )


def _exchange(
    positions: range, pieces: Callable[[int, int], tuple[int, ...]], *, reduce: bool = False
) -> Step:
    return tuple(
        Transfer(source, target, pieces(source, target), reduce)
        for source in positions
        for target in positions
        if source != target
    )


Schedule = Mesh | RecursiveHalving | Rings | Hierarchy
