"""What neuron-top shows of a lost device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.tui.top.model import TopModel
from neurontools.tui.top.screen import classic_frame, text_screen
from neurontools.tui.widgets.lines import width_of
from tests.tui.top.conftest import ticks

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.tui.top.source import TimedSnapshot

    Make = Callable[..., tuple[TimedSnapshot, TimedSnapshot]]

__all__ = ["ticks"]


def losing(tick: TimedSnapshot, lost: set[int]) -> TimedSnapshot:
    devices = tuple(replace(device, lost=device.index in lost) for device in tick.snapshot.devices)
    return replace(tick, snapshot=replace(tick.snapshot, devices=devices))


def test_a_lost_device_has_no_meter_but_the_word(ticks: Make) -> None:
    model = TopModel(colour=False)
    for tick in ticks(devices=4, cores=2):
        model.update(losing(tick, {2}))
    title, *screen = text_screen(model, 80).splitlines()
    rows = [row for row in screen if row.lstrip(" !").startswith("ND")]
    assert title.endswith("! ND2 is lost")
    assert [row.split() for row in rows if "ND2" in row] == [["!ND2", "lost", "lost"]]
    assert sum("[ 0.00%]" in row for row in rows) == 3


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.tuples(st.integers(60, 200), st.integers(16, 60)),
    machine=st.tuples(st.integers(1, 16), st.integers(1, 32)),
    lost=st.sets(st.integers(0, 15)),
)
def test_the_screen_stays_whole(
    ticks: Make, size: tuple[int, int], machine: tuple[int, int], lost: set[int]
) -> None:
    model = TopModel(colour=True)
    for tick in ticks(*machine):
        model.update(losing(tick, lost))
    lines = [line for pane in classic_frame(model, *size).values() for line in pane]
    assert {sum(width_of(text) for text, _ in line) for line in lines} == {size[0]}
