"""The dashboard: what it shows at each size, its keys and clicks, and the real tool's screen behind a key."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.pages.overview import OverviewPage
from neurontools.tui.top.pages.trends import MemoryTrend, Trends
from neurontools.tui.top.screen import CLASSIC_PANES, classic_frame
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Role, text_of
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from textual.pilot import Pilot

    from neurontools.machine.snapshot import Snapshot
    from neurontools.tui.top.source import TimedSnapshot

Ticks = tuple["TimedSnapshot", "TimedSnapshot"]


@asynccontextmanager
async def opened(
    *ticks: TimedSnapshot, size: tuple[int, int] = (120, 40), classic: bool = False, colour: bool = True
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    app = TopApp(FixedSource(*ticks), settings=TopSettings(classic=classic), colour=colour)
    async with app.run_test(size=size) as pilot:
        await app.source_ended.wait()
        await pilot.pause()
        yield app, pilot


def shown(app: TopApp) -> list[str]:
    panes = ("title", "page-overview", "bottom")
    return [text_of(line) for name in panes for line in app.query_one(f"#{name}", LinePane).lines]


def drawn(model: TopModel, size: tuple[int, int]) -> str:
    return "\n".join(text_of(line) for line in OverviewPage().live_lines(model, *size))


def model_of(*ticks: TimedSnapshot) -> TopModel:
    model = TopModel()
    for tick in ticks:
        model.update(tick)
    return model


def replace_snapshot(tick: TimedSnapshot, snapshot: Snapshot) -> TimedSnapshot:
    return type(tick)(snapshot, tick.cpu)


def test_a_small_terminal_has_the_real_tools_four_panes_and_a_large_one_more(training: Ticks) -> None:
    model = model_of(*training)
    small, large = drawn(model, (80, 21)), drawn(model, (120, 37))
    for name in ("NeuronCores", "vCPU", "Memory ", "Memory Details"):
        assert name in small
        assert name in large
    for name in ("History", "Processes", "Events"):
        assert name not in small
        assert name in large


def test_memory_stands_beside_the_cores_of_each_device_as_a_part_of_its_capacity(training: Ticks) -> None:
    before, after = training
    devices = tuple(
        replace(device, memory_used_bytes=device.memory_bytes // 4) for device in after.snapshot.devices
    )
    model = model_of(before, replace(after, snapshot=replace(after.snapshot, devices=devices)))
    row = next(line for line in drawn(model, (120, 37)).splitlines() if "ND3 " in line)
    assert "8/32GB" in row


def test_rates_are_not_shown_as_zero_before_they_are_known(training: Ticks) -> None:
    first = drawn(model_of(training[0]), (80, 21))
    assert "no rates yet" in first
    assert "%" not in first
    assert "  - usr" in first
    assert "GB" in first
    first = drawn(model_of(training[0]), (120, 37))
    assert "0.0%" not in first
    assert "avg" in drawn(model_of(*training), (120, 37))


def test_a_lost_device_shows_no_numbers(training: Ticks) -> None:
    before, after = training
    first, *others = after.snapshot.devices
    lost = replace(first, lost=True, memory_used_bytes=first.memory_bytes)
    model = model_of(before, replace(after, snapshot=replace(after.snapshot, devices=(lost, *others))))
    for size in ((80, 21), (120, 37), (200, 57)):
        row = next(line for line in drawn(model, size).splitlines() if "ND0 " in line)
        cell = row[: row.index("ND8")] if "ND8" in row else row
        assert "lost" in cell
        assert "%" not in cell
        assert "GB" not in cell.partition("lost")[2].partition("│")[0]


async def test_c_shows_the_real_tools_screen_and_the_dashboard_again(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        dashboard = shown(app)
        await pilot.press("c")
        found = classic_frame(app.model, 120, 40)
        for name in ("title", *CLASSIC_PANES, "bottom"):
            assert app.query_one(f"#{name}", LinePane).lines == tuple(found[name])
        assert not app.query_one("#page-overview").display
        await pilot.press("c")
        assert shown(app) == dashboard


async def test_classic_is_what_the_settings_ask_for_and_pages_keep_their_tabs(training: Ticks) -> None:
    async with opened(*training, classic=True) as (app, pilot):
        assert app.query_one("#cores", LinePane).lines
        await pilot.press("f4", "f1")
        assert app.is_classic
        assert app.query_one("#cores", LinePane).lines


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_tabs_at_the_top_and_at_the_bottom_lead_to_every_page(
    training: Ticks, size: tuple[int, int]
) -> None:
    async with opened(*training, size=size) as (app, pilot):
        for page in app.pages:
            for y in (0, size[1] - 1):
                await pilot.press("f1")
                line = shown(app)[0 if y == 0 else -1]
                await pilot.click(offset=(line.index(page.title), y))
                assert app.page is page


async def test_the_selection_has_a_marker_and_leaves_bars_alone(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        await pilot.press("j", "j", "k")
        lines = app.query_one("#page-overview", LinePane).lines
        marked = [text_of(line) for line in lines if any(role is Role.CURSOR for _, role in line)]
        assert len(marked) == 2
        assert all("▌" in line for line in marked)
        assert "ND1 " in marked[0]
        assert "ND 1" in marked[1]
        bars = {role for line in lines for text, role in line if "▇" in text}
        assert bars <= {Role.USE_1, Role.USE_2, Role.USE_3, Role.USE_4, Role.USE_5, Role.USE_FULL}


async def test_a_click_selects_a_row_of_the_tree_and_a_second_one_opens_it(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        y = next(at for at, line in enumerate(shown(app)) if "▸ ND 3" in line)
        await pilot.click(offset=(8, y))
        assert app.model.tree.selected == 3
        rows = len(app.model.tree.rows)
        await pilot.click(offset=(8, next(at for at, line in enumerate(shown(app)) if "▸ ND 3" in line)))
        assert len(app.model.tree.rows) > rows
        await pilot.click(offset=(100, y))
        assert app.model.tree.selected == 3


@pytest.mark.parametrize("size", [(10, 3), (1, 1), (60, 16), (300, 90)])
async def test_any_size_of_terminal_is_survived(training: Ticks, size: tuple[int, int]) -> None:
    async with opened(*training, size=size) as (app, pilot):
        await pilot.press("j", "enter", "f2", "f3", "f4", "t", "f5", "question_mark", "escape", "f1", "c")
        assert app.is_running


async def test_a_storm_of_sizes_ends_on_the_last_one(training: Ticks) -> None:
    async with opened(*training) as (app, pilot):
        for width in range(60, 200, 20):
            await pilot.resize_terminal(width, 16 + width // 5)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert len(shown(app)) == 24
        assert {len(line) for line in shown(app)} == {80}


async def test_without_colour_the_same_characters_are_drawn(training: Ticks) -> None:
    async with opened(*training) as (app, _):
        coloured = shown(app)
    async with opened(*training, colour=False) as (app, _):
        assert shown(app) == coloured


async def test_a_large_processes_page_opens_jobs_by_itself_and_enter_closes_them(
    ticks: Callable[..., Ticks], job: type
) -> None:
    jobs = tuple(job(100 + rank, "llama", (rank,), (0.5,)) for rank in range(8))
    app = TopApp(FixedSource(*ticks(4, 2, jobs=jobs)), settings=TopSettings(page="processes"))
    async with app.run_test(size=(200, 60)) as pilot:
        await app.source_ended.wait()
        await pilot.pause()

        def rows() -> int:
            lines = app.query_one("#page-processes", LinePane).lines
            texts = [text_of(line) for line in lines[:12]]
            return sum("python train.py" in text and "command" not in text for text in texts)

        assert rows() == 8
        await pilot.press("home", "enter")
        assert rows() == 0
        assert "llama x8" in "".join(
            text_of(line) for line in app.query_one("#page-processes", LinePane).lines
        )
        await pilot.press("g")
        assert rows() == 8


def test_trends_fill_seconds_at_rest_and_read_the_history_after_other_pages(training: Ticks) -> None:
    model, trends, memory = model_of(*training), Trends(), MemoryTrend()
    trends.look(model)
    before = list(memory.look(model))
    last = training[1].snapshot
    row = model.shown.processes[0]
    values = list(trends.of(row))
    model.update(replace_snapshot(training[1], replace(last, taken_ns=last.taken_ns + 3 * 1_000_000_000)))
    trends.look(model)
    assert list(trends.of(row)) == [*values[3:], values[-1], values[-1], 0.0]
    assert list(memory.look(model))[:-3] == before[3:]
    trends.forget()
    memory.forget()
    model.update(replace_snapshot(training[1], replace(last, taken_ns=last.taken_ns + 9 * 1_000_000_000)))
    trends.look(model)
    assert trends.of(row)[-1] == 0.0
    assert len(trends.of(row)) == len(memory.look(model)) == len(values)
