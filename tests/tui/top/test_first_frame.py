"""The first frame of neuron-top: before Textual has the terminal, with the colours that Textual then draws."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.color import ColorSystem

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import Item, SourceEnd, TimedSnapshot, Update, UpdateReader
from neurontools.tui.widgets.lines import style_sequences
from neurontools.tui.widgets.start_screen import ENTER_SCREEN
from neurontools.tui.widgets.theme import MONOCHROME, theme_for
from tests.tui.top.fixed_source import FixedSource

Open = Callable[..., Any]
PATIENCE_S = 30.0
MOUSE = b"\x1b[?1000h"  # the first thing that Textual writes


def test_it_stands_before_textual_has_the_terminal_and_is_entered_once(terminal: Open) -> None:
    shown = terminal(TERM="xterm-256color", COLORTERM="truecolor")
    shown.read_until("trn1.32xlarge")
    shown.press("p")
    shown.read_until("Processes (")
    before, _, after = shown.output.partition(MOUSE)
    assert b"trn1.32xlarge" in before
    assert b"trn1.32xlarge" in after
    assert shown.output.count(ENTER_SCREEN.encode()) == 1
    shown.press("\x1a")
    assert shown.has_stopped()
    shown.process.send_signal(18)
    shown.quit()
    assert shown.output.count(ENTER_SCREEN.encode()) == 2  # after fg the screen is entered again
    assert shown.is_restored()


@pytest.mark.parametrize("colour", [True, False])
async def test_textual_draws_it_with_the_same_sequences(
    training: tuple[TimedSnapshot, TimedSnapshot], monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    app = TopApp(FixedSource(*training), settings=TopSettings(), colour=colour)
    themes = [theme_for(name, dark=dark) for name in ("auto", "colorblind", "ansi") for dark in (True, False)]
    async with app.run_test(size=(120, 40)) as pilot:
        for theme in themes if colour else (MONOCHROME,):
            app.apply_theme(theme)
            await pilot.pause()
            pane = app.panes[0]
            begins = pane._styled(pane.size.width).begins(ColorSystem.TRUECOLOR)
            assert begins == style_sequences(theme.backed_styles, ColorSystem.TRUECOLOR)


class Source:
    """Yields what it is given, each once it is let."""

    name = ""

    def __init__(self, updates: list[Update], error: Exception | None = None) -> None:
        self.let = threading.Semaphore(0)
        self._updates, self._error = updates, error

    def updates(self) -> Iterator[Update]:
        for update in self._updates:
            self.let.acquire(timeout=PATIENCE_S)
            yield update
        if self._error:
            raise self._error

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [None, ValueError("a bug")])
def test_updates_wait_for_the_app_in_their_order(
    training: tuple[TimedSnapshot, TimedSnapshot], error: Exception | None
) -> None:
    one, two = training
    source = Source([one, two], error)
    reader = UpdateReader(source)
    reader.start()
    assert reader.first(0.0) is None
    source.let.release()
    assert reader.first(PATIENCE_S) is one
    assert reader.first(PATIENCE_S) is one
    passed: list[Item] = []
    ended = threading.Event()

    def pass_on(item: Item) -> None:
        passed.append(item)
        if isinstance(item, SourceEnd):
            ended.set()

    assert reader.follow(pass_on) == (one,)
    source.let.release()
    assert ended.wait(PATIENCE_S)
    assert passed == [two, SourceEnd(error)]
