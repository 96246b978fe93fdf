"""The index of a big root: used when sure, never believed in doubt, and always the same answer as without it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.strategies import integers, sampled_from

from neurontools.cache import layouts, listing
from neurontools.cache.entries import scan
from neurontools.cache.events import Usage
from neurontools.cache.filters import EntryFilter
from neurontools.cache.listing import list_entries, parse_order, select
from neurontools.cache.location import resolve
from tests.cache.conftest import DAY, NOW, Tree

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS = ("used", "used:asc", "made", "size", "size:asc", "hits")


@pytest.fixture
def big(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A root that counts as big, listed once, long after its directories changed."""
    monkeypatch.setattr(listing, "MIN_ENTRIES", 0)
    for number in range(6):
        tree.done(graph=str(number), unused_s=number * DAY)
    tree.entry(graph="100", unused_s=20 * DAY)
    settle(tree.root)
    shown(tree.root)
    return tree


def settle(root: Path, moment: float = NOW) -> None:
    for path in (root, *root.glob("neuronxcc-*")):
        os.utime(path, (moment, moment))


def shown(root: Path, order: str = "used", limit: int = 3) -> list[str]:
    _, rows = list_entries(resolve(url=str(root)), parse_order(order), EntryFilter(), now=NOW, limit=limit)
    return [row.path for row in rows]


def plainly(root: Path, order: str = "used", limit: int = 3) -> list[str]:
    return [row.path for row in select(scan(str(root)).entries, parse_order(order), limit=limit)]


@pytest.fixture
def no_walk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forbid to list the root, so that only the index can answer."""

    def forbid() -> None:
        def walk(_: str) -> None:
            raise AssertionError("the index was not used")

        monkeypatch.setattr(listing, "walk", walk)

    return forbid


@pytest.mark.parametrize("order", ORDERS)
def test_a_second_listing_needs_no_walk(big: Tree, order: str, no_walk: Callable[[], None]) -> None:
    wanted = plainly(big.root, order)
    no_walk()
    assert shown(big.root, order) == wanted


def test_what_is_shown_is_read_fresh(big: Tree, no_walk: Callable[[], None]) -> None:
    path = next(big.root.glob("*/MODULE_0+*"))
    (path / "more").write_bytes(b"x" * 100_000)
    no_walk()
    _, rows = list_entries(resolve(url=str(big.root)), parse_order("used"), EntryFilter(), now=NOW, limit=1)
    assert rows[0].path == str(path)
    assert rows[0].size_bytes > 100_000
    assert rows[0].flags == ("--target=trn1",)


def test_what_was_used_since_stands_first(big: Tree) -> None:
    from neurontools.cache.events import Events, LookupEventKind

    path = next(big.root.glob("*/MODULE_5+*"))
    Usage(str(big.root)).count_hit(str(path))
    Events(str(big.root)).add(LookupEventKind.HIT, path.name)
    assert shown(big.root)[0] == str(path)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"format": 2}', b"x" * 100])
def test_a_damaged_index_is_thrown_away(big: Tree, damage: bytes) -> None:
    path = Path(listing.index_path(str(big.root)))
    wanted = plainly(big.root)
    path.write_bytes(damage)
    assert shown(big.root) == wanted
    assert path.stat().st_size > len(damage)
    assert shown(big.root) == wanted


def test_an_index_of_another_root_or_format_is_not_believed(
    big: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listing.read_candidates(str(big.root), "used", 3, descending=True) is not None
    assert listing.read_candidates(str(big.root), "name", 3, descending=True) is None
    monkeypatch.setattr(listing, "_FORMAT", 99)
    assert listing.read_candidates(str(big.root), "used", 3, descending=True) is None


def test_a_directory_that_just_changed_is_not_noted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MIN_ENTRIES", 0)
    tree.done()
    shown(tree.root)
    assert not os.path.exists(listing.index_path(str(tree.root)))


def test_without_a_place_for_the_index_everything_still_works(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    monkeypatch.setattr(listing, "MIN_ENTRIES", 0)
    path = tree.done()
    settle(tree.root)
    assert shown(tree.root) == shown(tree.root) == [str(path)]


class IndexedRoot(RuleBasedStateMachine):
    """Whatever happens to a root, a listing by the index is the listing without it."""

    @initialize()
    def begin(self) -> None:
        self.home = tempfile.mkdtemp(prefix="nt-", dir="/tmp")
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("XDG_CACHE_HOME", f"{self.home}/cache-home")
        self.patch.setattr(listing, "MIN_ENTRIES", 0)
        self.tree = Tree(Path(self.home, "root"))
        self.tree.root.mkdir()
        (self.tree.root / layouts.ROOT_LOCK).touch()
        self.moment = NOW
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.patch.undo()
            shutil.rmtree(self.home)

    def changed(self) -> None:
        self.moment += 1
        settle(self.tree.root, self.moment)

    def entries(self) -> list[Path]:
        return sorted(self.tree.root.glob("neuronxcc-*/MODULE_*"))

    @rule(days=integers(0, 9), done=sampled_from([True, False]))
    def one_more(self, days: int, done: bool) -> None:
        self.number += 1
        make = self.tree.done if done else self.tree.entry
        make(graph=str(self.number), unused_s=days * DAY)
        self.changed()

    @rule(which=integers(0, 20))
    def one_less(self, which: int) -> None:
        found = self.entries()
        if found:
            shutil.rmtree(found[which % len(found)])
            self.changed()

    @rule(which=integers(0, 20))
    def one_is_finished(self, which: int) -> None:
        todo = [path for path in self.entries() if not (path / layouts.NEFF).exists()]
        if todo:
            path = todo[which % len(todo)]
            (path / layouts.NEFF).write_bytes(b"neff")
            (path / layouts.DONE).touch()

    @invariant()
    def both_listings_agree(self) -> None:
        if hasattr(self, "tree"):
            for order in ORDERS:
                assert shown(self.tree.root, order) == plainly(self.tree.root, order)


TestIndexedRoot = IndexedRoot.TestCase
TestIndexedRoot.settings = settings(max_examples=12, stateful_step_count=10)


def test_an_index_is_as_old_as_the_listing(tree: Tree) -> None:
    started_ns = 1_700_000_000_123_456_789
    listing.write_index(str(tree.root), [], 3, [], started_ns)
    written = json.loads(Path(listing.index_path(str(tree.root))).read_bytes())
    assert (written["made_unix_s"], written["skipped"]) == (started_ns / 1e9, 3)
