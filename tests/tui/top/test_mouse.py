"""What the mouse does where something lies over the page: it never reaches what is below."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from textual import events
from textual.command import CommandPalette
from textual.pilot import Pilot

from neurontools.base.procfs import read_start_ticks
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import TimedSnapshot
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Line, text_of
from neurontools.tui.widgets.screens import ChooseScreen, HelpScreen
from tests.tui.top.fixed_source import FixedSource
from tests.tui.unframed import selected as row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

Ticks = tuple[TimedSnapshot, TimedSnapshot]
Opened = AbstractAsyncContextManager[tuple[TopApp, Pilot[int]]]


@asynccontextmanager
async def opened(*ticks: TimedSnapshot, height: int = 24) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    app = TopApp(FixedSource(*ticks), settings=TopSettings(page="processes"))
    async with app.run_test(size=(80, height)) as pilot:
        await app.source_ended.wait()
        await pilot.pause()
        yield app, pilot


async def turn_wheel(pilot: Pilot[int], steps: int) -> None:
    kind = events.MouseScrollDown if steps > 0 else events.MouseScrollUp
    for _ in range(abs(steps)):
        await pilot._post_mouse_events([kind], offset=(20, 8), button=0)
    await pilot.pause()


def selected(lines: tuple[Line, ...]) -> str:
    return row(lines)


def below(app: TopApp) -> tuple[Line, ...]:
    return app.screen_stack[0].query_one("#page-processes", LinePane).lines


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    code = "import signal; print(flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def running(training: Ticks, victim: subprocess.Popen[bytes]) -> Ticks:
    """The training, whose first process is one that lives here."""

    def change(tick: TimedSnapshot) -> TimedSnapshot:
        first, *others = tick.snapshot.processes
        own = replace(
            first, pid=victim.pid, start_ticks=read_start_ticks(victim.pid), uid=os.getuid(), origin="live"
        )
        return replace(tick, snapshot=replace(tick.snapshot, processes=(own, *others)))

    return change(training[0]), change(training[1])


async def test_the_wheel_scrolls_the_keys_and_a_click_closes_them(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        before = below(app)
        await pilot.press("question_mark")
        first = text_of(app.screen.query_one(LinePane).lines[2])
        await turn_wheel(pilot, 3)
        assert text_of(app.screen.query_one(LinePane).lines[2]) != first
        await turn_wheel(pilot, -3)
        assert text_of(app.screen.query_one(LinePane).lines[2]) == first
        await pilot.click(offset=(20, 8))
        assert not isinstance(app.screen, HelpScreen)
        assert below(app) == before
        await turn_wheel(pilot, 1)
        assert selected(below(app)) != selected(before)


async def test_a_question_is_answered_with_the_mouse_or_left_beside_the_box(
    running: Ticks, victim: subprocess.Popen[bytes]
) -> None:
    async with opened(*running) as (app, pilot):
        before = below(app)
        await pilot.press("K")
        box = app.screen.query_one("#choose", LinePane)
        assert selected(box.lines) == "> SIGTERM"
        await turn_wheel(pilot, 1)
        assert selected(box.lines) == "> SIGINT"
        await pilot.click(offset=(box.region.x + 1, box.region.y))
        assert isinstance(app.screen, ChooseScreen)
        await pilot.click(offset=(0, 0))
        assert not isinstance(app.screen, ChooseScreen)
        assert victim.poll() is None
        assert below(app) == before
        await pilot.press("K")
        box = app.screen.query_one("#choose", LinePane)
        at = [text_of(line).strip("│ ").split()[-1:] for line in box.lines].index(["SIGKILL"])
        await pilot.click(offset=(box.region.x + 6, box.region.y + at))
        assert selected(box.lines) == "> SIGKILL"
        assert victim.poll() is None
        await pilot.click(offset=(box.region.x + 6, box.region.y + at))
        assert victim.wait(timeout=600) == -signal.SIGKILL


@pytest.mark.parametrize("key", ["question_mark", "K"])
async def test_two_clicks_at_once_close_once(running: Ticks, key: str) -> None:
    async with opened(*running) as (app, pilot):
        await pilot.press(key)
        over = app.screen
        for _ in range(2):
            over.post_message(
                events.Click(over, 0, 0, 0, 0, 1, shift=False, meta=False, ctrl=False, screen_x=0, screen_y=0)
            )
        await pilot.pause()
        assert app.screen is app.screen_stack[0]
        assert app.is_running


async def test_a_click_where_the_terminal_was_before_it_shrank_ends_nothing(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, CommandPalette)
        late = events.Click(
            app.screen, 196, 43, 0, 0, 1, shift=False, meta=False, ctrl=False, screen_x=196, screen_y=43
        )
        app.screen.post_message(late)
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        await pilot.click(offset=(0, 0))
        assert not isinstance(app.screen, CommandPalette)


async def test_what_the_palette_offered_for_a_page_means_nothing_on_the_next(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("h")
        app.action_page_key("tree")
        await pilot.pause()
        assert app.is_running
