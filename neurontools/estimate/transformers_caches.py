"""Caches of keys and values for models of transformers: given tensors, and the shapes that a model asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.cache_utils import Cache, EncoderDecoderCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class GivenCache(Cache):  # type: ignore[misc]
    """Keys and values in given tensors, written from the start for a prompt, else at the positions of a call.

    Those of an encoder's tokens are written by the prompt alone.
    """

    def __init__(
        self, tensors: Sequence[Sequence[torch.Tensor]], *, is_prompt: bool, is_encoder: bool = False
    ) -> None:
        self.tensors, self.is_prompt = tensors, is_prompt
        self.layers = [SimpleNamespace(keys=pair[0], values=pair[1]) for pair in tensors if is_encoder]

    def update(self, key: Any, value: Any, layer_idx: int, cache_kwargs: Any = None) -> Any:
        """Write keys and values of a layer, and return all of them."""
        if self.is_prompt:
            for kept, new in zip(self.tensors[layer_idx], (key, value), strict=True):
                kept[:, :, : new.size(2)].copy_(new)
            return key, value
        at = cache_kwargs["cache_position"]
        new = zip(self.tensors[layer_idx], (key, value), strict=True)
        return tuple(kept.index_copy_(2, at, states) for kept, states in new)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  its signature
        """Return how many tokens of an encoder are known; positions of others are given."""
        return int(bool(self.layers) and not self.is_prompt)


class KeyShapes(Cache):  # type: ignore[misc]
    """Notes heads and depths of the keys and values of each layer."""

    def __init__(self) -> None:
        self.layers: list[object] = []
        self.shapes: dict[int, list[tuple[int, int]]] = {}

    @property
    def of_encoder(self) -> KeyShapes:
        """One for keys and values of the encoder's tokens, which notes them behind the own ones."""
        shapes = KeyShapes()
        shapes.shapes = self.shapes
        return shapes

    def update(self, key: Any, value: Any, layer_idx: int, cache_kwargs: Any = None) -> Any:  # noqa: ARG002
        """Note the shapes of a layer."""
        noted = self.shapes.setdefault(layer_idx, [])
        noted += [(part.size(1), part.size(3)) for part in (key, value)]
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  its signature
        """Return 0: nothing is kept."""
        return 0

    def by_layer(self) -> list[list[tuple[int, int]]]:
        """Return heads and depths of keys and values by layer."""
        return [self.shapes[number] for number in sorted(self.shapes)]


def cached(own: Cache, of_encoder: Cache) -> EncoderDecoderCache:
    """Return the cache of an encoder-decoder."""
    return EncoderDecoderCache(own, of_encoder)
