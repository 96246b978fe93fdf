"""What the keys of time travel do, for the app to inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.tui.top.playback.controller import TimeDeck


class TimeActions:
    """Actions on the position in time; `paint` shows what became of it."""

    deck: TimeDeck

    def paint(self) -> None:
        """Show the model."""
        raise NotImplementedError

    def action_pause(self) -> None:
        """Hold what is shown, or go on."""
        self.deck.toggle_pause()
        self.paint()

    def action_step(self, moments: int) -> None:
        """Go moments on or back."""
        self.deck.step(moments)
        self.paint()

    def action_seek(self, seconds: float) -> None:
        """Go seconds on or back."""
        self.deck.seek(seconds)
        self.paint()

    def action_tape_start(self) -> None:
        """Go to the oldest moment."""
        self.deck.go_to_start()
        self.paint()

    def action_tape_end(self) -> None:
        """Go to the newest moment and follow it."""
        self.deck.go_to_end()
        self.paint()

    def action_speed(self, steps: int) -> None:
        """Play a replay faster or slower."""
        self.deck.change_speed(steps)
        self.paint()
