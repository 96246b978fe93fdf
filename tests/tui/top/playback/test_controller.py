"""The position on the tape: each key does what it says, live and in a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.dashboard.snapshot_history import SnapshotHistory, TimedSnapshot
from neurontools.sources.retrying import SourceProblem
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.playback import PlaybackController, duration

MakeTick = Callable[..., "TimedSnapshot"]


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def tape() -> Iterator[SnapshotHistory]:
    made = SnapshotHistory(block_size=7)
    yield made
    made.close()


@pytest.fixture
def live(tape: SnapshotHistory, tick_at: MakeTick) -> PlaybackController:
    """A playback that followed a machine for seconds 0 to 99."""
    playback = PlaybackController(TopModel(), tape)
    for second in range(100):
        playback.take(tick_at(second))
    return playback


def shown(playback: PlaybackController) -> int:
    """The second that the screen shows."""
    snapshot = playback._model.shown.snapshot
    assert snapshot
    return snapshot.taken_ns // 1_000_000_000


def percent(playback: PlaybackController) -> int:
    """The utilization of the first core that the screen shows."""
    view = playback._model.shown.view
    assert view
    return round(100 * view.devices[0].cores[0].utilization)


def test_live_the_newest_snapshot_is_shown_and_nothing_is_reported(live, tick_at):
    assert (shown(live), live._model.position) == (99, "")


def test_paused_it_holds_and_goes_on_recording(live, tick_at):
    live.toggle_pause()
    for second in range(100, 110):
        live.take(tick_at(second))
    assert (shown(live), percent(live)) == (99, 99)
    assert live.history.end == 110
    assert live._model.position.startswith("paused at ")
    assert live._model.position.endswith("(-0:10), still recording")
    assert live._model.history.minute(("machine", 0))[-1].mean == pytest.approx(1.0)
    live.toggle_pause()
    assert (shown(live), live._model.position) == (109, "")
    live.take(tick_at(110))
    assert shown(live) == 110


def test_scrolling_back_shows_the_rates_of_then(live):
    for _ in range(3):
        live.step(-1)
    assert (shown(live), percent(live)) == (96, 96)
    live.seek(-60)
    assert (shown(live), percent(live)) == (36, 36)
    live.seek(60)
    assert shown(live) == 96
    live.seek(-1000)
    assert shown(live) == 0
    live.step(-1)
    assert shown(live) == 0
    assert "oldest, no rates" in live._model.position
    live.step(50)
    assert "no rates" not in live._model.position
    live.go_to_start()
    assert shown(live) == 0
    live.seek(1000)
    assert shown(live) == 99
    assert live.is_paused
    live.go_to_end()
    assert (shown(live), live.is_paused) == (99, False)


def test_what_falls_off_the_tape_while_it_is_shown_is_left(tick_at):
    tape = SnapshotHistory(disk_bytes=2000, block_size=5)
    playback = PlaybackController(TopModel(), tape)
    for second in range(20):
        playback.take(tick_at(second))
    playback.go_to_start()
    for second in range(20, 200):
        playback.take(tick_at(second))
    assert tape.first > 0
    playback.step(1)
    assert shown(playback) >= tape.first
    assert playback._model.position
    tape.close()


def test_keys_before_there_is_anything_do_nothing(tape):
    playback = PlaybackController(TopModel(), tape)
    for act in (playback.toggle_pause, playback.go_to_start, playback.go_to_end):
        act()
    playback.step(-1)
    playback.seek(10)
    playback.change_speed(1)
    assert (playback._model.shown.snapshot, playback.is_paused, playback.speed) == (None, False, 1.0)


def test_trouble_is_shown_beside_the_position(live):
    live.toggle_pause()
    live.take(SourceProblem("machine not running, waiting for it"))
    assert live._model.trouble == "machine not running, waiting for it"
    assert live._model.position.startswith("paused")


def test_another_machine_while_paused_begins_a_new_history(live, tick_at):
    live.toggle_pause()
    live.take(tick_at(3, started_unix_s=77.0))
    live.take(tick_at(4, started_unix_s=77.0))
    assert shown(live) == 99
    live.toggle_pause()
    assert shown(live) == 4


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def played(tape: SnapshotHistory, tick_at: MakeTick, clock: Clock) -> PlaybackController:
    """A playback that plays a recording of seconds 0 to 199, all loaded, at its beginning."""
    playback = PlaybackController(TopModel(), tape, replay=True, clock=clock)
    for second in range(200):
        tape.add(TimedSnapshot(tick_at(second).snapshot))
    playback.is_loaded = True
    assert playback.advance()
    return playback


def pass_s(playback: PlaybackController, clock: Clock, seconds: float) -> bool:
    clock.time_s += seconds
    return playback.advance()


def test_a_replay_plays_at_the_pace_of_its_recording(played, clock):
    assert (shown(played), played._model.position) == (0, "0:00 of 3:19 x1")
    assert not pass_s(played, clock, 0.4)
    assert pass_s(played, clock, 0.6)
    assert (shown(played), percent(played)) == (1, 1)
    for _ in range(50):
        pass_s(played, clock, 0.1)
    assert (shown(played), percent(played)) == (6, 6)


def test_a_replay_can_be_paused_sought_and_sped_up(played, clock):
    pass_s(played, clock, 10)
    played.toggle_pause()
    pass_s(played, clock, 100)
    assert (shown(played), played._model.position) == (10, "0:10 of 3:19 paused")
    played.step(-4)
    assert (shown(played), percent(played)) == (6, 6)
    played.toggle_pause()
    played.change_speed(2)
    assert played.speed == 5.0
    pass_s(played, clock, 2)
    assert (shown(played), played._model.position) == (16, "0:16 of 3:19 x5")
    played.seek(60)
    assert (shown(played), percent(played)) == (76, 76)
    pass_s(played, clock, 1)
    assert shown(played) == 81


def test_after_a_jump_the_last_minute_is_there(played):
    played.seek(150)
    minute = played._model.history.minute(("machine", 0))
    assert minute[-1].mean == pytest.approx(1.0, abs=0.6)
    assert all(slot is not None for slot in minute[1:])
    played.seek(-100)
    assert shown(played) == 50
    assert played._model.history.minute(("machine", 0))[0] is None


def test_at_the_end_a_replay_stands_still_until_there_is_more(played, clock, tick_at):
    played.is_loaded = False
    pass_s(played, clock, 1000)
    assert (shown(played), played._model.position) == (199, "3:19 of 3:19+ x1")
    pass_s(played, clock, 1000)
    played.history.add(TimedSnapshot(tick_at(200).snapshot))
    played.history.add(TimedSnapshot(tick_at(201).snapshot))
    pass_s(played, clock, 1)
    assert shown(played) == 200
    played.is_loaded = True
    pass_s(played, clock, 10)
    assert played._model.position == "3:21 of 3:21 end"


def test_an_empty_replay_waits(tape):
    playback = PlaybackController(TopModel(), tape, replay=True)
    assert not playback.advance()
    playback.toggle_pause()
    playback.seek(5)
    playback.go_to_end()
    assert playback._model.position == "loading"
    playback.is_loaded = True
    playback.toggle_pause()
    assert playback._model.position == ""


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(-200, 200)),
            st.tuples(st.just("seek"), st.integers(-300, 300)),
            st.tuples(st.sampled_from(["toggle_pause", "go_to_start", "go_to_end"])),
            st.tuples(st.just("change_speed"), st.integers(-20, 20)),
            st.tuples(st.just("pass"), st.floats(0, 500)),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_whatever_is_pressed_a_recorded_snapshot_is_shown(tick_at, keys, replay):
    clock, tape = Clock(), SnapshotHistory(block_size=9)
    playback = PlaybackController(TopModel(), tape, replay=replay, clock=clock)
    for second in range(40):
        tape.add(TimedSnapshot(tick_at(second).snapshot)) if replay else playback.take(tick_at(second))
    playback.advance()
    second = 40
    for name, *arguments in keys:
        if name == "pass":
            clock.time_s += arguments[0]
            playback.advance()
            if not replay:
                playback.take(tick_at(second))
                second += 1
        else:
            getattr(playback, name)(*arguments)
        assert tape.first <= shown(playback) < tape.end
        assert percent(playback) in {0, shown(playback)}
    tape.close()


def test_durations_read_as_clocks():
    assert [duration(seconds) for seconds in (0, 59.6, 3599, 3600, 86_399)] == [
        "0:00",
        "1:00",
        "59:59",
        "1:00:00",
        "23:59:59",
    ]
