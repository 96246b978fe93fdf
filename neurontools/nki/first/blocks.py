"""Tensors on the chip with dimensions before the partitions: numbered tiles.

Source: AWS Neuron documentation 2.26, "NKI Block Dimension Migration Guide".
"""

from __future__ import annotations

import itertools
from math import prod
from typing import TYPE_CHECKING, Any

from neurontools.nki.context import fail
from neurontools.nki.dtypes import item_bytes
from neurontools.nki.first.dtypes import public_dtype
from neurontools.nki.first.errors import refuse_size
from neurontools.nki.first.index import Index, is_number
from neurontools.nki.first.tile import Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np


class BlockTensor:
    """Tiles on the chip, numbered by the dimensions before the partitions.

    Args:
        shape: sizes of the numbers, then of a tile.
        blocks: how many dimensions number tiles.
        dtype: NKI name of the type.
        make: returns a new tile by its numbers.
        tiles: the tiles that have been made, by numbers.
        prefix: numbers that are chosen already.
    """

    __slots__ = ("_blocks", "_dtype", "_make", "_prefix", "_tiles", "shape")
    __array_ufunc__ = None

    def __init__(
        self,
        shape: tuple[int, ...],
        blocks: int,
        dtype: str,
        make: Callable[[tuple[int, ...]], Tile],
        tiles: dict[tuple[int, ...], Tile],
        prefix: tuple[int, ...] = (),
    ) -> None:
        self.shape = shape
        self._blocks = blocks
        self._dtype = dtype
        self._make = make
        self._tiles = tiles
        self._prefix = prefix

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, as numpy and ml_dtypes name it."""
        return public_dtype(self._dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def block_dims(self) -> int:
        """Number of dimensions before the partitions."""
        return self._blocks

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return item_bytes(self._dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __repr__(self) -> str:
        return f"{self._dtype} {list(self.shape)}"

    def _tile(self, numbers: tuple[int, ...]) -> Tile:
        tile = self._tiles.get(numbers)
        if tile is None:
            tile = self._tiles[numbers] = self._make(numbers)
        return tile

    def tiles(self) -> Iterator[Tile]:
        """Return all tiles in the order of their numbers."""
        for rest in itertools.product(*map(range, self.shape[: self._blocks])):
            yield self._tile(self._prefix + rest)

    def _chosen(self, key: Any) -> tuple[Any, tuple[Any, ...]]:
        keys = key if isinstance(key, tuple) else (key,)
        if keys and keys[0] is Ellipsis:
            keys = (slice(None),) * (self.ndim - len(keys) + 1) + keys[1:]
        numbers: list[int] = []
        for dim, item in enumerate(keys[: self._blocks]):
            number = item.constant if isinstance(item, Index) and not any(item.coefficients) else item
            size = self.shape[dim]
            if not is_number(number):
                self.refuse("index")
            if not -size <= number < size:
                refuse_size(
                    "index",
                    f"Out-of-bound access for tensor `{self}` on dimension {dim}: index range [{number}, {number}]"
                    f" exceed dimension size of {size}",
                )
            numbers.append(int(number) % size)
        chosen = self._prefix + tuple(numbers)
        if len(numbers) < self._blocks:
            count = len(numbers)
            return BlockTensor(
                self.shape[count:], self._blocks - count, self._dtype, self._make, self._tiles, chosen
            ), ()
        return self._tile(chosen), tuple(keys[self._blocks :])

    def __getitem__(self, key: Any) -> Any:
        made, rest = self._chosen(key)
        return made[rest] if isinstance(made, Tile) else made

    def __setitem__(self, key: Any, value: Any) -> None:
        keys = key if isinstance(key, tuple) else (key,)
        if all(item is Ellipsis or item == slice(None) for item in keys) and is_number(value):
            for tile in self.tiles():
                tile[...] = value
            return
        made, rest = self._chosen(key)
        if not isinstance(made, Tile):
            self.refuse("assignment")
        made[rest] = value

    def refuse(self, function: str) -> None:
        """Refuse the tensor where an instruction needs a tile."""
        fail(
            function,
            f"Failed to infer tile from tensor '{self}': the first dimension of a tile is the partition dimension",
            "choose a tile by numbers for the dimensions before it",
        )
