"""Dark or light as the terminal is: it is asked, nobody waits, and no answer ever counts as a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color_triplet import ColorTriplet

from neurontools.tui.names import THEME_NAMES
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.widgets.lines import HEAT, Role
from neurontools.tui.widgets.start_screen import (
    QUESTION,
    BackgroundAnswers,
    hinted_dark,
    is_dark,
    may_be_asked,
)
from neurontools.tui.widgets.theme import theme_for
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from neurontools.tui.top.source import TimedSnapshot

Open = Callable[..., Any]
LIGHT = "\x1b]11;rgb:ffff/fafa/f0f0\x1b\\"
DARK = "\x1b]11;rgba:1e/1e/2e/ff\x07"
LIGHT_BACKGROUND = b"48;2;255;255;255m"
DARK_BACKGROUND = b"48;2;13;17;23m"


@pytest.mark.parametrize(
    ("colour", "dark"),
    [
        ("rgb:ffff/ffff/ffff", False),
        ("rgb:0/0/0", True),
        ("rgba:00/2b/36/ff", True),
        ("rgb:fdf6/e3e3/d5d5", False),
        ("rgb:ff/ff", None),
        ("rgb:gg/00/00", None),
        ("?", None),
        ("", None),
    ],
)
def test_colours_of_terminals(colour: str, dark: bool | None) -> None:
    assert is_dark(colour) is dark


@pytest.mark.parametrize(
    ("value", "dark"),
    [("", True), ("15;0", True), ("0;15", False), ("0;default;7", False), ("12;8", True), ("x", True)],
)
def test_the_environment_may_hint_at_it(value: str, dark: bool) -> None:
    assert hinted_dark({"COLORFGBG": value} if value else {}) is dark


def test_consoles_that_would_print_the_question_are_not_asked() -> None:
    assert may_be_asked({"TERM": "xterm-256color"})
    assert not may_be_asked({"TERM": "linux"})
    assert not may_be_asked({})


keys = st.lists(st.sampled_from(["a", "\x1b[A", "\x1bx", "\x1b]", "é", "\r", "1"]), max_size=6).map("".join)


@given(keys, keys, st.sampled_from([LIGHT, DARK]), st.data())
def test_an_answer_is_taken_out_wherever_it_is_cut(
    before: str, after: str, answer: str, data: st.DataObject
) -> None:
    told: list[bool] = []
    answers = BackgroundAnswers(told.append)
    # Keys behind a cut that could be the begin of an answer wait for what follows; so they are followed by a letter.
    whole = before + answer + after + "z"
    inside = len(before) + data.draw(st.integers(3, len(answer)))
    rest = "".join(map(answers.rest_of, (whole[:inside], whole[inside:])))
    assert rest == before + after + "z"
    assert told == [answer is DARK]


def test_what_only_begins_like_an_answer_comes_through() -> None:
    answers = BackgroundAnswers(lambda _: None)
    assert answers.rest_of("\x1b]") == "\x1b]"
    assert answers.rest_of("\x1b]1") == ""
    assert answers.rest_of("x") == "\x1b]1x"
    assert answers.rest_of("\x1b]11;x\x1b[A") == "x\x1b[A"


def test_an_answer_that_is_cut_off_swallows_no_key() -> None:
    told: list[bool] = []
    answers = BackgroundAnswers(told.append)
    assert answers.rest_of("a\x1b]11;rgb:ffff/ff") == "a"
    assert answers.rest_of("q") == "q"
    assert answers.rest_of("\x1b]11;rgb:ff") == ""
    assert answers.rest_of("\x03") == "\x03"
    assert answers.rest_of("\x1b]11;" + "9" * 200) == "9" * 136
    assert not told


def test_a_light_terminal_gets_the_light_theme_and_its_answer_is_not_a_key(terminal: Open) -> None:
    shown = terminal(TERM="xterm-256color", COLORTERM="truecolor")
    shown.read_until("trn1.32xlarge")
    assert QUESTION.encode() in shown.output
    assert LIGHT_BACKGROUND not in shown.output
    shown.press(LIGHT[:9])
    shown.press(LIGHT[9:] + "p")
    shown.read_until("Processes (")
    assert LIGHT_BACKGROUND in shown.output
    assert "paused" not in shown.read_until("Processes (0)")
    shown.quit()


def test_a_theme_that_was_chosen_asks_nothing_and_stays(terminal: Open) -> None:
    shown = terminal("--theme", "dark", TERM="xterm-256color", COLORTERM="truecolor")
    shown.read_until("trn1.32xlarge")
    assert QUESTION.encode() not in shown.output
    shown.press(LIGHT + "p")
    shown.read_until("Processes (")
    assert LIGHT_BACKGROUND not in shown.output
    assert DARK_BACKGROUND in shown.output


def test_the_first_look_is_the_environments(terminal: Open) -> None:
    shown = terminal(TERM="xterm-256color", COLORTERM="truecolor", COLORFGBG="0;15")
    shown.read_until_bytes(LIGHT_BACKGROUND)
    shown.quit()
    assert DARK_BACKGROUND not in shown.output


def test_without_colour_nothing_is_asked(terminal: Open) -> None:
    shown = terminal(TERM="xterm-256color", NO_COLOR="1")
    shown.read_until("trn1.32xlarge")
    assert QUESTION.encode() not in shown.output


@pytest.fixture
def app(training: tuple[TimedSnapshot, TimedSnapshot], monkeypatch: pytest.MonkeyPatch) -> TopApp:
    monkeypatch.delenv("NO_COLOR", raising=False)
    return TopApp(FixedSource(*training), settings=TopSettings())


async def test_a_theme_that_the_user_turned_to_is_kept(app: TopApp) -> None:
    async with app.run_test() as pilot:
        app.set_background(False)
        assert app.look.name == "light"
        await pilot.press("ctrl+t")
        assert app.look.name == "dark"
        app.set_background(False)
        assert app.look.name == "dark"


async def test_the_themes_go_round_and_auto_is_one_of_them(app: TopApp) -> None:
    async with app.run_test() as pilot:
        seen = []
        for _ in THEME_NAMES:
            await pilot.press("ctrl+t")
            seen.append(app.theme_name)
        assert seen == [*THEME_NAMES[1:], "auto"]
        app.set_background(False)
        assert app.look.name == "light"


async def test_the_theme_for_the_colourblind_adapts_too(app: TopApp) -> None:
    async with app.run_test() as pilot:
        app.use_theme("colorblind")
        assert app.look is theme_for("colorblind", dark=True)
        app.set_background(False)
        await pilot.pause()
        assert app.look is theme_for("colorblind", dark=False)
        assert (app.look.name, app.look.background, app.theme) == ("colorblind", "#ffffff", "textual-light")


def test_a_theme_that_adapts_asks_when_it_is_turned_to(terminal: Open) -> None:
    shown = terminal("--theme", "light", TERM="xterm-256color", COLORTERM="truecolor")
    shown.read_until("trn1.32xlarge")
    assert QUESTION.encode() not in shown.output
    shown.press("\x14")
    shown.read_until_bytes(QUESTION.encode())
    shown.press(LIGHT + "p")
    shown.read_until("Processes (")
    shown.quit()


LOOKS = [(name, dark) for name in THEME_NAMES if name != "ansi" for dark in (True, False)]
TEXTS = (Role.PLAIN, Role.STRONG, Role.VALUE, Role.DIM, Role.HEAD, Role.ALERT, Role.GRAPH, Role.METER_SYSTEM)
BARS = (
    Role.TITLE,
    Role.TITLE_DIM,
    Role.TROUBLE,
    Role.SECTION,
    Role.SECTION_DIM,
    Role.SELECTED,
    Role.MARKED_ON,
)


@pytest.mark.parametrize(("name", "dark"), LOOKS)
def test_everything_can_be_read(name: str, dark: bool) -> None:
    look = theme_for(name, dark=dark)
    for role in (*TEXTS, *BARS, Role.BAR, Role.BAR_DIM, Role.BAR_CURRENT):
        style = look.styles[role]
        ground = style.bgcolor.get_truecolor() if style.bgcolor else ColorTriplet(*_channels(look.background))
        assert style.color
        light, faint = sorted(map(luminance, (style.color.get_truecolor(), ground)), reverse=True)
        assert (light + 0.05) / (faint + 0.05) > 3, role


@pytest.mark.parametrize("dark", [True, False])
def test_the_heat_of_the_colourblind_is_visible_by_lightness_alone(dark: bool) -> None:
    styles = theme_for("colorblind", dark=dark).styles
    heat = [luminance(colour.get_truecolor()) for role in HEAT if (colour := styles[role].color)]
    assert heat == sorted(heat, reverse=not dark)
    assert len(set(heat)) == len(HEAT)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: ColorTriplet) -> float:
    """Return the relative luminance as WCAG 2 defines it."""
    red, green, blue = (
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
