"""The elements of the design: bars, cells, frames, lines with tabs, themes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.theme import BUILTIN_THEMES

from neurontools.tui.names import TEXTUAL_THEMES, THEME_NAMES
from neurontools.tui.widgets.bars import bar, blocks, heat_cell, stacked_bar
from neurontools.tui.widgets.charts import ChartLine, line_chart, wide_chart
from neurontools.tui.widgets.chrome import head_line, pages_line
from neurontools.tui.widgets.frames import beside, edge, framed, row
from neurontools.tui.widgets.lines import Line, Role, ascii_only, fit, text_of, width_of
from neurontools.tui.widgets.theme import MONOCHROME, THEMES, theme_for

shares = st.floats(0, 1)


def cells(line: Line) -> int:
    return sum(width_of(text) for text, _ in line)


@given(shares, st.integers(1, 80))
def test_a_bar_is_as_wide_as_asked_for_and_grows_with_the_share(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert cells(drawn) == width
    assert (text_of(drawn).strip() != "") == (share > 0)
    assert len(text_of(drawn).rstrip()) <= len(text_of(bar(min(1.0, share * 1.5), width)).rstrip())


def test_a_bar_is_drawn_in_eighths_and_brighter_to_the_right() -> None:
    assert text_of(bar(0.5625, 2)) == "▇▏"
    roles = [role for _, role in bar(1.0, 10)]
    assert roles == [Role.USE_1, Role.USE_2, Role.USE_3, Role.USE_4, Role.USE_5]
    assert {role for _, role in bar(0.99, 10, capacity=True)} == {Role.USE_FULL}


@given(st.lists(st.floats(0, 0.4), max_size=6), st.integers(1, 60))
def test_a_stacked_bar_is_as_wide_as_asked_for(parts: list[float], width: int) -> None:
    assert cells(stacked_bar(parts, width)) == width


@given(shares, st.integers(1, 20))
def test_a_heat_cell_has_its_number_where_it_fits(share: float, width: int) -> None:
    text, role = heat_cell(share, width)
    assert width_of(text) == width
    assert (role is Role.CELL_0) == (share <= 0)
    if width >= 3 and share > 0:
        assert text.strip() == f"{100 * share:.0f}"


def test_sparklines_leave_room_above() -> None:
    assert blocks([0, 0.5, 1, None]) == "▁▅█ "
    assert blocks([0, 0.5, 1, None], headroom=True) == "▁▄▇ "


@given(st.lists(st.one_of(st.none(), shares), max_size=60), st.integers(1, 200), st.integers(1, 9))
def test_a_wide_chart_fills_its_pane(values: list[float | None], width: int, lines: int) -> None:
    drawn = wide_chart(values, width, lines)
    assert len(drawn) == lines
    assert {cells(line) for line in drawn} == {width}


@given(st.text(max_size=30), st.text(max_size=30), st.integers(8, 120), st.booleans())
def test_frames_have_their_size_whatever_their_title(title: str, note: str, width: int, boxed: bool) -> None:
    title, note = (text if text.isprintable() else "" for text in (title, note))
    assert cells(edge(title, width, key="F3", note=note, boxed=boxed)) == width
    drawn = framed(title, [], (width, 5), note=note, foot=note, boxed=boxed)
    assert [cells(line) for line in drawn] == [width] * 5
    assert [cells(line) for line in beside(drawn, drawn)] == [2 * width] * 5


def test_a_selected_row_has_a_marker_and_keeps_its_bar() -> None:
    spans = (("name ", Role.PLAIN), *bar(0.5, 10))
    plain, selected = row(spans, 20), row(spans, 20, selected=True)
    assert text_of(plain) == " name " + text_of(bar(0.5, 10)).ljust(14)
    assert text_of(selected) == "▌" + text_of(plain)[1:]
    assert {role for _, role in selected} >= {Role.CURSOR, Role.ON_PLAIN, Role.USE_1}


@given(st.integers(20, 200), st.integers(0, 4))
def test_tabs_fit_and_clicks_find_them(width: int, current: int) -> None:
    names = ("Overview", "History", "Processes", "Devices", "Events")
    badge = ("! 3 alerts", Role.BADGE_WARNING)
    for line in (
        head_line("program", names, current, width, state="trn2.48xlarge", badge=badge),
        pages_line(names, current, (("?", "help"), ("q", "quit")), width),
    ):
        assert cells(line.line) == width
        assert all(line.at(name.left) == name.position for name in line.names)
        assert line.at(width) is None


def test_every_theme_has_a_style_for_every_role() -> None:
    for theme in (MONOCHROME, *THEMES.values(), *(theme_for(name, dark=True) for name in TEXTUAL_THEMES)):
        assert set(theme.styles) >= set(Role), theme.name


def test_the_names_of_textuals_themes_are_those_it_has() -> None:
    assert set(TEXTUAL_THEMES) <= set(BUILTIN_THEMES)
    assert not set(TEXTUAL_THEMES) & set(THEME_NAMES)


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("name", [*THEME_NAMES, *TEXTUAL_THEMES])
def test_use_and_trouble_have_different_colours(name: str, dark: bool) -> None:
    styles = theme_for(name, dark=dark).styles
    use = {styles[role].color for role in (Role.USE_1, Role.USE_3, Role.USE_5, Role.GRAPH)}
    assert not use & {styles[Role.ALERT].color, styles[Role.WARNING].color}


def test_ascii_has_plain_frames_and_bars() -> None:
    line = fit((*edge("Title", 20), *bar(0.5625, 4), ("▌▸▾", Role.PLAIN)), 40)
    assert ascii_only(text_of(line)).startswith("+- Title ----------+#")
    assert "?" not in ascii_only(text_of(line))


@given(
    st.lists(st.lists(st.one_of(st.none(), shares), max_size=60), max_size=5),
    st.integers(1, 90),
    st.integers(1, 9),
    st.integers(0, 14),
)
def test_a_line_chart_fills_its_pane(
    curves: list[list[float | None]], width: int, lines: int, label: int
) -> None:
    drawn = line_chart(
        [ChartLine(f"p{number}", values, Role.GRAPH) for number, values in enumerate(curves)],
        width + label,
        lines,
        label,
    )
    assert [cells(tuple(spans)) for spans in drawn] == [width + label] * lines


def test_lines_are_thin_joined_at_steps_and_interrupted_at_gaps() -> None:
    (level,) = line_chart([ChartLine("", [0.0] * 4, Role.GRAPH)], 2, 1)
    assert text_of(tuple(level)) == "⣀⣀"
    (step,) = line_chart([ChartLine("", [0.0, 1.0], Role.GRAPH)], 1, 1)
    assert text_of(tuple(step)) == "⡸"
    (gap,) = line_chart([ChartLine("", [1.0, 1.0, None, None, 1.0, 1.0], Role.GRAPH)], 3, 1)
    assert text_of(tuple(gap)) == "⠉ ⠉"


def test_labels_stand_in_the_order_of_the_ends_of_their_lines() -> None:
    curves = [
        ChartLine(name, [value] * 9, Role.GRAPH)
        for name, value in (("p50", 0.1), ("max", 0.9), ("p99", 0.88))
    ]
    texts = [text_of(tuple(spans))[-4:].strip() for spans in line_chart(curves, 20, 5, 4)]
    assert texts == ["max", "p99", "", "", "p50"]
    assert [text_of(tuple(spans))[-4:].strip() for spans in line_chart(curves, 20, 2, 4)] == ["max", "p99"]
