from __future__ import annotations

import os
import re
import unicodedata
from typing import TYPE_CHECKING

import pytest
from textual.events import MouseScrollDown, MouseScrollUp
from textual.widgets import Input, Static

from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.timeline import NO_EVENT
from neurontools.tui.profile.app import ProfileApp
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.profile.timeline_drawing import GUTTER, RowLine
from neurontools.tui.profile.timeline_state import as_times
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of as text_of_line
from neurontools.tui.widgets.screens import PromptScreen, TextScreen

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from textual.pilot import Pilot

    from neurontools.profiler.trace.trace import Trace
    from tests.profiler.conftest import Maker

Size = tuple[int, int]


def view_of(pilot: Pilot[None]) -> TimelineView:
    return pilot.app.query_one(TimelineView)


def text_of(view: TimelineView) -> str:
    return "\n".join(view.render_line(y).text for y in range(view.size.height))


def name_of(view: TimelineView) -> str:
    return view.state.trace.event(view.state.selected_event).action.name


async def test_the_timeline_opens_on_one_steady_step_in_device_time(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        text = text_of(view)
        assert "pid 4242 NC0: device clock, modelled" in text
        assert "wall clock" not in text
        assert "step 3, 100.0 us to 150.0 us" in text
        assert 50_000 < view.state.view.span_ns < 52_000
        await pilot.press("f")
        assert (view.state.view.start_ns, view.state.view.end_ns) == (0, view.state.axis.total_ns)
        assert view.state.axis.total_ns < trace.end_ns // 10


async def test_the_wall_clock_shows_measured_rows_too_and_keeps_what_is_in_view(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("plus", "plus")
        before = view.state.range_ns
        await pilot.press("c")
        assert view.state.range_ns == before
        text = text_of(view)
        assert "pid 4242 NC0: wall clock, measured" in text
        assert "pid 4242 NC0: device clock, modelled" in text
        await pilot.press("f", "f")
        assert "112 events start here" in text_of(view)
        assert (view.state.view.start_ns, view.state.view.end_ns) == (0, trace.end_ns)
        await pilot.press("c")
        assert view.state.axis.is_device


async def test_a_gap_between_executions_is_a_marked_band(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("minus")
        assert text_of(view).splitlines()[3].count("┊") >= 2


async def test_a_range_has_statistics(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        view = view_of(pilot)
        await pilot.press("j", "tab", "left_square_bracket", "tab", "right_square_bracket")
        first, last = view.state.range or (0, 0)
        assert last - first == 15_500 + 5_000 - 4_000
        assert "range 16.50 us from 104.0 us" in text_of(view)
        details = "\n".join(
            text_of_line(line) for line in pilot.app.query_one("#timeline LinePane", LinePane).lines
        )
        assert "Range" in details
        assert re.search(r"NC0 Tensor.* 84.8%", details)
        assert re.search(r"mm +Tensor +2 +14.00 us", details)
        await pilot.press("escape", "escape")
        assert view.state.range is None


async def test_details_stand_beside_a_wide_timeline(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press("j", "tab", "enter")
        assert len(pilot.app.screen_stack) == 1
        details = "\n".join(
            text_of_line(line) for line in pilot.app.query_one("#timeline LinePane", LinePane).lines
        )
        assert "aten.mm" in details
        assert "float32[128,128]" in details


async def test_dragging_moves_the_window_and_with_shift_selects_a_range(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("plus", "plus")
        start, cell = view.state.view.start_ns, view.state.view.ns_per_cell
        await pilot.mouse_down(TimelineView, offset=(50, 6))
        await pilot.hover(TimelineView, offset=(40, 6))
        await pilot.mouse_up(TimelineView, offset=(40, 6))
        assert view.state.view.start_ns == start + int(10 * cell)
        assert view.state.range is None
        await pilot.mouse_down(TimelineView, offset=(30, 6), shift=True)
        await pilot.hover(TimelineView, offset=(40, 6))
        await pilot.mouse_up(TimelineView, offset=(40, 6), shift=True)
        first, last = view.state.range or (0, 0)
        assert view.state.view.column_of(last) - view.state.view.column_of(first) == 10
        assert view.state.selected_event == NO_EVENT


async def test_zoom_pan_and_fit(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        whole = view.state.view
        await pilot.press("plus", "w")
        assert view.state.view.span_ns == whole.span_ns // 4
        start = view.state.view.start_ns
        await pilot.press("right", "l")
        assert view.state.view.start_ns == start + 2 * (view.state.view.span_ns // 8)
        await pilot.press("left", "h")
        assert view.state.view.start_ns == start
        await pilot.press("minus", "s", "s", "s")
        assert 4 * whole.span_ns - view.state.view.span_ns <= 4
        await pilot.press("w", "f")
        assert view.state.view == whole


async def test_tab_walks_over_events_and_keeps_them_visible(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("j", "tab")
        assert name_of(view) == "aten.mm"
        first = view.state.selected_event
        await pilot.press(*["plus"] * 10)
        await pilot.press("tab", "tab")
        assert view.state.selected_event == first + 2
        start = view.state.axis.positions(as_times(trace.event(first + 2).start))[0]
        assert view.state.view.start_ns <= start < view.state.view.end_ns
        await pilot.press("shift+tab")
        assert view.state.selected_event == first + 1
        await pilot.press("escape")
        assert view.state.selected_event == NO_EVENT


async def test_rows_scroll_with_the_selected_one(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 12)) as pilot:
        view = view_of(pilot)
        await pilot.press(*["down"] * 30)
        assert view.state.selected_row == len(view.state.timeline.rows) - 1
        assert " DMA " in text_of(view)
        await pilot.press(*["k"] * 30)
        assert view.state.selected_row == 2
        assert "Model" in text_of(view)
        assert "pid 4242 NC0: device clock" in text_of(view)


async def test_search_with_next_and_previous(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("f", "slash", *"RELU", "enter")
        assert name_of(view) == "aten.relu"
        assert "/RELU: 1 of 10 hits" in text_of(view)
        first = view.state.selected_event
        await pilot.press("n")
        assert view.state.selected_event != first
        assert "2 of 10 hits" in text_of(view)
        await pilot.press("N", "N")
        assert "10 of 10 hits" in text_of(view)
        await pilot.press("slash", *"(", "enter")
        assert "10 of 10 hits" in text_of(view)
        await pilot.press("slash", *"zzz", "enter", "n")
        assert "/zzz: 0 hits" in text_of(view)


async def test_go_to_a_time(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("plus", "plus", "g", *"110us", "enter")
        middle = view.state.view.start_ns + view.state.view.span_ns // 2
        assert view.state.axis.clock(as_times(middle)).tolist() == [110_000]
        before = view.state.view
        await pilot.press("g", *"soon", "enter")
        await pilot.press("g", "escape")
        assert view.state.view == before


async def test_details_show_the_event(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "tab", "enter")
        assert isinstance(pilot.app.screen, TextScreen)
        text = str(pilot.app.screen.query_one(Static).content)
        for words in ("aten.mm", "4194304 (466.0 Gflop/s)", "modelled by the cost model"):
            assert words in text
        await pilot.press("q")
        assert not isinstance(pilot.app.screen, TextScreen)
        assert pilot.app.is_running


async def test_help_lists_every_binding(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 60)) as pilot:
        await pilot.press("question_mark")
        pane = pilot.app.screen.query_one("#help", LinePane)
        text = "\n".join(map(text_of_line, pane.lines))
        for binding in (*TimelineView.BINDINGS, *ProfileApp.BINDINGS):
            assert binding.description in text  # type: ignore[union-attr]


async def test_a_screenshot_is_saved_under_a_new_name(
    trace: Trace, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "e")
    pictures = [home / name for name in os.listdir(home) if name.startswith("neuron-profile")]
    assert [picture.read_text()[:4] for picture in pictures] == ["<svg"] * 2


async def test_a_click_selects_and_the_wheel_zooms_at_the_pointer(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.click(TimelineView, offset=(40, 4))
        assert name_of(view) == "aten.mm"
        for nothing_there in ((40, 2), (3, 4)):
            await pilot.click(TimelineView, offset=nothing_there)
            assert name_of(view) == "aten.mm"
        span = view.state.view.span_ns
        wheel = {"delta_x": 0, "delta_y": 0, "button": 0, "shift": False, "meta": False, "ctrl": False}
        view.post_message(MouseScrollUp(view, x=79, y=2, **wheel))
        await pilot.pause()
        assert view.state.view.span_ns == span // 2
        assert view.state.view.start_ns > 0
        view.post_message(MouseScrollDown(view, x=79, y=2, **wheel))
        await pilot.pause()
        assert span - view.state.view.span_ns < 2


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 10), (16, 6), (200, 60), (130, 8)])
async def test_any_size_draws_whole_lines(trace: Trace, size: Size) -> None:
    async with ProfileApp(trace).run_test(size=size) as pilot:
        view = view_of(pilot)
        await pilot.press("j", "tab", "plus", "slash", *"mm", "enter")
        for y in range(view.size.height):
            assert view.render_line(y).cell_length == view.size.width
        await pilot.resize_terminal(100, 30)
        while view.state.view.columns != 100 - 16:  # the limit of time of a test ends this otherwise
            await pilot.pause()
        assert text_of(view)


async def test_typing_in_a_question_presses_no_keys_of_the_viewer(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"q123e?")
        assert isinstance(pilot.app.screen, PromptScreen)
        assert pilot.app.screen.query_one(Input).value == "q123e?"


@pytest.mark.parametrize(("size", "has_colour"), [((120, 40), True), ((80, 24), False)])
def test_timeline_snapshot(
    snap_compare: Any, trace: Trace, monkeypatch: pytest.MonkeyPatch, size: Size, has_colour: bool
) -> None:
    if has_colour:
        monkeypatch.delenv("NO_COLOR")
    assert snap_compare(ProfileApp(trace), terminal_size=size, press=["j", "tab"])


async def test_names_of_a_profile_cannot_control_the_terminal(home: Path, maker: Maker) -> None:
    hostile = "a\x1b]0;t\x07\x9b31m\u202e\x7f\r\b[red]\nb"

    class Hostile(type(maker)):  # type: ignore[misc]
        def mlp(self) -> tuple[object, ...]:
            return (self.operation(hostile, "Tensor", 0, 25_000),)

    Hostile().finished(home / "hostile")
    async with ProfileApp(load(str(home / "hostile"))).run_test(size=(120, 24)) as pilot:
        view = view_of(pilot)
        view.show_search("red")
        await pilot.press(*"wwwwwwwww")
        drawn = [text_of(view)]
        await pilot.press("enter")
        pane = pilot.app.query_one("#timeline LinePane", LinePane)
        drawn.append("\n".join(text_of_line(line) for line in pane.lines))
    for text in drawn:
        assert "\\u001b]0;t" in text
        assert not [
            letter for letter in text if unicodedata.category(letter) in {"Cc", "Cf"} and letter != "\n"
        ]
    assert "[red]" in drawn[0]


async def test_a_selected_event_shows_in_cells_of_longer_ones(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(60, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("f", "slash", *"tick", "enter", "f", "f")
        event = view.state.selected_event
        assert name_of(view) == "custom::tick"
        columns = view.state.columns_of(event)
        assert len(columns) == 1
        rows = [line.rows if isinstance(line, RowLine) else () for line, _ in view._lines]
        at = max(at for at, numbers in enumerate(rows) if view.state.selected_row in numbers)
        cell = view.render_line(at - view._scroll + 1).crop(GUTTER + columns.start, GUTTER + columns.stop)
        assert next(iter(cell)).style.bold  # type: ignore[union-attr]
