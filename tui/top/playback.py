"""Time travel in neuron-top: where on the tape the screen is, and what the keys do to that. No terminal here.

Live, the screen follows the newest moment until it is paused or sent back; the tape goes on being filled meanwhile. A
replay has its tape filled by a reader and plays it at a speed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.dashboard.moment import Moment
from neurontools.tui.top.source import Tick, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.dashboard.tape import Tape
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.source import Update

SHORTEST_TAPED_NS = 900_000_000
"""Moments on the tape of a live machine are about a second apart at least, however fast the screen is."""

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)

_SECOND_NS = 1_000_000_000
_BEFORE_SEEK = 60  # moments that are played at once after a jump, so that the last minute is there


class TimeDeck:
    """The position on a tape.

    Args:
        model: what shows moments.
        tape: where they are.
        replay: the tape is a recording that is played; else it follows a machine.
        speed: of a replay, how many times as fast as recorded.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: TopModel,
        tape: Tape,
        *,
        replay: bool = False,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tape = tape
        self.speed = speed
        self.is_replay = replay
        self.is_paused = False
        self.is_loaded = not replay
        """Whether all of a recording is on the tape."""
        self._model = model
        self._clock = clock
        self._shown = -1
        self._position_ns = 0
        self._played_s = clock()

    def take(self, update: Update) -> None:
        """Take in what the source yielded: show it, unless another moment is held."""
        if isinstance(update, Trouble):
            self._model.update(update)
            return
        if self.is_replay:
            return
        self.tape.add(Moment(update.snapshot, update.cpu))
        self._model.update(update)
        self._tell()

    def advance(self) -> bool:
        """Play a replay on; return whether there is something new to show."""
        now_s = self._clock()
        passed_s, self._played_s = now_s - self._played_s, now_s
        if not self.is_replay:
            return False
        if self._shown < 0:
            if self.tape.end == 0:
                return False
            self._jump(self.tape.first)
            self._tell()
            return True
        if self.is_paused:
            return self._tell()
        self._position_ns += round(passed_s * self.speed * _SECOND_NS)
        number = self.tape.at(self._position_ns)
        if number >= self.tape.end - 1:
            # At the end of what there is, time stands still until there is more.
            self._position_ns = min(self._position_ns, self.tape.time_ns(self.tape.end - 1))
        if number <= self._shown:
            return self._tell()
        if number - self._shown > _BEFORE_SEEK:
            self._jump(number)
        else:
            for each in range(self._shown + 1, number + 1):
                self._play(each)
        self._tell()
        return True

    def toggle_pause(self) -> None:
        """Hold the moment that is shown, or go on: live with the newest moment, a replay from here."""
        if not self.is_paused:
            self._pause()
        elif self.is_replay:
            self.is_paused = False
            self._played_s = self._clock()
        else:
            self.go_to_end()
        self._tell()

    def step(self, moments: int) -> None:
        """Pause, and go so many moments on (or back)."""
        if self._pause():
            self._go(self._shown + moments)

    def seek(self, seconds: float) -> None:
        """Go so many seconds on (or back); live this pauses, a replay plays on if it played."""
        if self.is_replay and not self.is_paused and self.tape.end:
            self._jump(self.tape.at(self._position_ns + round(seconds * _SECOND_NS)))
        elif self._pause():
            self._go(self.tape.at(self.tape.time_ns(self._shown) + round(seconds * _SECOND_NS)))
        self._tell()

    def go_to_start(self) -> None:
        """Go to the oldest moment that is on the tape."""
        if self.is_replay and not self.is_paused and self.tape.end:
            self._jump(self.tape.first)
        elif self._pause():
            self._go(self.tape.first)
        self._tell()

    def go_to_end(self) -> None:
        """Go to the newest moment; live, follow it again."""
        if self.is_replay:
            if self.tape.end:
                self._jump(self.tape.end - 1)
        else:
            self.is_paused = False
            self._shown = -1
            self.tape.forget_shown()
            self._model.release()
        self._tell()

    def change_speed(self, steps: int) -> None:
        """Play a replay faster or slower."""
        if self.is_replay:
            nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.speed))
            self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + steps))]
            self._tell()

    def _pause(self) -> bool:
        """Hold what is shown; return False where there is nothing yet."""
        if not self.tape.end:
            return False
        if not self.is_paused:
            self.is_paused = True
            if not self.is_replay:
                self._shown = self.tape.end - 1
                self._hold(self._shown)
        self._shown = max(self._shown, self.tape.first)
        self._tell()
        return True

    def _go(self, number: int) -> None:
        number = max(self.tape.first, min(number, self.tape.end - 1))
        if self.is_replay:
            if number != self._shown:
                self._jump(number)
        else:
            self._shown = number
            self._hold(number)
        self._tell()

    def _hold(self, number: int) -> None:
        before = _tick(self.tape.moment(number - 1)) if number > self.tape.first else None
        self._model.hold(before, _tick(self.tape.moment(number)))

    def _jump(self, number: int) -> None:
        """Show a moment of a replay as if the last minute before it had been played."""
        self._model.start_over()
        for each in range(max(self.tape.first, number - _BEFORE_SEEK), number + 1):
            self._play(each)
        self._position_ns = self.tape.time_ns(number)

    def _play(self, number: int) -> None:
        trouble = self._model.trouble
        self._model.update(_tick(self.tape.moment(number)))
        self._model.trouble = trouble  # what is wrong with the file stays wrong
        self._shown = number

    def _tell(self) -> bool:
        before, self._model.position = self._model.position, self._position()
        return before != self._model.position

    def _position(self) -> str:
        if self.is_replay:
            return self._replay_position()
        if not self.is_paused or not self.tape.end:
            return ""
        newest_ns = self.tape.time_ns(self.tape.end - 1)
        shown = max(self._shown, self.tape.first)
        back_s = (newest_ns - self.tape.time_ns(shown)) / _SECOND_NS
        snapshot = self._model.snapshot
        clock = time.strftime("%H:%M:%S", time.localtime(snapshot.taken_unix_s)) if snapshot else ""
        behind = f" (-{duration(back_s)})" if back_s >= 0.5 else ""
        # Rates are of the interval up to a moment, and the oldest has none.
        rates = "oldest, no rates, " if self._model.before is None else ""
        return f"paused at {clock}{behind}, {rates}still recording"

    def _replay_position(self) -> str:
        if self._shown < 0:
            return "" if self.is_loaded else "loading"
        first_ns = self.tape.time_ns(self.tape.first)
        at_s = (self.tape.time_ns(max(self._shown, self.tape.first)) - first_ns) / _SECOND_NS
        all_s = (self.tape.time_ns(self.tape.end - 1) - first_ns) / _SECOND_NS
        state = f"x{self.speed:g}"
        if self.is_paused:
            state = "paused, no rates yet" if self._model.before is None else "paused"
        elif self.is_loaded and self._shown == self.tape.end - 1:
            state = "end"
        more = "" if self.is_loaded else "+"
        return f"{duration(at_s)} of {duration(all_s)}{more} {state}"


def duration(seconds: float) -> str:
    """Return a time as m:ss, or h:mm:ss from an hour on."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _tick(moment: Moment) -> Tick:
    return Tick(moment.snapshot, moment.cpu)


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
        from neurontools.sources.recording import RecordingSource

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
