from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import pytest
from textual.events import MouseScrollDown, MouseScrollUp
from textual.widgets import DataTable, Input, Static

from neurontools.profiler.trace.load import load
from neurontools.profiler.trace.timeline import NO_EVENT
from neurontools.tui.profile.app import ProfileApp, Question
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.widgets.screens import TextScreen

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
    return view.trace.event(view.selected_event).action.name


async def test_the_timeline_shows_rows_clocks_and_everything_at_first(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        text = text_of(view)
        assert "pid 4242 NC0: wall clock, measured" in text
        assert "pid 4242 NC0: device clock, modelled" in text
        assert "112 events start here" in text
        assert (view.view.start_ns, view.view.end_ns) == (0, trace.end_ns)


async def test_zoom_pan_and_fit(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        whole = view.view
        await pilot.press("plus", "w")
        assert view.view.span_ns == whole.span_ns // 4
        start = view.view.start_ns
        await pilot.press("right", "l")
        assert view.view.start_ns == start + 2 * (view.view.span_ns // 8)
        await pilot.press("left", "h")
        assert view.view.start_ns == start
        await pilot.press("minus", "s", "s", "s")
        assert view.view.span_ns == whole.span_ns
        await pilot.press("w", "f")
        assert view.view == whole


async def test_tab_walks_over_events_and_keeps_them_visible(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("j", "j", "j", "tab")
        assert name_of(view) == "aten.mm"
        first = view.selected_event
        await pilot.press(*["plus"] * 10)
        await pilot.press("tab", "tab")
        assert view.selected_event == first + 2
        assert view.view.start_ns <= trace.event(first + 2).start < view.view.end_ns
        await pilot.press("shift+tab")
        assert view.selected_event == first + 1
        await pilot.press("escape")
        assert view.selected_event == NO_EVENT


async def test_rows_scroll_with_the_selected_one(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 12)) as pilot:
        view = view_of(pilot)
        await pilot.press(*["down"] * 30)
        assert view.selected_row == len(view.timeline.rows) - 1
        assert " DMA " in text_of(view)
        await pilot.press(*["k"] * 30)
        assert view.selected_row == 0
        assert "neuron_rt" in text_of(view)
        assert "pid 4242 NC0: wall clock" in text_of(view)


async def test_search_with_next_and_previous(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("slash", *"RELU", "enter")
        assert name_of(view) == "aten.relu"
        assert "/RELU: 1 of 10 hits" in text_of(view)
        first = view.selected_event
        await pilot.press("n")
        assert view.selected_event != first
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
        await pilot.press(*["plus"] * 6, "g", *"2.5ms", "enter")
        assert view.view.start_ns + view.view.span_ns // 2 == 2_500_000
        before = view.view
        await pilot.press("g", *"soon", "enter")
        await pilot.press("g", "escape")
        assert view.view == before


async def test_details_show_the_event(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "j", "j", "tab", "enter")
        assert isinstance(pilot.app.screen, TextScreen)
        text = str(pilot.app.screen.query_one(Static).content)
        assert "aten.mm" in text
        assert "4194304 (466.0 Gflop/s)" in text
        assert "modelled by the cost model" in text
        await pilot.press("q")
        assert not isinstance(pilot.app.screen, TextScreen)
        assert pilot.app.is_running


async def test_help_lists_every_binding(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 40)) as pilot:
        await pilot.press("question_mark")
        text = str(pilot.app.screen.query_one(Static).content)
        for binding in (*TimelineView.BINDINGS, *ProfileApp.BINDINGS):
            assert binding.description in text  # type: ignore[union-attr]


async def test_the_other_tabs_hold_summary_and_operators(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        assert "mfu_estimated_percent" in str(pilot.app.query_one("#summary Static", Static).content)
        await pilot.press("3")
        table = pilot.app.query_one(DataTable)
        assert table.has_focus
        assert [str(cell) for cell in table.get_row_at(0)[:5]] == [
            "aten.mm",
            "MATMUL",
            "Tensor",
            "20",
            "140.0 us",
        ]
        await pilot.press("1", "plus")
        assert view_of(pilot).view.span_ns < trace.end_ns


async def test_a_screenshot_is_saved_under_a_new_name(trace: Trace, home: Path) -> None:
    async with ProfileApp(trace, str(home)).run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "e")
    assert (home / "neuron-profile-1.svg").read_text().startswith("<svg")
    assert (home / "neuron-profile-2.svg").exists()


async def test_a_click_selects_and_the_wheel_zooms_at_the_pointer(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.click(TimelineView, offset=(16, 2))
        assert name_of(view) == "nrt_load"
        for nothing_there in ((16, 1), (3, 2)):
            await pilot.click(TimelineView, offset=nothing_there)
            assert name_of(view) == "nrt_load"
        span = view.view.span_ns
        wheel = {"delta_x": 0, "delta_y": 0, "button": 0, "shift": False, "meta": False, "ctrl": False}
        view.post_message(MouseScrollUp(view, x=79, y=2, **wheel))
        await pilot.pause()
        assert view.view.span_ns == span // 2
        assert view.view.start_ns > 0
        view.post_message(MouseScrollDown(view, x=79, y=2, **wheel))
        await pilot.pause()
        assert view.view.span_ns == span


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 10), (16, 6), (200, 60)])
async def test_any_size_draws_whole_lines(trace: Trace, size: Size) -> None:
    async with ProfileApp(trace).run_test(size=size) as pilot:
        view = view_of(pilot)
        await pilot.press("j", "tab", "plus", "slash", *"mm", "enter")
        for y in range(view.size.height):
            assert view.render_line(y).cell_length == view.size.width
        await pilot.resize_terminal(100, 30)
        while view.view.columns != 100 - 16:  # the limit of time of a test ends this otherwise
            await pilot.pause()
        assert text_of(view)


async def test_typing_in_a_question_presses_no_keys_of_the_viewer(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"q123e?")
        assert isinstance(pilot.app.screen, Question)
        assert pilot.app.screen.query_one(Input).value == "q123e?"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_timeline_snapshot(
    snap_compare: Any, trace: Trace, monkeypatch: pytest.MonkeyPatch, size: Size
) -> None:
    monkeypatch.delenv("NO_COLOR")
    keys = ["j", "j", "j", "tab", *["plus"] * 7]
    assert snap_compare(ProfileApp(trace), terminal_size=size, press=keys)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_timeline_snapshot_without_colour(snap_compare: Any, trace: Trace, size: Size) -> None:
    assert snap_compare(ProfileApp(trace), terminal_size=size)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_summary_snapshot(snap_compare: Any, trace: Trace, size: Size) -> None:
    assert snap_compare(ProfileApp(trace), terminal_size=size, press=["2"])


def test_operators_snapshot(snap_compare: Any, trace: Trace) -> None:
    assert snap_compare(ProfileApp(trace), terminal_size=(80, 24), press=["3"])


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
        drawn.append(str(pilot.app.screen.query_one(Static).render()))
        await pilot.press("escape", "2")
        drawn.append(str(pilot.app.query_one("#summary Static", Static).render()))
        await pilot.press("3")
        table = pilot.app.query_one(DataTable)
        drawn.append("\n".join(table.render_line(y).text for y in range(table.size.height)))
    for text in drawn:
        assert "\\u001b]0;t" in text
        assert not [
            letter for letter in text if unicodedata.category(letter) in {"Cc", "Cf"} and letter != "\n"
        ]
    assert "[red]" in drawn[-1]
