"""Pictures of the classic screen. After a wanted change: `pytest tests/tui/top --snapshot-update`, then look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from neurontools.tui.top.app import TopApp
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import SourceProblem, TimedSnapshot
from tests.tui.top.fixed_source import FixedSource

if TYPE_CHECKING:
    from textual.pilot import Pilot

Ticks = tuple[TimedSnapshot, TimedSnapshot]
Compare = Callable[..., bool]
SIZES = ((80, 24), (120, 40), (200, 60))


CLASSIC = TopSettings(classic=True)


@pytest.fixture(autouse=True)
def in_colour_and_of_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr("neurontools.tui.top.pages.rows.__version__", "1.2.3")


async def at_the_end(pilot: Pilot[int]) -> None:
    assert isinstance(pilot.app, TopApp)
    await pilot.app.source_ended.wait()
    await pilot.pause()


def pressing(*keys: str) -> Callable[[Pilot[int]], object]:
    async def run(pilot: Pilot[int]) -> None:
        await at_the_end(pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return run


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_trn1_32xlarge(snap_compare: Compare, training: Ticks, size: tuple[int, int]) -> None:
    app = TopApp(FixedSource(*training), settings=CLASSIC)
    assert snap_compare(
        app, terminal_size=size, run_before=pressing("down", "enter", "down", "enter", "down")
    )


def test_trn2_48xlarge(snap_compare: Compare, trn2: Ticks) -> None:
    assert snap_compare(
        TopApp(FixedSource(*trn2), settings=CLASSIC), terminal_size=(120, 40), run_before=at_the_end
    )


def test_trn1_2xlarge(snap_compare: Compare, single: Ticks) -> None:
    assert snap_compare(
        TopApp(FixedSource(*single), settings=CLASSIC), terminal_size=(80, 24), run_before=pressing("x")
    )


def test_flops_of_one_process(snap_compare: Compare, training: Ticks) -> None:
    app = TopApp(FixedSource(*training), settings=CLASSIC)
    assert snap_compare(app, terminal_size=(120, 40), run_before=pressing("2", "f"))


def test_the_daemon_is_gone(snap_compare: Compare, training: Ticks) -> None:
    app = TopApp(
        FixedSource(*training, SourceProblem("machine not running, waiting for it")), settings=CLASSIC
    )
    assert snap_compare(app, terminal_size=(120, 40), run_before=at_the_end)


def test_help(snap_compare: Compare, training: Ticks) -> None:
    app = TopApp(FixedSource(*training), settings=CLASSIC)
    assert snap_compare(app, terminal_size=(80, 24), run_before=pressing("question_mark"))


def test_a_terminal_that_is_too_small(snap_compare: Compare, training: Ticks) -> None:
    assert snap_compare(
        TopApp(FixedSource(*training), settings=CLASSIC), terminal_size=(50, 12), run_before=at_the_end
    )


def test_without_colour(snap_compare: Compare, training: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = TopApp(FixedSource(*training), colour=False, settings=CLASSIC)
    assert snap_compare(app, terminal_size=(80, 24), run_before=pressing("down"))
