"""How far a long look at a root is: told to a terminal after a second, and to nobody else."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import stats, walk
from neurontools.cache.copy.plan import CopyPlan
from neurontools.cache.copy.runner import CopiedEntry, CopyOutcome, CopyResult, format_stopped
from neurontools.cache.fields import EntryFilter
from neurontools.cache.listing import list_entries, parse_order
from neurontools.cache.location import resolve
from neurontools.commands.cache import main
from neurontools.commands.console import ProgressLine
from tests.cache.entries import an_entry

if TYPE_CHECKING:
    from tests.cache.conftest import Tree


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def five(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Five entries, of which every second one is told."""
    monkeypatch.setattr(walk, "_PROGRESS_STEP", 2)
    for number in range(5):
        tree.done(graph=str(number))
    return tree


def test_a_list_and_sums_tell_at_how_many_they_looked(five: Tree) -> None:
    told: list[tuple[int, int]] = []
    where = resolve({}, str(five.root))
    list_entries(where, parse_order("used"), EntryFilter(), now=0.0, on_read=lambda *far: told.append(far))
    assert told == [(0, 5), (2, 5), (4, 5)]
    stats.collect_stats(walk.walk(where.root), lambda _: False, lambda *far: told.append(far))
    assert told[3:] == told[:3]


@pytest.mark.parametrize("verb", ["ls", "stats"])
def test_a_terminal_sees_it_and_it_goes_away(five: Tree, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    seconds = iter(range(1000))
    monkeypatch.setitem(ProgressLine.__init__.__kwdefaults__, "clock", lambda: float(next(seconds)))
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main([verb, "--cache-dir", str(five.root)]) == 0
    assert "\r\x1b[Kreading 2 of 5 entries\r\x1b[Kreading 4 of 5 entries\r\x1b[K" in screen.getvalue()


@pytest.mark.parametrize("verb", ["ls", "stats"])
def test_a_pipe_does_not(
    five: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    seconds = iter(range(1000))
    monkeypatch.setitem(ProgressLine.__init__.__kwdefaults__, "clock", lambda: float(next(seconds)))
    assert main([verb, "--cache-dir", str(five.root)]) == 0
    assert capsys.readouterr().err == ""


def test_a_copy_that_stopped_says_how_much_is_left() -> None:
    copied, present, *rest = (an_entry(module=f"MODULE_{number}+0") for number in range(5))
    plan = CopyPlan("/a", "/a", "/b", (copied, present, *rest), (), (), ())
    done = (CopiedEntry(copied, CopyOutcome.COPIED), CopiedEntry(present, CopyOutcome.PRESENT))
    assert format_stopped(plan, CopyResult(done, None)) == (
        "stopped after 1 entry, 3 left; run the command again to continue"
    )
