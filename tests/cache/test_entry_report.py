"""What is known of a row of the browser: details, why it was compiled, lookups over time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from neurontools.cache.entries import scan
from neurontools.cache.entry_report import RowReporter, format_lookups, hits_over_time
from neurontools.cache.events import LookupEvent, LookupEventKind
from tests.cache.conftest import NOW, Tree
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    import pytest

_HIT, _MISS = LookupEventKind.HIT, LookupEventKind.MISS


def event(ago_s: float, kind: LookupEventKind = _HIT, seconds: float = 0.5) -> LookupEvent:
    return LookupEvent(NOW - ago_s, "1:1", kind, seconds, "MODULE_1+0")


def test_an_entry_is_compared_with_its_neighbour(tree: Tree) -> None:
    paths = [tree.compiled(mlp(rows), "mlp", unused_s=100 - rows) for rows in (4, 8)]
    tree.look_up(paths[1], (60.0, "miss", 0.25), (30.0, "hit", 0.25))
    tree.look_up(paths[0], (90.0, "miss", 0.25))
    reporter = RowReporter(str(tree.root))
    places = {entry.path: entry.place for entry in scan(str(tree.root)).entries}
    report = reporter.report(places[str(paths[1])])
    assert report is not None
    assert report.details.graph is not None
    assert report.explanation.comparison is not None
    assert report.explanation.comparison.old.entry.path == str(paths[0])
    assert [cause.name for cause in report.explanation.causes] == ["input shape changed"]
    assert [one.kind for one in reporter.lookups([paths[1].name])] == [_MISS, _HIT]
    both = reporter.lookups([path.name for path in paths])
    assert [NOW - one.unix_s for one in both] == [90.0, 60.0, 30.0]


def test_an_entry_that_is_gone_has_no_report(tree: Tree) -> None:
    tree.compiled(mlp(), "mlp")
    (entry,) = scan(str(tree.root)).entries
    reporter = RowReporter(str(tree.root))
    assert reporter.report(entry.place) is not None
    shutil.rmtree(tree.root)
    assert RowReporter(str(tree.root)).report(entry.place) is None


def test_neighbours_are_read_again_after_many_entries(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurontools.cache.entry_report._MOST_EXPLAINED", 1)
    tree.compiled(mlp(4), "mlp")
    reporter = RowReporter(str(tree.root))
    (entry,) = scan(str(tree.root)).entries
    first = reporter.report(entry.place)
    tree.compiled(mlp(8), "mlp")
    second = reporter.report(entry.place)
    assert first is not None
    assert second is not None
    assert (first.explanation.comparison is None, second.explanation.comparison is None) == (True, False)


def test_hits_are_counted_over_the_shortest_span_that_holds_all_events() -> None:
    assert hits_over_time((), NOW, 4) == ("1 hour", (0, 0, 0, 0))
    assert hits_over_time((event(3500), event(10), event(-5)), NOW, 4) == ("1 hour", (1, 0, 0, 2))
    assert hits_over_time((event(4000, _MISS), event(60)), NOW, 2) == ("24 hours", (0, 1))
    assert hits_over_time((event(900 * 86400), event(60)), NOW, 2) == ("1 year", (0, 1))


def test_lookups_are_added_up_by_what_happened() -> None:
    assert format_lookups(()) == ""
    found = (event(9, _MISS, 2.0), event(8), event(7), event(6, LookupEventKind.DAMAGED))
    assert format_lookups(found) == "2 hits saved 1s, 1 compile took 2s, 1 damaged NEFF"
