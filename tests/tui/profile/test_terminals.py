"""The viewer on poor terminals: no colour, no UTF-8, tiny, resized all the time, a mouse that points outside."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
from textual.events import Click, MouseDown, MouseMove, MouseScrollDown, MouseUp

from neurontools.profiler.trace.open import load
from neurontools.tui.profile.app import PAGE_NAMES, ProfileApp
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.widgets.lines import ascii_only, width_of
from tests.tui.profile.test_pages import key_of, shown
from tests.tui.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.conftest import Maker

SIZES = [(80, 24), (120, 40), (200, 60)]
MOUSE: dict[str, Any] = {
    "delta_x": 0,
    "delta_y": 0,
    "button": 1,
    "shift": False,
    "meta": False,
    "ctrl": False,
}


def screen_text(pilot: Pilot[None]) -> list[str]:
    """What the terminal shows, line by line."""
    width, height = pilot.app.size
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()][:height] or [" " * width]


async def both(home: Path, maker: Maker, trace: Trace) -> ProfileApp:
    maker.finished(home / "after", ncs=(0, 1))
    return ProfileApp(trace, load(str(home / "after")))


@pytest.mark.parametrize("size", SIZES)
async def test_every_page_is_drawn_without_colours_and_in_ascii(
    trace: Trace, home: Path, maker: Maker, size: tuple[int, int]
) -> None:
    async with (await both(home, maker, trace)).run_test(size=size) as pilot:
        assert pilot.app.no_color
        for name in PAGE_NAMES:
            await pilot.press(key_of(name))
            await pilot.pause()
            body = screen_text(pilot)[1:-1]
            plain = [ascii_only(line) for line in body]
            assert [len(line) for line in plain] == [size[0]] * len(plain)
            assert not [line for line in plain if "?" in line], name
            strips = pilot.app.screen._compositor.render_strips()
            colours = {segment.style.color for strip in strips for segment in strip if segment.style}
            shades = {color.triplet for color in colours if color and color.triplet}
            assert all(len(set(shade)) == 1 for shade in shades), name


async def test_pages_survive_a_storm_of_sizes(trace: Trace, home: Path, maker: Maker) -> None:
    chance = random.Random(15)
    async with (await both(home, maker, trace)).run_test(size=(120, 40)) as pilot:
        for name in (*PAGE_NAMES, *PAGE_NAMES):
            for _ in range(3):
                await pilot.resize_terminal(chance.randint(1, 210), chance.randint(1, 64))
            await pilot.press(key_of(name), "down", "plus", "z", "enter")
            await pilot.press("escape")
        await pilot.resize_terminal(100, 30)
        for name in PAGE_NAMES:
            await pilot.press(key_of(name))
            await pilot.pause()
            assert [width_of(line) for line in screen_text(pilot)] == [100] * 30, name


@pytest.mark.parametrize("name", PAGE_NAMES)
async def test_a_screen_that_is_too_small_says_so_and_comes_back(
    trace: Trace, home: Path, maker: Maker, name: str
) -> None:
    async with (await both(home, maker, trace)).run_test(size=(10, 3)) as pilot:
        await pilot.press(key_of(name), "down", "up", "tab", "plus", "escape")
        await pilot.click(offset=(1, 0))
        assert [line.strip() for line in screen_text(pilot)] == ["needs", "60x12", "q: quit"]
        await pilot.resize_terminal(60, 12)
        await pilot.pause()
        lines = screen_text(pilot)
        assert [width_of(line) for line in lines] == [60] * 12
        assert name[:3] in lines[0].lower()
        page = pilot.app.query_one(f"#{name}")
        assert page.size.height == 10
        assert pilot.app.focused is not None
        assert page in pilot.app.focused.ancestors_with_self


@pytest.mark.parametrize("name", PAGE_NAMES)
async def test_a_mouse_outside_of_a_page_does_no_harm(
    trace: Trace, home: Path, maker: Maker, name: str
) -> None:
    async with (await both(home, maker, trace)).run_test(size=(80, 24)) as pilot:
        await pilot.press(key_of(name))
        targets = list(pilot.app.query(f"#{name} LinePane, #{name} TimelineView, #{name}"))
        before = shown(pilot, name)
        for x, y in ((-5, -5), (0, 500), (900, 2), (-1, 3), (79, 23)):
            for target in targets:
                for kind in (MouseDown, MouseMove, MouseUp, Click, MouseScrollDown):
                    target.post_message(kind(target, x, y, screen_x=x, screen_y=y, **MOUSE))
        await pilot.pause()
        assert {width_of(line) for line in shown(pilot, name)} <= {80}
        assert len(shown(pilot, name)) == len(before)
        view = pilot.app.query_one(TimelineView)
        assert 0 <= view.state.view.start_ns < view.state.view.end_ns <= view.state.view.longest_ns


@pytest.fixture
def opened(profile_dir: Path) -> Any:
    terminals: list[Terminal] = []

    def start(**options: Any) -> Terminal:
        terminals.append(Terminal("view", str(profile_dir), program="neuron-profile", **options))
        return terminals[-1]

    yield start
    for each in terminals:
        each.close()


def test_a_terminal_without_utf8_gets_ascii(opened: Callable[..., Terminal]) -> None:
    shown_there = opened(PYTHONIOENCODING="latin-1", size=(100, 30))
    shown_there.read_until("Timeline")
    for key in "13459":
        shown_there.press(key)
    shown_there.read_until("BEFORE AFTER")
    shown_there.quit()
    assert shown_there.output.isascii()


def test_a_tiny_terminal_without_colours_says_what_it_needs(opened: Callable[..., Terminal]) -> None:
    shown_there = opened(NO_COLOR="1", TERM="xterm", size=(10, 3))
    shown_there.read_until("60x12")
    shown_there.quit()


def test_after_a_stop_everything_is_drawn_again(opened: Callable[..., Terminal]) -> None:
    shown_there = opened(TERM="xterm", size=(100, 30))
    shown_there.read_until("Timeline")
    shown_there.press("4")
    shown_there.read_until("custom::tick")
    shown_there.press("\x1a")
    assert shown_there.has_stopped()
    assert shown_there.is_restored()
    shown_there.process.send_signal(signal.SIGCONT)
    shown_there.read_until("custom::tick")
    shown_there.quit()


def test_a_dumb_terminal_gets_the_summary(opened: Callable[..., Terminal]) -> None:
    shown_there = opened(TERM="dumb")
    shown_there.read_until("Operators by modelled time")
    assert shown_there.exit_code() == 0
    assert b"\x1b" not in shown_there.output
