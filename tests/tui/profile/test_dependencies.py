"""The timeline follows dependencies of the selected event, and points out the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.strip import Strip
from textual.widgets import Static

from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.tui.profile.app import ProfileApp
from neurontools.tui.profile.timeline_drawing import GUTTER, RowLine
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of as text_of_line
from tests.profiler.test_dependencies import compiled, trace_of
from tests.tui.profile.test_viewer import view_of

if TYPE_CHECKING:
    from pathlib import Path

    from textual.pilot import Pilot

    from tests.profiler.conftest import Maker


def details(pilot: Pilot[None]) -> str:
    pane = pilot.app.query_one("#timeline LinePane", LinePane)
    return "\n".join(text_of_line(line) for line in pane.lines)


async def test_dependencies_are_followed_back_and_forth(home: Path, maker: Maker) -> None:
    async with ProfileApp(trace_of(compiled(), maker, home)).run_test(size=(120, 40)) as pilot:
        view = view_of(pilot)
        assert view.order is None
        await pilot.press("slash", *"relu", "enter")
        relu = view.state.selected_event
        assert "waited for" in details(pilot)
        visited = [relu]
        while view.order is not None and view.order.earlier:
            expected = view.order.earlier[0].event
            await pilot.press("less_than_sign")
            assert view.state.selected_event == expected
            visited.append(expected)
        assert len(visited) > 2
        await pilot.press("less_than_sign")
        assert view.state.selected_event == visited[-1]
        for event in reversed(visited[:-1]):
            await pilot.press("full_stop")
            assert view.state.selected_event == event
        await pilot.press("escape")
        assert view.order is None
        assert "waited for" not in details(pilot)


async def test_dependencies_are_pointed_out_however_short(home: Path, maker: Maker) -> None:
    async with ProfileApp(trace_of(compiled(), maker, home)).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)

        def is_pointed_out(event: int) -> bool:
            row = next(
                line
                for line in view.state.lines
                if isinstance(line, RowLine) and view.state.timeline.row_of(event) in line.rows
            )
            (column, *_) = view.state.columns_of(event)
            cell = Strip(view._row(row)[-1]).crop(GUTTER + column, GUTTER + column + 1)
            return bool(next(iter(cell)).style.underline)  # type: ignore[union-attr]

        await pilot.press("slash", *"relu", "enter", "f", "f")
        assert view.order is not None
        links = {link.event for link in (*view.order.earlier, *view.order.later)}
        assert links
        assert all(is_pointed_out(event) for event in links)
        await pilot.press("slash", *"zzz", "enter", "escape")
        assert not any(is_pointed_out(event) for event in links)


async def test_the_critical_path_stays_bright(home: Path, maker: Maker) -> None:
    async with ProfileApp(trace_of(compiled(), maker, home)).run_test(size=(80, 24)) as pilot:
        view = view_of(pilot)
        await pilot.press("j", "tab", "f", "f")
        assert view.order is not None

        def shades() -> set[bool]:
            lines = [view.render_line(y) for y in range(2, view.size.height - 2)]
            styles = [segment.style for line in lines for segment in list(line)[3:] if "█" in segment.text]
            return {bool(style and style.dim) for style in styles}

        assert shades() == {False}
        await pilot.press("p")
        assert shades() == {False, True}
        await pilot.press("p")
        assert shades() == {False}


async def test_the_box_of_details_has_dependencies_too(home: Path, maker: Maker) -> None:
    async with ProfileApp(trace_of(compiled(), maker, home)).run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "tab", "enter")
        text = str(pilot.app.screen.query_one(Static).content)
        assert "critical path" in text
        assert "waits for it" in text


async def test_a_program_without_order_says_why(trace: object) -> None:
    async with ProfileApp(trace).run_test(size=(120, 40)) as pilot:  # type: ignore[arg-type]
        await pilot.press("j", "tab")
        assert view_of(pilot).state.selected_event != NO_EVENT
        assert "unknown: " in details(pilot)
        await pilot.press("less_than_sign", "p")
        assert view_of(pilot).order is None
