"""Time travel in neuron-top: which snapshot of the history is shown, and what the keys do to that. No terminal here.

Live, the screen follows the newest snapshot until it is paused or sent back, while the history keeps growing. In a
replay a reader fills the history, and it is played at a speed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct, field

from neurontools.dashboard.snapshot_history import TimedSnapshot
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.source import SourceProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.dashboard.snapshot_history import SnapshotHistory
    from neurontools.tui.top.source import Update

SHORTEST_TAPED_NS = 900_000_000
"""Minimum time between two snapshots in the history of a live machine, however fast the screen is."""

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)

_SECOND_NS = 1_000_000_000
_BEFORE_SEEK = 60  # snapshots played at once after a jump, to fill the last minute

REPLAY_BYTES = 4 << 30
"""Size limit of the history of a recording; the oldest snapshots of a longer recording are dropped."""


class MonitoredMachine(Struct):
    """A machine on the screen, or one of several: its name, its model and its position in time."""

    name: str
    model: TopModel
    playback: PlaybackController
    last_update_s: float = field(default_factory=time.monotonic)


class PlaybackController:
    """The position in a history: live, paused, or playing a recording.

    Args:
        model: shows the snapshots.
        history: the snapshots.
        replay: the history is a recording that is played, else it follows a machine.
        speed: of a replay, how many times as fast as recorded.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: TopModel,
        history: SnapshotHistory,
        *,
        replay: bool = False,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = history
        self.speed = speed
        self.is_replay = replay
        self.is_paused = False
        self.is_loaded = not replay
        """Whether all of a recording is in the history."""
        self._model = model
        self._clock = clock
        self._shown = -1
        self._position_ns = 0
        self._played_s = clock()

    def take(self, update: Update) -> None:
        """Take an update of the source: show it, unless another snapshot is held."""
        if isinstance(update, SourceProblem):
            self._model.update(update)
            return
        if self.is_replay:
            return
        self.history.add(update)
        self._model.update(update)
        self._update_position()

    def advance(self) -> bool:
        """Advance a replay; return whether there is something new to show."""
        now_s = self._clock()
        passed_s, self._played_s = now_s - self._played_s, now_s
        if not self.is_replay:
            return False
        if self._shown < 0:
            if self.history.end == 0:
                return False
            self._jump(self.history.first)
            self._update_position()
            return True
        if self.is_paused:
            return self._update_position()
        self._position_ns += round(passed_s * self.speed * _SECOND_NS)
        number = self.history.at(self._position_ns)
        if number >= self.history.end - 1:
            # At the end of the data, time stands still until more arrives.
            self._position_ns = min(self._position_ns, self.history.time_ns(self.history.end - 1))
        if number <= self._shown:
            return self._update_position()
        if number - self._shown > _BEFORE_SEEK:
            self._jump(number)
        else:
            for index in range(self._shown + 1, number + 1):
                self._play(index)
        self._update_position()
        return True

    def toggle_pause(self) -> None:
        """Pause, or continue: live with the newest snapshot, a replay from here."""
        if not self.is_paused:
            self._pause()
        elif self.is_replay:
            self.is_paused = False
            self._played_s = self._clock()
        else:
            self.go_to_end()
        self._update_position()

    def step(self, count: int) -> None:
        """Pause, and go forward (or back) by a number of snapshots."""
        if self._pause():
            self._go(self._shown + count)

    def seek(self, seconds: float) -> None:
        """Go forward (or back) by seconds; live this pauses, a replay keeps playing if it played."""
        if self._is_playing:
            self._jump(self.history.at(self._position_ns + round(seconds * _SECOND_NS)))
        elif self._pause():
            self._go(self.history.at(self.history.time_ns(self._shown) + round(seconds * _SECOND_NS)))
        self._update_position()

    def go_to_start(self) -> None:
        """Go to the oldest snapshot of the history."""
        if self._is_playing:
            self._jump(self.history.first)
        elif self._pause():
            self._go(self.history.first)
        self._update_position()

    def go_to_end(self) -> None:
        """Go to the newest snapshot; live, follow it again."""
        if self.is_replay:
            if self.history.end:
                self._jump(self.history.end - 1)
        else:
            self.is_paused = False
            self._shown = -1
            self.history.forget_shown()
            self._model.release()
        self._update_position()

    def change_speed(self, steps: int) -> None:
        """Play a replay faster or slower."""
        if self.is_replay:
            nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.speed))
            self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + steps))]
            self._update_position()

    @property
    def _is_playing(self) -> bool:
        return self.is_replay and not self.is_paused and self.history.end > 0

    def _pause(self) -> bool:
        """Hold the shown snapshot; return False without one."""
        if not self.history.end:
            return False
        if not self.is_paused:
            self.is_paused = True
            if not self.is_replay:
                self._shown = self.history.end - 1
                self._hold(self._shown)
        self._shown = max(self._shown, self.history.first)
        self._update_position()
        return True

    def _go(self, number: int) -> None:
        number = max(self.history.first, min(number, self.history.end - 1))
        if self.is_replay:
            if number != self._shown:
                self._jump(number)
        else:
            self._shown = number
            self._hold(number)
        self._update_position()

    def _hold(self, number: int) -> None:
        before = self.history.snapshot(number - 1) if number > self.history.first else None
        self._model.hold(before, self.history.snapshot(number))

    def _jump(self, number: int) -> None:
        """Show a snapshot of a replay as if the last minute before it had been played."""
        self._model.start_over()
        for index in range(max(self.history.first, number - _BEFORE_SEEK), number + 1):
            self._play(index)
        self._position_ns = self.history.time_ns(number)

    def _play(self, number: int) -> None:
        trouble = self._model.trouble
        self._model.update(self.history.snapshot(number))
        self._model.trouble = trouble  # problems of the file stay shown
        self._shown = number

    def _update_position(self) -> bool:
        before, self._model.position = self._model.position, self._position()
        return before != self._model.position

    def _position(self) -> str:
        if self.is_replay:
            return self._replay_position()
        if not self.is_paused or not self.history.end:
            return ""
        newest_ns = self.history.time_ns(self.history.end - 1)
        shown = max(self._shown, self.history.first)
        back_s = (newest_ns - self.history.time_ns(shown)) / _SECOND_NS
        snapshot = self._model.shown.snapshot
        clock = time.strftime("%H:%M:%S", time.localtime(snapshot.taken_unix_s)) if snapshot else ""
        behind = f" (-{duration(back_s)})" if back_s >= 0.5 else ""
        # Rates belong to the interval before a snapshot, and the oldest has none.
        rates = "oldest, no rates, " if self._model.shown.before is None else ""
        return f"paused at {clock}{behind}, {rates}still recording"

    def _replay_position(self) -> str:
        if self._shown < 0:
            return "" if self.is_loaded else "loading"
        first_ns = self.history.time_ns(self.history.first)
        at_s = (self.history.time_ns(max(self._shown, self.history.first)) - first_ns) / _SECOND_NS
        all_s = (self.history.time_ns(self.history.end - 1) - first_ns) / _SECOND_NS
        state = f"x{self.speed:g}"
        if self.is_paused:
            state = "paused, no rates yet" if self._model.shown.before is None else "paused"
        elif self.is_loaded and self._shown == self.history.end - 1:
            state = "end"
        more = "" if self.is_loaded else "+"
        return f"{duration(at_s)} of {duration(all_s)}{more} {state}"


def duration(seconds: float) -> str:
    """Return a time as m:ss, or h:mm:ss from an hour on."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ReplaySource:
    """A recording, read into a history at full speed; a `PlaybackController` plays it.

    Args:
        path: the recording.
        history: filled from the reading thread.

    Raises:
        NeuronToolsError: it can't be read.
    """

    live = False

    def __init__(self, path: str, history: SnapshotHistory) -> None:
        from neurontools.sources.recording import RecordingSource

        self._recording = RecordingSource(path)
        self._history = history
        self._closed = False
        self.name = self._recording.name

    def updates(self) -> Iterator[Update]:
        """Yield only problems of the recording."""
        for snapshot in self._recording.snapshots():
            if self._closed:
                return
            self._history.add(TimedSnapshot(snapshot))
        notices = self._recording.notices
        if self._history.end == 0:
            notices = (*notices, f"{self.name} has no line with devices")
        if notices:
            yield SourceProblem("; ".join(notices), is_outage=False)

    def close(self) -> None:
        """End `updates` at its next step."""
        self._closed = True
