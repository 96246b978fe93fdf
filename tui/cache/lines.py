"""The screen of the cache browser as lines: title, head, rows of the tree, the line of marks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.base.units import format_size
from neurontools.cache.entry_files import State
from neurontools.cache.fields import format_elapsed
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.chrome import keys_line, small_screen
from neurontools.tui.widgets.frames import framed, inner_width, is_boxed, row
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of

if TYPE_CHECKING:
    from neurontools.cache.browser import Browser, BrowserRow

HEAD_LINES = 3
SMALLEST = (40, 8)
_STATE_WIDTH = 11
_SIZE_WIDTH = 9
_NUMBER_WIDTH = 6
_NARROW = 100
_LEAST_FOR_LONG_BAR = 150
_BAR_WIDTHS = (10, 20)
_KEYS = "? help,q quit,^p cmds,space mark,d delete,⏎ show,w why,/ filter,s sort,g group,p pin,t tag,L locks"
_HINTS = [(key, text) for key, _, text in (hint.partition(" ") for hint in _KEYS.split(","))]
_PROGRAM = " neuron-cache  "
_STATE_ROLES = {
    State.DONE: Role.PLAIN,
    State.FAILED: Role.ALERT,
    State.INTERRUPTED: Role.ALERT,
    State.LOCKED: Role.VALUE,
    State.TODO: Role.DIM,
}


def rows_shown(size: tuple[int, int]) -> int:
    """Return how many rows of the tree fit on a screen of a size."""
    width, height = size
    return max(1, height - HEAD_LINES - 1 - is_boxed(width, height))


def first_row(browser: Browser, first: int, size: tuple[int, int]) -> int:
    """Return the first visible row that keeps the cursor on the screen, `first` if possible."""
    rows = rows_shown(size)
    highest = max(0, min(first, browser.cursor, len(browser.rows) - rows))
    return max(highest, browser.cursor - rows + 1)


def screen_lines(
    browser: Browser,
    first: int,
    size: tuple[int, int],
    *,
    reading: bool,
    message: str,
) -> tuple[Line, ...]:
    """Return the whole screen.

    Args:
        browser: what is shown.
        first: the tree's first row on the screen.
        size: cells across and down.
        reading: whether the cache is being read.
        message: shown in the bottom line, "" for none.
    """
    width, height = size
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return small_screen("neuron-cache", SMALLEST, (width, height))
    boxed = is_boxed(width, height)
    inner = inner_width(width, boxed=boxed)
    rows = rows_shown(size)
    now, marked = time.time(), browser.marks.paths
    body = [head_line(inner)]
    for position, item in enumerate(browser.rows[first : first + rows], first):
        body.append(row_line(item, inner, now=now, marked=marked, current=position == browser.cursor))
    frame = framed(
        _view_text(browser),
        body,
        (width, height - 2),
        note=f"sort: {browser.order.key}",
        foot="space mark  d delete",
        boxed=boxed,
    )
    return (title_line(browser, width, reading), *frame, marks_line(browser, width, message))


def title_line(browser: Browser, width: int, reading: bool) -> Line:
    """Return the top line: the program and its cache on the left, how much is shown on the right."""
    shown, total = len(browser.shown), len(browser.entries)
    count = f"{total:,} entries" if shown == total else f"{shown:,} of {total:,} entries"
    right = f" {count}, {format_size(browser.shown_bytes)}{'  reading …' if reading else ''} "
    room = max(0, width - width_of(right) - width_of(_PROGRAM))
    path = fixed(printable(browser.root), room)
    return fit(((_PROGRAM, Role.FRAME_TITLE), (path, Role.PLAIN), (right, Role.DIM)), width)


def _view_text(browser: Browser) -> str:
    groups = " > ".join(browser.levels) or "none"
    text = f"Entries  group: {groups}"
    return f"{text}  filter: {printable(browser.filter_text)}" if browser.filter_text else text


def head_line(width: int) -> Line:
    """Return the column heads."""
    head = fixed("   ENTRY", _entry_width(width))
    return fit(((head + _figures("STATE", "SIZE", "SHARE", "USED", "HITS", width), Role.DIM),), width)


def row_line(item: BrowserRow, width: int, *, now: float, marked: frozenset[str], current: bool) -> Line:
    """Return one row of the tree.

    Args:
        item: the row.
        width: cells of the line.
        now: Unix seconds.
        marked: paths of marked entries.
        current: whether the cursor is on it.
    """
    entry, group = item.entry, item.group
    if entry is not None:
        mark = "x" if entry.path in marked else " "
        pinned = "* " if entry.pinned else ""
        title = f"{mark} {'  ' * item.depth}{pinned}{printable(item.title)}"
        used = format_elapsed(now - entry.used_unix_s)
        state, hits, role = entry.state.value, str(entry.hits), _STATE_ROLES[entry.state]
    else:
        entries = group.entries if group is not None else ()
        inside = sum(member.path in marked for member in entries)
        mark = "x" if inside and inside == len(entries) else "-" if inside else " "
        title = f"{mark} {'  ' * item.depth}{'▾' if item.is_open else '▸'} {printable(item.title)}"
        used, state, hits, role = "", plural(len(entries), "entry", "entries"), "", Role.STRONG
    figures = _figures(state, format_size(item.size_bytes), f"{item.share:.1%}", used, hits, width)
    spans = (
        (title[:2], Role.ALERT),
        (fixed(title[2:], _entry_width(width) - 3), role),
        (figures, role),
        (" ", role),
        *bar(item.share, _bar_width(width)),
    )
    return row(spans, width, selected=current)


def marks_line(browser: Browser, width: int, message: str) -> Line:
    """Return the bottom line: the total of the marked entries, and a message or the keys."""
    marks = browser.marks
    left = f" marked: {len(marks):,}, {format_size(marks.size_bytes)} "
    spans: list[Span] = [(left, Role.BADGE_WARNING if len(marks) else Role.DIM)]
    if message:
        return fit((*spans, (f" {printable(message)}", Role.PLAIN)), width)
    return (*spans, *keys_line(_HINTS, max(0, width - width_of(left))))


def _figures(state: str, size: str, share: str, used: str, hits: str, width: int) -> str:
    text = f" {state:<{_STATE_WIDTH}} {size:>{_SIZE_WIDTH}} {share:>{_NUMBER_WIDTH}}"
    if width >= _NARROW:
        text += f" {used:>{_NUMBER_WIDTH}} {hits:>{_NUMBER_WIDTH}}"
    return text


def _entry_width(width: int) -> int:
    figures = len(_figures("", "", "", "", "", width))
    return max(8, width - figures - _bar_width(width) - 1)


def _bar_width(width: int) -> int:
    return _BAR_WIDTHS[width >= _LEAST_FOR_LONG_BAR]
