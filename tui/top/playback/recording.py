"""A recording as a source of neuron-top that can be played: read onto a tape, whatever the speed of playing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.dashboard.moment import Moment
from neurontools.sources.following import Trouble
from neurontools.sources.recording import RecordingSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.dashboard.tape import Tape
    from neurontools.tui.top.source import Update


REPLAY_BYTES = 4 << 30
"""What a recording may take on its tape; the oldest moments of a longer one are forgotten."""


class ReplaySource:
    """A recording that is read onto a tape as fast as that goes; a `TimeDeck` plays it.

    Args:
        path: the recording.
        tape: filled from the reading thread.

    Raises:
        NeuronToolsError: it can't be read.
    """

    live = False

    def __init__(self, path: str, tape: Tape) -> None:
        self._recording = RecordingSource(path)
        self._tape = tape
        self._closed = False
        self.name = self._recording.name

    def updates(self) -> Iterator[Update]:
        """Yield only what is wrong with the recording."""
        for snapshot in self._recording.snapshots():
            if self._closed:
                return
            self._tape.add(Moment(snapshot))
        notices = self._recording.notices
        if self._tape.end == 0:
            notices = (*notices, f"{self.name} has no line with devices")
        if notices:
            yield Trouble("; ".join(notices), is_outage=False)

    def close(self) -> None:
        """End `updates` at its next step."""
        self._closed = True
