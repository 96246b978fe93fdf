"""Rows that are written without Textual's compositor leave the terminal as it would."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from textual.app import App, ComposeResult
from textual.screen import ModalScreen

from neurontools.tui.widgets.line_pane import LinePane, write_rows
from neurontools.tui.widgets.lines import Line, Role, fit, text_of, width_of
from neurontools.tui.widgets.terminal_driver import TerminalDriver
from neurontools.tui.widgets.theme import DEFAULT_THEME

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 24


class Grid(TerminalDriver):
    """A terminal that keeps the text of each row."""

    is_started = True

    def __init__(self) -> None:  # without a terminal
        self.rows: dict[int, dict[int, str]] = {}
        self.written = ""

    def write(self, data: str) -> None:
        self.written += data
        for y, x, text in re.findall(r"\x1b\[(\d+);(\d+)H((?:[^\x1b]|\x1b\[[\d;]*m)*)", data):
            cells, at = self.rows.setdefault(int(y) - 1, {}), int(x) - 1
            for character in re.sub(r"\x1b\[[\d;]*m", "", text):
                cells[at] = character
                for covered in range(at + 1, at + width_of(character)):
                    cells[covered] = ""
                at += width_of(character)

    def text(self, y: int) -> str:
        return "".join(character for _, character in sorted(self.rows[y].items()))


class TwoPanes(App[int]):
    CSS = "Screen { overflow: hidden; }"

    def compose(self) -> ComposeResult:
        yield LinePane(DEFAULT_THEME.styles, id="first")
        yield LinePane(DEFAULT_THEME.styles, id="second")


def lines(*texts: str, role: Role = Role.PLAIN) -> tuple[Line, ...]:
    return tuple(
        fit([(word, role if word.isdigit() else Role.DIM) for word in re.split(r"(\d+)", text)], WIDTH)
        for text in texts
    )


@contextmanager
def on_grid(app: App[int]) -> Iterator[Grid]:
    headless, grid = app._driver, Grid()
    app._driver = grid
    try:
        yield grid
    finally:
        app._driver = headless


FRAMES = (
    ("load 12 of 99", "rest", "日本 7 語"),
    ("load 13 of 99", "rest", "日本 8 語"),
    ("load 13 of 7", "rest is longer 123", "a7 語"),
    ("", "rest is longer 124", "a7 語 …"),
    ("", "rest is longer 124", "a7 語 …"),
)


async def test_changed_rows_are_where_the_lines_are() -> None:
    app = TwoPanes()
    async with app.run_test(size=(WIDTH, 8)) as pilot:
        first, second = app.query(LinePane)
        first.show(lines("title 0"))
        second.show(lines(*FRAMES[0]))
        await pilot.pause()
        with on_grid(app) as grid:
            for y in range(3):
                grid.write(f"\x1b[{y + 2};1H{text_of(second.lines[y])}")
            for number, texts in enumerate(FRAMES):
                grid.written = ""
                assert write_rows(app, [(first, lines(f"title {number}")), (second, lines(*texts))])
                assert [grid.text(y) for y in range(1, 4)] == [text_of(line) for line in second.lines]
            assert grid.text(0).startswith("4")  # nothing else of the title changed
        assert [strip.text for strip in first.render_lines(first.size.region)] == [text_of(first.lines[0])]


async def test_a_row_that_is_not_as_wide_as_the_pane_is_written_whole() -> None:
    app = TwoPanes()
    async with app.run_test(size=(WIDTH, 8)) as pilot:
        pane = app.query_one("#first", LinePane)
        pane.show(lines("title 0"))
        await pilot.pause()
        with on_grid(app) as grid:
            assert write_rows(app, [(pane, ((("short", Role.PLAIN),),))])
            assert grid.text(0) == "short".ljust(WIDTH)


async def test_only_the_changed_part_of_a_row_is_written() -> None:
    app = TwoPanes()
    async with app.run_test(size=(WIDTH, 8)) as pilot:
        pane = app.query_one("#first", LinePane)
        pane.show(lines("before 1 after"))
        await pilot.pause()
        with on_grid(app) as grid:
            assert write_rows(app, [(pane, lines("before 2 after"))])
            assert re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", grid.written) == "2"


class Box(ModalScreen[None]):
    pass


@pytest.mark.parametrize("what", ["nothing", "notice", "screen", "height", "headless"])
async def test_what_covers_or_moves_rows_is_left_to_textual(what: str) -> None:
    app = TwoPanes()
    async with app.run_test(size=(WIDTH, 8), notifications=True) as pilot:
        pane = app.query_one("#first", LinePane)
        pane.show(lines("title 0"))
        if what == "notice":
            app.notify("look")
        if what == "screen":
            await app.push_screen(Box())
        await pilot.pause()
        new = lines("title 1", "another") if what == "height" else lines("title 1")
        if what == "headless":
            assert not write_rows(app, [(pane, new)])
            return
        with on_grid(app) as grid:
            assert write_rows(app, [(pane, new)]) == (what == "nothing")
            assert bool(grid.written) == (what == "nothing")
            assert (pane.lines == new) == (what == "nothing")
