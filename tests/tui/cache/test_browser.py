"""The cache browser on a screen: every key, what it reads and deletes, pictures, a real terminal."""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from textual import events

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.locks import hold
from neurontools.tui.cache import app
from neurontools.tui.cache.app import CacheApp
from neurontools.tui.cache.browser import Browser
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of
from neurontools.tui.widgets.screens import ChooseScreen, HelpScreen, PromptScreen, TextScreen
from tests.tui.terminal import Terminal

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from textual.pilot import Pilot

    from tests.cache.conftest import Tree


@pytest.fixture
def some(tree: Tree) -> Tree:
    """Two compilers, three finished entries of three sizes, a failure, one that is pinned."""
    tree.done(graph="1111")
    large = tree.done(graph="2222")
    (large / "extra").write_bytes(bytes(100_000))
    old = tree.done(graph="3333", compiler="2.15.143.0+e39249ad")
    (old / layouts.PIN).touch()
    tree.failed(graph="4444")
    return tree


def screen(app: CacheApp) -> list[str]:
    return [text_of(line).rstrip() for line in app.query_one("#cache", LinePane).lines]


@asynccontextmanager
async def browsing(
    tree: Tree, size: tuple[int, int] = (110, 20)
) -> AsyncIterator[tuple[Pilot[int], CacheApp]]:
    app = CacheApp(Browser(str(tree.root)))
    async with app.run_test(size=size) as pilot:
        await rest(pilot)
        yield pilot, app


async def rest(pilot: Pilot[int]) -> None:
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[int], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await rest(pilot)


async def test_it_shows_the_tree_with_sizes(some: Tree) -> None:
    async with browsing(some) as (_, app):
        lines = screen(app)
        assert str(some.root) in lines[0]
        assert "4 entries" in lines[0]
        assert "group: compiler > network" in lines[1]
        assert "sort: size" in lines[1]
        assert [re.split(r"  +", line.strip("▌ "))[0] for line in lines[3:12]] == [
            "▾ 2.16.372.0+5eed0002",
            "▾ mlp",
            "MODULE_2222+e30acd3a",
            "MODULE_1111+e30acd3a",
            "▾ (no name)",
            "MODULE_4444+e30acd3a",
            "▾ 2.15.143.0+e39249ad",
            "▾ mlp",
            "* MODULE_3333+e30acd3a",
        ]
        assert "▇" in lines[3]


async def test_marks_have_a_running_total_and_delete_asks(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "d")
        assert "nothing is marked" in screen(app)[-1]
        await press(pilot, "down", "down", "space", "space")
        assert len(app.browser.marks) == 2
        assert screen(app)[-1].startswith(" marked: 2, ")
        await press(pilot, "d")
        assert isinstance(app.screen, ChooseScreen)
        asked = "\n".join(text_of(line) for line in app.screen.query_one("#choose", LinePane).lines)
        assert "MODULE_1111+e30acd3a" in asked
        assert "2 entries " in asked
        await press(pilot, "n")
        assert len(app.browser.entries) == 4
        await press(pilot, "d", "y")
        await rest(pilot)
        assert [entry.module[:11] for entry in app.browser.entries] == ["MODULE_3333", "MODULE_4444"]
        assert "2 entries removed" in screen(app)[-1]
        assert screen(app)[-1].startswith(" marked: 0, ")


async def test_what_must_stay_says_so(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "end", "space")
        assert "not marked: MODULE_3333+e30acd3a: pinned" in screen(app)[-1]
        await press(pilot, "a")
        assert (len(app.browser.marks), "pinned" in screen(app)[-1]) == (3, True)
        await press(pilot, "u")
        assert len(app.browser.marks) == 0


async def test_what_is_taken_into_use_after_the_question_is_spared(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "a", "d")
        held = hold(str(next(some.root.glob("*/MODULE_1111*"))))
        assert held is not None
        await press(pilot, "enter")
        await rest(pilot)
        os.close(held)
        assert "1 spared: in use" in screen(app)[-1]
        assert [entry.module[:11] for entry in app.browser.entries] == ["MODULE_3333", "MODULE_1111"]


async def test_pins_and_tags(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "down", "down", "p")
        (large,) = some.root.glob("*/MODULE_2222*")
        assert (large / layouts.PIN).exists()
        await press(pilot, "p")
        assert not (large / layouts.PIN).exists()
        await press(pilot, "t")
        assert isinstance(app.screen, PromptScreen)
        await press(pilot, *"best", "enter")
        assert (large / f"{layouts.TAG_PREFIX}best").exists()
        await press(pilot, "t", *"a/b", "enter")
        assert "a/b" in screen(app)[-1]


async def test_the_views_of_an_entry(some: Tree) -> None:
    async with browsing(some) as (pilot, app):

        async def view(*keys: str) -> str:
            await press(pilot, *keys)
            assert isinstance(app.screen, TextScreen)
            text = app.screen._text
            await press(pilot, "down", "pagedown", "end", "home", "up", "pageup", "escape")
            assert not isinstance(app.screen, TextScreen)
            return text

        assert "compiler" in await view("down", "down", "enter")
        assert "MODULE_2222+e30acd3a" in await view("w")
        assert "0 locks" in await view("L")
        await press(pilot, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        keys = "\n".join(map(text_of, app.screen.query_one("#help", LinePane).lines))
        for words in ("mark or unmark for del", "next grouping", "quit"):
            assert words in keys
        await press(pilot, "escape")
        await press(pilot, "home", "w")
        assert "why needs an entry" in screen(app)[-1]
        await press(pilot, "down", "down", "space", "space")
        text = await view("w")
        assert "MODULE_1111" in text
        assert "MODULE_2222" in text


async def test_filter_sort_and_group(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "slash", *"state=faile")
        title = app.screen.query_one("#prompt-title", LinePane).lines[0]
        assert "invalid filter at character 7" in text_of(title)
        await press(pilot, "d", "enter")
        assert [entry.module[:11] for entry in app.browser.shown] == ["MODULE_4444"]
        assert "filter: state=failed" in screen(app)[1]
        assert "1 of 4 entries" in screen(app)[0]
        await press(pilot, "slash", "escape", "s")
        assert len(app.browser.shown) == 4
        assert "sort: used" in screen(app)[1]
        seen = set()
        for _ in range(6):
            await press(pilot, "g")
            seen.add(screen(app)[1])
        assert len(seen) == 6


async def test_opening_and_closing_with_keys_and_mouse(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        rows = len(app.browser.rows)
        await press(pilot, "enter")
        assert len(app.browser.rows) < rows
        await press(pilot, "right", "right")
        assert (len(app.browser.rows), app.browser.cursor.row) == (rows, 1)
        await press(pilot, "left", "left")
        assert app.browser.cursor.row == 0
        await pilot.click(LinePane, offset=(10, 4))
        assert app.browser.cursor.row == 1
        before = len(app.browser.rows)
        await pilot.click(LinePane, offset=(10, 4))
        assert len(app.browser.rows) > before
        await pilot.click(LinePane, offset=(10, 1))
        await press(pilot, "j", "k", "l", "h", "pagedown", "pageup", "end", "home")
        assert app.browser.cursor.row == 0


async def test_it_follows_what_others_do(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "a")
        shutil.rmtree(next(some.root.glob("*/MODULE_1111*")))
        some.done(graph="5555")
        app._look_for_changes()
        await rest(pilot)
        modules = {entry.module[7:11] for entry in app.browser.entries}
        assert modules == {"2222", "3333", "4444", "5555"}
        assert len(app.browser.marks) == 2
        shutil.rmtree(some.root)
        app._look_for_changes()
        await rest(pilot)
        assert app.browser.entries == ()
        assert "0 entries" in screen(app)[0]
        await press(pilot, "space", "enter", "w", "p", "d", "down", "left", "right")
        some.root.mkdir()
        (some.root / "cat.jpg").touch()
        await press(pilot, "r")
        assert "is not a compile cache" in screen(app)[-1]
        (some.root / "cat.jpg").unlink()
        some.done(graph="6666")
        app._look_for_changes()
        await rest(pilot)
        assert len(app.browser.entries) == 1


async def test_an_entry_that_is_gone_when_it_is_looked_at_is_a_line(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await press(pilot, "down", "down")
        shutil.rmtree(next(some.root.glob("*/MODULE_2222*")))
        await press(pilot, "enter")
        assert not isinstance(app.screen, TextScreen)
        assert "MODULE_2222" in screen(app)[-1]
        await press(pilot, "p")
        assert "MODULE_2222" in screen(app)[-1]


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (300, 100)])
async def test_every_line_is_as_wide_as_the_screen(some: Tree, size: tuple[int, int]) -> None:
    async with browsing(some, size) as (pilot, app):
        await press(pilot, "a", "down")
        lines = app.query_one("#cache", LinePane).lines
        assert {len(text_of(line)) for line in lines} == {size[0]}
        assert len(lines) == size[1]


async def test_a_screen_that_is_too_small_says_so_and_comes_back(some: Tree) -> None:
    async with browsing(some, (30, 6)) as (pilot, app):
        assert [line.strip() for line in screen(app)[1:5]] == [
            "neuron-cache",
            "needs 40x8,",
            "has 30x6",
            "(q: quit)",
        ]
        await pilot.resize_terminal(10, 3)
        await rest(pilot)
        assert [line.strip() for line in screen(app)] == ["needs", "40x8", "q: quit"]
        await pilot.resize_terminal(80, 24)
        await rest(pilot)
        assert "neuron-cache" in screen(app)[0]


async def test_a_click_outside_of_a_shrunken_terminal_ends_nothing(some: Tree) -> None:
    async with browsing(some) as (pilot, app):
        await pilot.press("ctrl+p")
        over = app.screen
        assert over is not app.screen_stack[0]
        over.post_message(
            events.Click(
                over, 196, 43, 0, 0, 1, shift=False, meta=False, ctrl=False, screen_x=196, screen_y=43
            )
        )
        await pilot.pause()
        assert app.screen is over


async def test_thousands_of_entries_have_no_widget_each(tree: Tree) -> None:
    directory = tree.done().parent
    for number in range(2_000):
        (directory / f"MODULE_{10**12 + number}+e30acd3a").mkdir()

    async with browsing(tree) as (pilot, app):
        assert len(app.browser.entries) == 2_001
        await press(pilot, "end", "pageup", "s", "g")
        assert len(app.query("*")) < 10


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_picture(
    snap_compare: Callable[..., bool],
    some: Tree,
    frozen: None,
    monkeypatch: pytest.MonkeyPatch,
    theme: str,
    size: tuple[int, int],
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.chdir(some.root.parent)
    browser = Browser("compile-cache")
    app = CacheApp(browser, theme=theme)

    async def before(pilot: Pilot[int]) -> None:
        await rest(pilot)
        await press(pilot, "down", "down", "space")

    assert snap_compare(app, terminal_size=size, run_before=before)


def test_without_a_terminal_it_is_one_line(tool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = tool("neuron-cache", "tui")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: neuron-cache tui needs a terminal\n")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **options: object) -> Terminal:
        opened.append(Terminal("tui", *arguments, program="neuron-cache", **options))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 130)])
def test_a_real_terminal_is_restored(
    some: Tree, terminal: Callable[..., Terminal], keys: str, code: int
) -> None:
    shown = terminal(size=(80, 24))
    shown.read_until("MODULE_3333")
    shown.quit(keys, code)


def test_after_a_stop_everything_is_drawn_again_as_light_as_the_terminal_is(
    some: Tree, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(size=(80, 24), TERM="xterm-256color", COLORTERM="truecolor")
    shown.read_until("MODULE_3333")
    shown.press("\x1b]11;rgb:ffff/fafa/f0f0\x1b\\")
    shown.read_until_bytes(b"48;2;255;255;255m")
    shown.press("\x1a")
    assert shown.has_stopped()
    assert shown.is_restored()
    shown.process.send_signal(signal.SIGCONT)
    shown.read_until("MODULE_3333")
    shown.quit()


def test_keys_that_are_typed_ahead_are_not_lost(some: Tree, terminal: Callable[..., Terminal]) -> None:
    shown = terminal(size=(80, 24))
    shown.read_until("MODULE_3333")
    shown.press("/state=failed\rg")
    assert "1 of 4 entries" in shown.read_until("group: network")
    shown.quit()


def test_a_sigterm_restores_the_terminal(some: Tree, terminal: Callable[..., Terminal]) -> None:
    shown = terminal(size=(80, 24))
    shown.read_until("MODULE_3333")
    shown.process.send_signal(signal.SIGTERM)
    assert shown.exit_code() == 143
    assert shown.is_restored()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--theme", "pink"), "unknown theme 'pink'"),
        (("--filter", "state=failde"), "invalid filter at character 7"),
        (("--cache-dir", "s3://bucket/x"), "tui needs a local cache"),
    ],
)
def test_invalid_values_are_reported_before_the_screen_is_taken(
    terminal: Callable[..., Terminal], arguments: tuple[str, ...], words: str
) -> None:
    shown = terminal(*arguments)
    shown.read_until(words)
    assert shown.exit_code() == 2


def test_a_root_that_is_not_a_cache_is_reported_in_the_browser(
    home: Path, terminal: Callable[..., Terminal]
) -> None:
    (home / "photos").mkdir()
    (home / "photos" / "cat.jpg").touch()
    shown = terminal("--cache-dir", str(home / "photos"))
    shown.read_until("is not a compile cache")
    shown.quit()


def test_what_is_read_of_an_entry_is_wrapped_for_the_screen(tree: Tree) -> None:
    entry_path = tree.done(flags=tuple(f"--option-{number}=some-value" for number in range(20)))
    (entry,) = scan(str(tree.root)).entries
    assert entry.path == str(entry_path)
    lines = app.entry_text(str(tree.root), entry, 74).splitlines()
    assert all(len(line) <= 74 or " " not in line[14:] for line in lines)
    start = next(number for number, line in enumerate(lines) if line.startswith("  flags  "))
    assert lines[start + 1].startswith(" " * 14 + "--option-")
