"""The hierarchical algorithm (hier): one level inside of every device, one between the devices.

Positions are numbered device by device, `width` on each. Column c is the c-th position of every device; between
devices a column works on its own, over the same tours as the rings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.collectives import rings
from neurontools.collectives.plans import Step, Transfer, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.collectives.rings import Tours


def gather(tours: Tours, width: int) -> Iterator[Step]:
    """Yield the steps of an all_gather: columns first, then inside of the devices."""
    channels, devices = len(tours), len(tours[0])
    yield from side_by_side(_column(rings.gather(tours), width, column, channels) for column in range(width))
    yield _inside(
        devices, width, lambda source, _: _pieces_of_column(source % width, devices, width, channels)
    )


def reduce_scatter(tours: Tours, width: int) -> Iterator[Step]:
    """Yield the steps of a reduce_scatter: inside of the devices first, then columns."""
    channels, devices = len(tours), len(tours[0])
    yield _inside(
        devices,
        width,
        lambda _, target: _pieces_of_column(target % width, devices, width, channels),
        reduce=True,
    )
    yield from side_by_side(
        _column(rings.reduce_scatter(tours), width, column, channels) for column in range(width)
    )


def all_to_all(devices: int, width: int) -> Iterator[Step]:
    """Yield the steps of an alltoall: inside of a device to the right column, then to the right device."""
    ranks = devices * width
    yield _inside(
        devices,
        width,
        lambda source, target: tuple(
            source * ranks + device * width + target % width for device in range(devices)
        ),
    )
    yield tuple(
        Transfer(
            here * width + column,
            there * width + column,
            tuple(
                origin * ranks + there * width + column for origin in range(here * width, (here + 1) * width)
            ),
        )
        for here in range(devices)
        for there in range(devices)
        if here != there
        for column in range(width)
    )


def _column(steps: Iterator[Step], width: int, column: int, channels: int) -> Iterator[Step]:
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


def _pieces_of_column(column: int, devices: int, width: int, channels: int) -> tuple[int, ...]:
    return tuple(
        (device * width + column) * channels + channel
        for device in range(devices)
        for channel in range(channels)
    )


def _inside(
    devices: int, width: int, pieces: Callable[[int, int], tuple[int, ...]], *, reduce: bool = False
) -> Step:
    return tuple(
        Transfer(source, target, pieces(source, target), reduce)
        for device in range(devices)
        for source in range(device * width, (device + 1) * width)
        for target in range(device * width, (device + 1) * width)
        if source != target
    )
