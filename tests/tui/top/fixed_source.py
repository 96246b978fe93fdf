"""A source of neuron-top with fixed updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.tui.top.source import Update


class FixedSource:
    """Fixed updates, yielded at once.

    Args:
        updates: to yield.
        name: for the title bar.
    """

    def __init__(self, *updates: Update, name: str = "") -> None:
        self._updates = updates
        self.name = name

    def updates(self) -> Iterator[Update]:
        """Yield them."""
        yield from self._updates

    def close(self) -> None:
        """Nothing to close."""
