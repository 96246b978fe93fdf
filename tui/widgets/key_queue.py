"""Key queue: each key is fully processed before the next one is delivered. A mixin for apps.

Textual delivers a key to the widget that has the focus when the key is read. Input right after a key that
changes the page or opens a prompt would go to the wrong widget, or nowhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from textual import events
from textual.app import App
from textual.message import Message

# A key may post messages, such as a submitted prompt; the second lap comes after them.
_LAPS = 2
# A message to a widget that was removed never arrives.
_LONGEST_LAP_S = 0.5


class KeyQueue(App[int]):
    """Delivers keys and pastes one after the other."""

    class Passed(Message, bubble=True):
        """Follows a key, from the widget that received it up to the app.

        Args:
            lap: number of this run.
        """

        def __init__(self, lap: int) -> None:
            super().__init__()
            self.lap = lap

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._typed: deque[events.Key | events.Paste] = deque()
        self._lap: KeyQueue.Passed | None = None
        self._lap_end: asyncio.TimerHandle | None = None

    @property
    def has_keys(self) -> bool:
        """Whether any input is still being processed."""
        return self._lap is not None

    async def on_event(self, event: events.Event) -> None:
        """Queue keys and pastes; Textual handles all other events."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        self._typed.append(event)
        if self._lap is None:
            await self._hand_on()

    async def on_key_queue_passed(self, passed: Passed) -> None:
        """Deliver the next key once the current one is fully processed."""
        if passed is not self._lap:
            return
        if passed.lap < _LAPS:
            self._run(passed.lap + 1)
        else:
            await self._hand_on()

    async def _hand_on(self) -> None:
        self._end_lap()
        if self._typed:
            await super().on_event(self._typed.popleft())
            self._run(1)

    def _run(self, lap: int) -> None:
        self._end_lap()
        self._lap = self.Passed(lap)
        self._lap_end = asyncio.get_running_loop().call_later(_LONGEST_LAP_S, self._give_up, self._lap)
        (self.focused or self.screen).post_message(self._lap)

    def _end_lap(self) -> None:
        self._lap = None
        if self._lap_end is not None:
            self._lap_end.cancel()

    def _give_up(self, lap: Passed) -> None:
        lap.lap = _LAPS
        self.post_message(lap)
