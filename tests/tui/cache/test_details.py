"""The panes below the list of the cache browser."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from neurontools.tui.cache import actions
from neurontools.tui.cache.app import CacheApp
from neurontools.tui.widgets.lines import width_of
from tests.compiler.graphs import mlp
from tests.tui.cache.test_browser import press, rest, run, screen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

    from tests.cache.conftest import Tree

LARGE = (200, 60)


@pytest.fixture
def compiled(tree: Tree, frozen: None) -> list[Path]:
    """Two models that differ in a size, the later one looked up, and a failure."""
    paths = [tree.compiled(mlp(rows), "mlp", "serve.py", unused_s=3600.0 - rows) for rows in (4, 8)]
    tree.look_up(paths[1], (3590.0, "miss", 0.25), (60.0, "hit", 0.25), (30.0, "hit", 0.25))
    tree.failed(graph="4444")
    return paths


async def select(pilot: Pilot[int], app: CacheApp, path: Path) -> list[str]:
    rows = [row.entry.path if row.entry else "" for row in app.browser.rows]
    await press(pilot, "home", *["down"] * rows.index(str(path)))
    return screen(app)


def pane(lines: list[str], title: str) -> str:
    """The words of a pane."""
    at = next(number for number, line in enumerate(lines) if f"─ {title} ─" in line)
    left = lines[at].index(f"─ {title} ─") - 1
    right = next(end for end in range(left + 1, len(lines[at])) if lines[at][end] == "╮")
    inside = [line[left + 1 : right].strip() for line in lines[at + 1 :]]
    end = next(number for number, line in enumerate(lines[at + 1 :]) if line[left] == "╰")
    return " ".join(" ".join(inside[:end]).split())


def test_an_entry_is_told_in_full(tree: Tree, compiled: list[Path]) -> None:
    async def body(pilot: Pilot[int], app: CacheApp) -> None:
        lines = await select(pilot, app, compiled[1])
        assert {width_of(line) for line in lines[1:-1]} == {LARGE[0]}
        entry = pane(lines, "Entry")
        assert compiled[1].name in entry
        assert "compiled by serve.py, process 4711" in entry
        assert "float32[8,8], float32[8,8]" in entry
        assert "operators" not in entry.replace("3 operators", "")
        operators = pane(lines, "Operators")
        assert "relu" in operators
        assert "model.neff" in operators
        why = pane(lines, "Why it was compiled")
        assert "input shape changed" in why
        assert compiled[0].name in why
        lookups = pane(lines, "Lookups")
        assert "2 hits saved 500ms, 1 compile took 250ms" in lookups
        assert "1 hour ago" in lookups
        assert "run 4711:998" in lookups

    run(tree, body, LARGE)


def test_a_smaller_screen_names_the_operators_beside_the_reason(tree: Tree, compiled: list[Path]) -> None:
    async def body(pilot: Pilot[int], app: CacheApp) -> None:
        lines = await select(pilot, app, compiled[1])
        assert "aten.relu.default x1" in pane(lines, "Entry")
        assert "input shape changed" in pane(lines, "Why it was compiled")
        await pilot.resize_terminal(120, 30)
        await rest(pilot)
        assert not any("Lookups" in line for line in screen(app))

    run(tree, body, (120, 40))


def test_a_group_is_added_up(tree: Tree, compiled: list[Path]) -> None:
    async def body(pilot: Pilot[int], app: CacheApp) -> None:
        await press(pilot, "home")
        lines = screen(app)
        group = pane(lines, "Group")
        assert "entries 3" in group
        assert "hits 2 of this user" in group
        assert pane(lines, "Most hits").startswith(compiled[1].name[:24])
        assert "2 hits saved 500ms" in pane(lines, "Lookups")

    run(tree, body, LARGE)


def test_a_failure_and_an_entry_that_is_gone_say_so(tree: Tree, compiled: list[Path]) -> None:
    async def body(pilot: Pilot[int], app: CacheApp) -> None:
        (failed,) = tree.root.glob("*/MODULE_4444*")
        lines = await select(pilot, app, failed)
        assert "NCC_EVRF004" in pane(lines, "Entry")
        assert "cannot be read" in pane(lines, "Why it was compiled")
        assert "none of this user is recorded" in pane(lines, "Lookups")
        shutil.rmtree(compiled[0])
        assert "it is gone" in pane(await select(pilot, app, compiled[0]), "Entry")
        app._look_for_changes()
        await rest(pilot)
        assert "it is gone" not in "\n".join(screen(app))
        shutil.rmtree(tree.root)
        app._look_for_changes()
        await rest(pilot)
        assert not any("─ Entry ─" in line for line in screen(app))

    run(tree, body, LARGE)


def test_a_click_below_the_list_selects_nothing(tree: Tree, compiled: list[Path]) -> None:
    for rows in range(16, 60):
        tree.failed(graph=str(rows))

    async def body(pilot: Pilot[int], app: CacheApp) -> None:
        await pilot.click(offset=(10, LARGE[1] - 3))
        assert app.browser.cursor == 0
        await press(pilot, "pagedown", "end")
        assert any("▌" in line for line in screen(app)[:30])

    run(tree, body, LARGE)


def test_picture(
    snap_compare: Callable[..., bool],
    tree: Tree,
    compiled: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.chdir(tree.root.parent)
    app = CacheApp(actions.new_browser("compile-cache"), theme="dark")

    async def before(pilot: Pilot[int]) -> None:
        await rest(pilot)
        await select(pilot, app, tree.root.relative_to(tree.root.parent) / compiled[1].relative_to(tree.root))

    assert snap_compare(app, terminal_size=LARGE, run_before=before)
