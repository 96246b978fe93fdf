"""The page for SQL: queries, their history, answers and errors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.tui.profile.app import ProfileApp
from neurontools.tui.profile.sql_page import QueryLine, SqlPage
from tests.tui.profile.test_pages import key_of, shown
from tests.tui.profile.test_viewer import view_of

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from neurontools.profiler.trace.trace import Trace

SIZE = (120, 40)


async def ask(pilot: Pilot[None], text: str) -> list[str]:
    line = pilot.app.query_one(QueryLine)
    line.value = text
    line.focus()
    await pilot.press("enter")
    await pilot.pause()
    return shown(pilot, "sql")


async def opened(pilot: Pilot[None]) -> None:
    pytest.importorskip("duckdb")
    await pilot.press(key_of("sql"))
    await pilot.pause()


async def test_it_lists_tables_and_columns_then_answers(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        rows = shown(pilot, "sql")
        assert "Tables and columns" in rows[0]
        assert rows[2].split()[0:3] == ["│▌Instruction", "start_ts", "BIGINT"]
        query = (
            "SELECT hlo_name, count(*) AS n, NULL AS none FROM Instruction GROUP BY ALL ORDER BY n DESC, 1"
        )
        rows = await ask(pilot, query)
        assert rows[0].startswith("╭─ 4 rows, ")
        assert rows[1].split()[1:4] == ["hlo_name", "n", "none"]
        assert rows[2].split()[0:4] == ["│▌aten.mm", "20", "NULL", "│"]


async def test_keys_of_the_viewer_are_typed_into_the_query(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press(*"q1?e", "f1")
        assert pilot.app.query_one(QueryLine).value == "q1?e"
        assert pilot.app.page("overview").display  # type: ignore[attr-defined]


async def test_an_error_is_one_line_and_keeps_the_answer(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        await ask(pilot, "SELECT 41 + 1 AS answer")
        rows = await ask(pilot, "SELECT nothing FROM Instruction")
        assert "the query failed: Binder Error" in rows[1]
        assert "42" in rows[3]
        for nothing in ("-- only a comment", "", "SELECT ("):
            await ask(pilot, nothing)
        assert "7" in (await ask(pilot, "SELECT 7"))[2]


async def test_queries_have_a_history(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        for number in (1, 2, 1):
            await ask(pilot, f"SELECT {number}")
        line = pilot.app.query_one(QueryLine)
        await pilot.press("up", "up")
        assert line.value == "SELECT 2"
        await pilot.press("up")
        assert line.value == "SELECT 2"
        await pilot.press("down", "down")
        assert line.value == ""


async def test_of_a_huge_answer_only_the_first_rows_are_read(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        rows = await ask(pilot, "SELECT range AS n FROM range(10_000_000_000)")
        assert "first 1000 rows" in rows[0]
        await pilot.press("escape", "end")
        assert "999" in shown(pilot, "sql")[-2]


async def test_wide_answers_scroll_sideways(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        rows = await ask(pilot, "SELECT " + ", ".join(f"{number} AS column_{number}" for number in range(20)))
        assert "column_0" in rows[1]
        assert "columns more" in rows[0]
        await pilot.press("tab", *["right"] * 15)
        rows = shown(pilot, "sql")
        assert "column_19" in rows[1]
        assert "column_14" not in rows[1]


async def test_enter_shows_the_event_of_a_row(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        await ask(
            pilot, "SELECT id, hlo_name FROM Instruction WHERE hlo_name = 'aten.relu' ORDER BY id LIMIT 2"
        )
        await pilot.press("escape", "down", "enter")
        view = view_of(pilot)
        assert view.has_focus
        assert trace.event(view.state.selected_event).action.name == "aten.relu"


async def test_a_query_is_stopped(trace: Trace) -> None:
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await opened(pilot)
        page = pilot.app.query_one(SqlPage)
        line = pilot.app.query_one(QueryLine)
        line.value = "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b WHERE a.range + b.range = 7"
        line.focus()
        page.on_input_submitted(QueryLine.Submitted(line, line.value))
        page.on_query_line_left()
        await pilot.pause()
        assert "Interrupt" in shown(pilot, "sql")[1]


async def test_without_duckdb_it_says_how_to_get_it(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    async with ProfileApp(trace).run_test(size=SIZE) as pilot:
        await pilot.press(key_of("sql"))
        await pilot.pause()
        text = "\n".join(shown(pilot, "sql"))
        assert "SQL and Parquet need DuckDB, which is not installed." in text
        assert "pip install 'neurontools[profile]'" in text
        assert not pilot.app.query_one(QueryLine).display
        await pilot.press("2")
        assert view_of(pilot).has_focus
