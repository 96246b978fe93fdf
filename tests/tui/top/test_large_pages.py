"""What pages show beside their lists in a large terminal: details, charts, advice."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.page_actions import PagePane
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.widgets.lines import text_of
from tests.tui.pictures import machine_at
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot

LARGE = (200, 60)
SECONDS = 70


@asynccontextmanager
async def opened(
    page: str, state: str = "faulty", size: tuple[int, int] = LARGE
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    updates = [machine_at(state, second) for second in range(1, SECONDS)]
    app = TopApp(FixedSource(*updates, name="sim"), settings=TopSettings(page=page))
    async with app.run_test(size=size) as pilot:
        await app.source_ended.wait()
        await pilot.pause()
        yield app, pilot


def shown(app: TopApp) -> str:
    (pane,) = [pane for pane in app.screen_stack[0].query(PagePane) if pane.display]
    return "\n".join(re.sub("  +", "  ", text_of(line)) for line in pane.lines)


def ranks(text: str) -> list[str]:
    lines = text.partition("slowest first")[2].splitlines()[1:]
    return [line[1:].split()[0] for line in lines if "ms" in line]


async def test_a_job_shows_its_ranks_slowest_first_beside_its_charts() -> None:
    async with opened("processes") as (app, pilot):
        text = shown(app)
        assert "Job llama x20" in text
        assert "ranks  20, pids 4000 to 4019" in text
        assert ranks(text)[0] == "17"
        for title in ("Utilization: last minute", "Executions/s: last", "Latency p50 over all ranks"):
            assert title in text
        await pilot.press("u")
        assert "Utilization: last hour" in shown(app)
        await pilot.press("end")
        text = shown(app)
        assert "Process 7002" in text
        assert "Job llama" not in text
        assert "HBM memory" in text
        assert "p50 " in text.partition("Latency: last hour")[2]
        await pilot.press("home", "escape")
        assert "Job llama x20" not in shown(app)


async def test_a_smaller_terminal_shows_the_list_alone() -> None:
    for page, beside in (("processes", "Job llama"), ("events", "what to do"), ("devices", "Device ND0")):
        async with opened(page, size=(120, 40)) as (app, pilot):
            assert beside not in shown(app)
            await pilot.press("t")
            assert beside not in shown(app)


async def test_an_event_says_what_it_means_what_to_do_and_whom_it_is_about() -> None:
    async with opened("events") as (app, pilot):
        for _ in range(20):
            if "failed, 2 like it at once" in shown(app):
                break
            await pilot.press("down")
        text = shown(app)
        for words in (
            "the program got an",
            "what to do",
            "command  python serve.py --port 700",
            "others about process 700",
            "Utilization of process 700",
        ):
            assert words in text
        await pilot.press("t", "end")
        assert "straggler: process 4017" in shown(app)
        assert "One rank is slower than its peers" in shown(app)


async def test_a_machine_that_rests_says_what_would_be_here() -> None:
    async with opened("events", "idle") as (app, _):
        assert "no problems" in shown(app)
        assert "appear here" in shown(app)
    async with opened("processes", "idle") as (app, _):
        assert "neurontools scenario play" in shown(app)


async def test_links_of_the_selected_device_have_a_load_over_time_and_say_when_they_broke() -> None:
    async with opened("devices") as (app, pilot):
        await pilot.press("t", "down", "down", "down", "down", "down")
        text = shown(app)
        for words in (
            "Links of ND5",
            "ND5-ND6  down since ",
            "  broke 1x",
            "ND4-ND5  up, load ",
            "Utilization of ND5",
        ):
            assert words in text
        await pilot.press("end")
        assert "up, no job spans it" in shown(app)
    async with opened("devices", size=(120, 40)) as (app, pilot):
        await pilot.press("t", "down", "down", "down", "down", "down")
        assert "Links of ND5" in shown(app)


async def test_latency_has_p50_and_p99_of_each_process_and_all_percentiles_of_the_selected_one() -> None:
    async with opened("history", size=(120, 40)) as (app, pilot):
        await pilot.press("U")
        text = shown(app)
        chart, _, rows = text.partition("p99/p50")
        assert "4000 llama, latency: last minute" in chart
        labels = [word for word in chart.split() if word in {"max", "p99", "p90", "p50"}]
        assert labels[:4] == ["max", "p99", "p90", "p50"]
        row = next(line for line in rows.splitlines() if "4017" in line)
        assert row.count("ms") == 2
        await pilot.press("enter", "down")
        assert "4000 llama, latency p50: last minute" in shown(app)
    async with opened("history", size=(80, 24)) as (app, pilot):
        await pilot.press("U", "t")
        assert "4000 llama, latency: last hour" in shown(app)
