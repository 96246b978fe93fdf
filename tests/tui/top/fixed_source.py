"""A source of neuron-top with fixed updates, and what pictures of it do before they are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from neurontools.tui.top.app import TopApp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.pilot import Pilot

    from neurontools.tui.top.source import Update

Compare = Callable[..., bool]


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


def pressing(*keys: str) -> Callable[[Pilot[int]], object]:
    """Return what waits until the app took in all updates, and presses keys."""

    async def run(pilot: Pilot[int]) -> None:
        assert isinstance(pilot.app, TopApp)
        await pilot.app.source_ended.wait()
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()

    return run
