"""How functions of nki.isa take their operands and give their results (first generation)."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.context import fail, running
from neurontools.nki.first.dtypes import name_of, promoted
from neurontools.nki.first.execution import absent, destination, need_on_chip, new_tile, part_for, tile_of
from neurontools.nki.first.index import selection
from neurontools.nki.generations import without_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.nki.first.tile import Tile
    from neurontools.nki.tensor import NkiTensor


def result_type(dtype: Any, *tiles: Tile) -> str:
    """Return the requested type, or else the common type of the tiles."""
    if dtype is not None:
        return name_of(dtype)
    kind = tiles[0].operand.dtype
    for tile in tiles[1:]:
        kind = promoted(kind, tile.operand.dtype)
    return kind


def chip_tile(function: str, value: Any) -> Tile:
    """Return an operand that must be a tile on the chip."""
    tile = tile_of(value, function)
    need_on_chip(function, tile)
    return tile


def second_result(tile: Any, selected: Any, function: str) -> NkiTensor | None:
    """Return the view of an operand that an instruction writes beside its result."""
    if tile is None:
        return None
    return part_for(chip_tile(function, tile), selected, tile.shape, function)


def by_row(
    function: str,
    data: Tile,
    mask: Any,
    shape: Sequence[int],
    dtype: str,
    emit: Callable[[NkiTensor, NkiTensor], Any],
) -> Tile:
    """Run an instruction whose result has a row for each partition of its data; the mask selects data."""
    selected = selection(mask, data.shape)
    if selected is False:
        return absent(shape, dtype)
    if isinstance(selected, np.ndarray):
        fail(function, "the mask is not a rectangle")
    made = new_tile(shape, dtype, filled=selected is not None)
    if selected is not None:
        made.valid = (selected[0], *[slice(0, size) for size in made.shape[1:]])
    emit(destination(made, made.valid, function), data.resolved(function, selected))
    made.producer = running().records[-1]
    return made


def documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ignores hints for the compiler, and names other keywords that it does not have."""
    parameters = [name for name in signature(function).parameters if not name.startswith("_")]

    names = frozenset(parameters)

    @wraps(function)
    def refusing_unknown(*args: Any, **options: Any) -> Any:
        if not options.keys() <= names:
            options = without_hints(function.__name__, options, parameters)
        return function(*args, **options)

    return refusing_unknown
