"""The cache browser without a screen: tree, cursor, filter, marks and totals."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.base.filters import FilterError
from neurontools.cache import layouts
from neurontools.cache.entries import Entry, scan
from neurontools.cache.entry_files import State
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.cache.locks import hold
from neurontools.tui.cache.browser import LEVELS, ORDERS, Browser, change_stamp, tree_rows

if TYPE_CHECKING:
    from tests.cache.conftest import Tree

NAMES = st.sampled_from(["", "bert", "gpt", "resnet"])
ENTRIES = st.lists(
    st.builds(
        lambda number, name, compiler, state, size, pinned: Entry(
            path=f"/c/{number}",
            compiler=compiler,
            module=f"MODULE_{number}",
            state=state,
            size_bytes=size,
            made_unix_s=1.0,
            used_unix_s=1.0,
            hits=0,
            flags=("--target=trn1",),
            name=name,
            ours=True,
            note="",
            lock=None,
            pinned=pinned,
        ),
        st.integers(0, 10_000),
        NAMES,
        st.sampled_from(["2.15", "2.16"]),
        st.sampled_from([State.DONE, State.FAILED]),
        st.integers(0, 1 << 40),
        st.booleans(),
    ),
    max_size=30,
    unique_by=lambda entry: entry.path,
)
MOVES = st.lists(
    st.sampled_from(
        ["up", "down", "open", "close", "toggle", "mark", "group", "sort", "all", "filter", "clear"]
    ),
    max_size=30,
)


@given(ENTRIES, st.sampled_from(LEVELS), st.sampled_from(ORDERS))
def test_every_entry_is_in_the_tree_once_and_sizes_add_up(
    entries: list[Entry], levels: object, order: object
) -> None:
    rows = list(tree_rows(entries, levels, order))  # type: ignore[arg-type]
    assert sorted(row.entry.path for row in rows if row.entry) == sorted(entry.path for entry in entries)
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        assert row.size_bytes == sum(entry.size_bytes for entry in row.entries)
        below = [other for other in rows if other.key[:-1] == row.key]
        assert row.entry or row.size_bytes == sum(other.size_bytes for other in below)


@settings(max_examples=60)
@given(ENTRIES, MOVES)
def test_whatever_is_pressed_the_cursor_is_on_a_row_and_the_total_is_that_of_the_marks(
    entries: list[Entry], moves: list[str]
) -> None:
    browser = Browser("/c")
    browser.load(tuple(entries))
    actions = {
        "up": lambda: browser.move(-1),
        "down": lambda: browser.move(1),
        "open": browser.open,
        "close": browser.close,
        "toggle": browser.toggle,
        "mark": browser.toggle_mark,
        "group": browser.next_grouping,
        "sort": browser.next_order,
        "all": lambda: browser.marks.mark(browser.shown),
        "filter": lambda: browser.set_filter("" if browser.filter_text else "state=failed"),
        "clear": browser.marks.clear,
    }
    for move in moves:
        actions[move]()
        assert (browser.current is None) == (not browser.rows)
        assert 0 <= browser.cursor.row < max(1, len(browser.rows))
        marked = [entry for entry in entries if entry.path in browser.marks]
        assert len(marked) == len(browser.marks)
        assert browser.marks.size_bytes == sum(entry.size_bytes for entry in marked)
        assert not any(entry.pinned for entry in marked)
        assert {row.entry.path for row in browser.rows if row.entry} <= {
            entry.path for entry in browser.shown
        }


def opened(tree: Tree) -> Browser:
    browser = Browser(str(tree.root))
    browser.load(scan(str(tree.root)).entries)
    return browser


def test_what_must_stay_cannot_be_marked_and_says_why(tree: Tree) -> None:
    plain, pinned, locked, used = (tree.done(graph=graph) for graph in ("11", "22", "33", "44"))
    (pinned / layouts.PIN).touch()
    (locked / layouts.DONE).unlink()
    (locked / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    held = hold(str(used))
    assert held is not None
    browser = opened(tree)
    refused = {entry.path: reason for entry, reason in browser.marks.mark(browser.shown)}
    os.close(held)
    assert set(browser.marks) == {str(plain)}
    assert refused[str(pinned)] == "pinned"
    assert refused[str(locked)].startswith(f"locked by process {os.getpid()} on ")
    assert refused[str(used)] == "in use"


def test_marks_follow_what_becomes_of_the_entries(tree: Tree) -> None:
    first, second, third = (tree.done(graph=graph) for graph in ("11", "22", "33"))
    browser = opened(tree)
    assert browser.marks.mark(browser.shown) == []
    (second / layouts.PIN).touch()
    for file in third.iterdir():
        file.unlink()
    third.rmdir()
    browser.load(scan(str(tree.root)).entries)
    assert set(browser.marks) == {str(first)}


def test_a_marked_entry_that_is_used_meanwhile_is_spared(tree: Tree) -> None:
    first, second = (tree.done(graph=graph) for graph in ("11", "22"))
    browser = opened(tree)
    browser.marks.mark(browser.shown)
    work = browser.marks.removal()
    held = hold(str(second))
    assert held is not None
    removal, _ = work.carry_out()
    os.close(held)
    assert [choice.entry.path for choice in removal.removed] == [str(first)]
    assert [(choice.entry.path, choice.reason) for choice in removal.spared] == [(str(second), "in use")]


def test_a_group_is_marked_and_unmarked_as_a_whole(tree: Tree) -> None:
    tree.done(graph="11")
    tree.done(graph="22", compiler="2.15.0+abc")
    browser = opened(tree)
    assert browser.current is not None
    assert browser.current.entry is None
    assert len(browser.chosen) == 1
    browser.toggle_mark()
    assert len(browser.marks) == 1
    browser.toggle_mark()
    assert len(browser.marks) == 0


def test_a_filter_that_cannot_be_read_changes_nothing(tree: Tree) -> None:
    tree.done()
    tree.failed(graph="77")
    browser = opened(tree)
    browser.set_filter("state=failed")
    with pytest.raises(FilterError):
        browser.set_filter("state=failde")
    assert browser.filter_text == "state=failed"
    assert [entry.state for entry in browser.shown] == [State.FAILED]
    browser.set_filter("")
    assert len(browser.shown) == 2


def test_the_cursor_stays_on_its_entry_when_others_come(tree: Tree) -> None:
    tree.done(graph="55")
    browser = opened(tree)
    browser.move(10)
    assert browser.current is not None
    key = browser.current.key
    tree.done(graph="11")
    browser.load(scan(str(tree.root)).entries)
    assert browser.current is not None
    assert browser.current.key == key
    browser.load((replace(browser.entries[0], path="/elsewhere"),))
    assert browser.current is not None


def test_closing_steps_out_and_opening_steps_in(tree: Tree) -> None:
    tree.done()
    browser = opened(tree)
    browser.move(10)
    depths = []
    for _ in range(3):
        assert browser.current is not None
        depths.append(len(browser.current.key) - 1)
        browser.close()
    assert depths == [2, 1, 1]
    for _ in range(3):
        browser.open()
    assert browser.current is not None
    assert browser.current.entry is not None


def test_the_stamp_changes_with_the_cache(tree: Tree) -> None:
    stamps = [change_stamp(str(tree.root))]
    entry = tree.done()
    stamps.append(change_stamp(str(tree.root)))
    assert change_stamp(str(tree.root)) == stamps[-1]
    (entry / layouts.PIN).touch()
    stamps.append(change_stamp(str(tree.root)))
    for path in sorted(tree.root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    stamps.append(change_stamp(str(tree.root)))
    tree.root.rmdir()
    stamps.append(change_stamp(str(tree.root)))
    assert len(set(stamps)) == len(stamps)
    assert Path(tree.root).exists() is False
