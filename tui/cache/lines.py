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
from neurontools.tui.widgets.frames import framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from neurontools.tui.cache.browser import Browser, BrowserRow

HEAD_LINES = 3
SMALLEST = (40, 8)
_BAR = 10
_COLUMNS = (
    TableColumn("  ENTRY", right=False, least=33),
    TableColumn("STATE", 11, right=False),
    TableColumn("SIZE", 9),
    TableColumn("SHARE", 6, rank=1),
    TableColumn("USED", 6, rank=3),
    TableColumn("HITS", 6, rank=4),
    TableColumn("", _BAR, right=False, rank=2),
)
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
    return max(1, size[1] - HEAD_LINES - 1 - is_boxed(*size))


def screen_lines(browser: Browser, size: tuple[int, int], *, reading: bool, message: str) -> tuple[Line, ...]:
    """Return the whole screen.

    Args:
        browser: the state that is shown.
        size: cells across and down.
        reading: whether the cache is being read.
        message: shown in the bottom line, "" for none.
    """
    width, height = size
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return small_screen("neuron-cache", SMALLEST, size)
    boxed = is_boxed(width, height)
    layout = TableLayout(_COLUMNS, inner_width(width, boxed=boxed))
    now = time.time()
    title = f"Entries  group: {' > '.join(browser.levels) or 'none'}"
    if browser.filter_text:
        title += f"  filter: {printable(browser.filter_text)}"
    window = browser.cursor.window(len(browser.rows), rows_shown(size))
    body = [layout.head()] + [
        layout.line(
            _cells(browser, browser.rows[at], layout.width_of(0), now), selected=at == browser.cursor.row
        )
        for at in window
    ]
    note, foot = f"sort: {browser.order.key}", "space mark  d delete"
    frame = framed(title, body, (width, height - 2), note=note, foot=foot, boxed=boxed)
    return (_title_line(browser, width, reading), *frame, _marks_line(browser, width, message))


def _title_line(browser: Browser, width: int, reading: bool) -> Line:
    """Return the top line: the program and its cache on the left, how much is shown on the right."""
    shown, total = len(browser.shown), len(browser.entries)
    count = f"{total:,} entries" if shown == total else f"{shown:,} of {total:,} entries"
    right = f" {count}, {format_size(browser.shown_bytes)}{'  reading …' if reading else ''} "
    room = max(0, width - width_of(right) - width_of(_PROGRAM))
    path = fixed(printable(browser.root), room)
    return fit(((_PROGRAM, Role.FRAME_TITLE), (path, Role.PLAIN), (right, Role.DIM)), width)


def _cells(browser: Browser, row: BrowserRow, width: int, now: float) -> tuple[Span | tuple[Span, ...], ...]:
    entry, title = row.entry, printable(row.title)
    marked = sum(member.path in browser.marks for member in row.entries)
    mark = "x" if marked == len(row.entries) else "-" if marked else " "
    if entry is not None:
        used, hits = format_elapsed(now - entry.used_unix_s), str(entry.hits)
        state, role = entry.state.value, _STATE_ROLES[entry.state]
        sign = "* " if entry.pinned else ""
    else:
        used = hits = ""
        state, role = plural(len(row.entries), "entry", "entries"), Role.STRONG
        sign = "▾ " if row.is_open else "▸ "
    share = row.size_bytes / browser.shown_bytes if browser.shown_bytes else 0.0
    name = fixed(f"{'  ' * (len(row.key) - 1)}{sign}{title}", width - 2)
    return (
        ((f"{mark} ", Role.ALERT), (name, role)),
        (state, role),
        (format_size(row.size_bytes), role),
        (f"{share:.1%}", role),
        (used, role),
        (hits, role),
        bar(share, _BAR),
    )


def _marks_line(browser: Browser, width: int, message: str) -> Line:
    """Return the bottom line: the total of the marked entries, and a message or the keys."""
    marks = browser.marks
    left = f" marked: {len(marks):,}, {format_size(marks.size_bytes)} "
    spans: list[Span] = [(left, Role.BADGE_WARNING if marks else Role.DIM)]
    if message:
        return fit((*spans, (f" {printable(message)}", Role.PLAIN)), width)
    return (*spans, *keys_line(_HINTS, max(0, width - width_of(left))))
