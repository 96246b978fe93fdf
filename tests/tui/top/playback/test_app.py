"""Time travel by its keys, in the real app."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from neurontools.dashboard.recorder import SnapshotRecorder
from neurontools.dashboard.snapshot_history import SnapshotHistory
from neurontools.tui.top.app import TopApp
from neurontools.tui.top.keys import TIME_KEYS
from neurontools.tui.top.playback import ReplaySource
from neurontools.tui.top.source import RecordedSource, TimedSnapshot
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import text_of
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from textual.pilot import Pilot


def title(app: TopApp) -> str:
    return text_of(app.query_one("#title", LinePane).lines[0])


def mean(app: TopApp) -> str:
    """What the bar above the cores says."""
    lines = [text_of(line) for line in app.query_one("#page-overview", LinePane).lines]
    return "none" if "no rates yet" in lines[0] else lines[0].split("avg ")[1].split()[0]


@asynccontextmanager
async def followed(
    tick_at: Callable[..., TimedSnapshot], seconds: int
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    app = TopApp(FixedSource(*(tick_at(second) for second in range(seconds))))
    async with app.run_test(size=(140, 40)) as pilot:
        await app.source_ended.wait()
        await pilot.pause()
        yield app, pilot


async def test_space_holds_and_brackets_scroll(tick_at: Callable[..., TimedSnapshot]) -> None:
    async with followed(tick_at, 90) as (app, pilot):
        assert mean(app) == "89.00%"
        await pilot.press("space")
        assert "paused at" in title(app)
        assert "still recording" in title(app)
        for keys, percent in (
            (("[", "["), "87.00%"),
            (("]",), "88.00%"),
            (("{",), "28.00%"),
            (("}",), "88.00%"),
            (("(",), "none"),
            (("]",), "1.00%"),
            ((")",), "89.00%"),
        ):
            await pilot.press(*keys)
            assert mean(app) == percent, keys
        assert "paused" not in title(app)


@pytest.mark.parametrize("page", ["h", "p", "v", "e"])
async def test_the_keys_work_on_every_page(tick_at: Callable[..., TimedSnapshot], page: str) -> None:
    async with followed(tick_at, 20) as (app, pilot):
        await pilot.press(page, "space", "[")
        assert "(-0:01), still recording" in title(app)
        await pilot.press("o")
        assert mean(app) == "18.00%"


async def test_a_replay_is_played_paused_and_sought(
    home: Path, tick_at: Callable[..., TimedSnapshot]
) -> None:
    list(
        RecordedSource(
            FixedSource(*(tick_at(second) for second in range(100))), SnapshotRecorder("rec")
        ).updates()
    )
    tape = SnapshotHistory()
    app = TopApp(ReplaySource("rec", tape), replay=(tape, 1.0))
    async with app.run_test(size=(140, 40)) as pilot:
        await app.source_ended.wait()
        await pilot.pause(0.2)
        assert "of 1:38 x1" in title(app)
        await pilot.press("space", "(", "]", "]")
        assert "0:02 of 1:38 paused" in title(app)
        assert mean(app) == "3.00%"
        await pilot.press("}")
        assert mean(app) == "63.00%"
        await pilot.press("minus", "minus", "space")
        assert "x0.25" in title(app)
        await pilot.press(")")
        assert "1:38 of 1:38 end" in title(app)
        await pilot.press("h")
        minute = app.model.history.minute(("machine", 0))
        assert all(slot is not None for slot in minute[1:])


def test_every_key_has_a_name_and_a_meaning() -> None:
    assert all(binding.id and binding.description for binding in TIME_KEYS)
    assert len({binding.id for binding in TIME_KEYS}) == len(TIME_KEYS)
