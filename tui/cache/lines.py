"""The screen of the cache browser as lines: title, head, rows of the tree, the line of marks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.base.units import format_size
from neurontools.cache.entry_files import State
from neurontools.cache.fields import format_elapsed
from neurontools.tui.widgets.lines import Line, Role, fit, fixed, heat, width_of

if TYPE_CHECKING:
    from neurontools.cache.browser import Browser, BrowserRow

HEAD_LINES = 3
SMALLEST = (40, 8)
_BAR = "█▉▊▋▌▍▎▏"
_STATE_WIDTH = 11
_SIZE_WIDTH = 9
_NUMBER_WIDTH = 6
_NARROW = 100
_BAR_WIDTHS = (10, 20)
_HINTS = (
    "? help",
    "q quit",
    "space mark",
    "d delete",
    "enter show",
    "w why",
    "/ filter",
    "s sort",
    "g group",
    "p pin",
    "t tag",
    "L locks",
)
_STATE_ROLES = {
    State.DONE: Role.PLAIN,
    State.FAILED: Role.ALERT,
    State.INTERRUPTED: Role.ALERT,
    State.LOCKED: Role.VALUE,
    State.TODO: Role.DIM,
}


def rows_shown(height: int) -> int:
    """Return how many rows of the tree fit on a screen of a height."""
    return max(1, height - HEAD_LINES - 1)


def first_row(browser: Browser, first: int, height: int) -> int:
    """Return the first visible row that keeps the cursor on the screen, `first` if possible."""
    rows = rows_shown(height)
    highest = max(0, min(first, browser.cursor, len(browser.rows) - rows))
    return max(highest, browser.cursor - rows + 1)


def screen_lines(
    browser: Browser, first: int, size: tuple[int, int], *, reading: bool, message: str, colour: bool
) -> tuple[Line, ...]:
    """Return the whole screen.

    Args:
        browser: what is shown.
        first: the tree's first row on the screen.
        size: cells across and down.
        reading: whether the cache is being read.
        message: shown in the bottom line, "" for none.
        colour: whether bars are coloured by their length.
    """
    width, height = size
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return _small_lines(width, height)
    rows = rows_shown(height)
    now, marked = time.time(), browser.marks.paths
    shown = [
        row_line(row, width, now=now, marked=marked, current=number == browser.cursor, colour=colour)
        for number, row in enumerate(browser.rows[first : first + rows], first)
    ]
    return (
        title_line(browser, width, reading),
        view_line(browser, width),
        head_line(width),
        *shown,
        *[fit((), width)] * (rows - len(shown)),
        marks_line(browser, width, message),
    )


def title_line(browser: Browser, width: int, reading: bool) -> Line:
    """Return the top line: the cache, and how much is shown."""
    shown, total = len(browser.shown), len(browser.entries)
    count = f"{total:,} entries" if shown == total else f"{shown:,} of {total:,} entries"
    right = f" {count}, {format_size(browser.shown_bytes)}{'  reading …' if reading else ''} "
    left = fixed(f" neuron-cache  {printable(browser.root)}", max(0, width - width_of(right)))
    return fit(((left, Role.TITLE), (right, Role.TITLE_DIM)), width, Role.TITLE)


def view_line(browser: Browser, width: int) -> Line:
    """Return the line with grouping, sorting and filter."""
    groups = " > ".join(browser.levels) or "none"
    text = f" group: {groups}   sort: {browser.order.key}"
    spans = [(text, Role.SECTION)]
    if browser.filter_text:
        spans.append((f"   filter: {printable(browser.filter_text)}", Role.SECTION_CURRENT))
    return fit(spans, width, Role.SECTION)


def head_line(width: int) -> Line:
    """Return the column heads."""
    left, right = _widths(width)
    head = fixed("   ENTRY", left) + _figures("STATE", "SIZE", "SHARE", "USED", "HITS", width)
    return fit(((fixed(head, left + right), Role.HEAD),), width, Role.HEAD)


def row_line(
    row: BrowserRow, width: int, *, now: float, marked: frozenset[str], current: bool, colour: bool
) -> Line:
    """Return one row of the tree.

    Args:
        row: the row.
        width: cells of the line.
        now: Unix seconds.
        marked: paths of marked entries.
        current: whether the cursor is on it.
        colour: whether bars are coloured by their length.
    """
    left, _ = _widths(width)
    entry, group = row.entry, row.group
    if entry is not None:
        mark = "x" if entry.path in marked else " "
        pinned = "* " if entry.pinned else ""
        title = f" {mark} {'  ' * row.depth}{pinned}{printable(row.title)}"
        used = format_elapsed(now - entry.used_unix_s)
        state, hits, role = entry.state.value, str(entry.hits), _STATE_ROLES[entry.state]
    else:
        entries = group.entries if group is not None else ()
        inside = sum(item.path in marked for item in entries)
        mark = "x" if inside and inside == len(entries) else "-" if inside else " "
        title = f" {mark} {'  ' * row.depth}{'▾' if row.is_open else '▸'} {printable(row.title)}"
        used, state, hits, role = "", plural(len(entries), "entry", "entries"), "", Role.STRONG
    figures = _figures(state, format_size(row.size_bytes), f"{row.share:.1%}", used, hits, width)
    if current:
        text = fixed(title, left) + figures + " " + _bar(row.share, _bar_width(width))
        return fit(((text, Role.SELECTED),), width, Role.SELECTED)
    bar = (_bar(row.share, _bar_width(width)), heat(row.share) if colour else Role.PLAIN)
    return fit(((fixed(title, left), role), (figures, role), (" ", Role.PLAIN), bar), width)


def marks_line(browser: Browser, width: int, message: str) -> Line:
    """Return the bottom line: the total of the marked entries, and a message or the keys."""
    marks = browser.marks
    left = f" marked: {len(marks):,}, {format_size(marks.size_bytes)} "
    hint = message or _hints(width - len(left) - 1)
    role = Role.BAR_CURRENT if len(marks) else Role.BAR_DIM
    return fit(((left, role), (f" {printable(hint)}", Role.BAR)), width, Role.BAR)


def _hints(width: int) -> str:
    text = ""
    for hint in _HINTS:
        if len(text) + len(hint) + 2 > width:
            break
        text += hint + "  "
    return text


def _small_lines(width: int, height: int) -> tuple[Line, ...]:
    text = f"{width}x{height} is too small: {SMALLEST[0]}x{SMALLEST[1]} at least"
    return (fit(((text, Role.ALERT),), width), *([fit((), width)] * (height - 1)))


def _figures(state: str, size: str, share: str, used: str, hits: str, width: int) -> str:
    text = f" {state:<{_STATE_WIDTH}} {size:>{_SIZE_WIDTH}} {share:>{_NUMBER_WIDTH}}"
    if width >= _NARROW:
        text += f" {used:>{_NUMBER_WIDTH}} {hits:>{_NUMBER_WIDTH}}"
    return text


def _widths(width: int) -> tuple[int, int]:
    figures = len(_figures("", "", "", "", "", width))
    return max(8, width - figures - _bar_width(width) - 1), figures


def _bar_width(width: int) -> int:
    return _BAR_WIDTHS[width >= _NARROW]


def _bar(share: float, width: int) -> str:
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return _BAR[0] * whole + (_BAR[8 - rest] if rest else "")
