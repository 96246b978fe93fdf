"""The first line and the last two lines of every full-screen program: page tabs, state, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.tui.widgets.lines import Line, Role, Span, dotted, fit, width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BADGE_ROOM = 14


class PlacedName(NamedTuple):
    """The name of a page in a line: its index and its columns."""

    position: int
    left: int
    right: int


class ChromeLine(NamedTuple):
    """A line and the page names on it."""

    line: Line
    names: tuple[PlacedName, ...]

    def at(self, x: int) -> int | None:
        """Return the index of the page whose name is at a column, or None."""
        for name in self.names:
            if name.left <= x < name.right:
                return name.position
        return None


def head_line(
    program: str,
    names: Sequence[str],
    current: int,
    width: int,
    *,
    state: str = "",
    badge: Span | None = None,
) -> ChromeLine:
    """Return the first line: the program, a tab for each page, and on the right what it looks at and its problems.

    Args:
        program: its name.
        names: of the pages.
        current: index of the current page.
        width: cells.
        state: on the right, if there is room.
        badge: a problem, at the right edge, cut if there is no room.
    """
    spans: list[Span] = [(f" {program} ", Role.FRAME_TITLE)]
    needed = width_of(program) + 2 + sum(width_of(name) + 2 for name in names)
    if needed + (_BADGE_ROOM if badge else 0) > width:
        spans = []
        while len(names) > 1 and sum(width_of(name) + 2 for name in names) + _BADGE_ROOM > width:
            names = [name if at == current else name[:3] for at, name in enumerate(names)]
            break
    left = sum(width_of(text) for text, _ in spans)
    placed: list[PlacedName] = []
    for position, name in enumerate(names):
        text = f" {name} "
        if left + width_of(text) > width:
            break
        spans.append((text, Role.TAB_CURRENT if position == current else Role.TAB))
        placed.append(PlacedName(position, left, left + width_of(text)))
        left += width_of(text)
    right: list[Span] = []
    room = width - left - 1
    if badge and room > 2:
        text, role = badge
        cut = dotted(((f" {text} ", role),), min(room, width_of(text) + 2), role)
        right = list(cut)
        room -= sum(width_of(piece) for piece, _ in cut)
    if state and width_of(state) + 2 <= room:
        right.insert(0, (f"{state} ", Role.DIM))
    used = sum(width_of(text) for text, _ in right)
    line = (*fit(spans, width - used), *right)
    return ChromeLine(line, tuple(placed))


def keys_line(hints: Iterable[tuple[str, str]], width: int) -> Line:
    """Return keys and what they do, as many as fit."""
    spans: list[Span] = []
    left = width
    for key, text in hints:
        left -= width_of(key) + width_of(text) + 3
        if left < 0:
            break
        spans += [(f" {key} ", Role.KEY), (f"{text} ", Role.DIM)]
    return fit(spans, width)


def pages_line(
    names: Sequence[str], current: int, hints: Sequence[tuple[str, str]], width: int
) -> ChromeLine:
    """Return the last line: the function key of each page, then the keys of every page.

    Args:
        names: of the pages; where they do not fit, the current one's name and the keys of the others.
        current: index of the current page.
        hints: keys and what they do.
        width: cells.
    """
    wanted = sum(width_of(key) + width_of(text) + 2 for key, text in hints)
    full = sum(width_of(name) + 4 for name in names)
    if full + wanted > width and full > width:
        names = [name if at == current else "" for at, name in enumerate(names)]
    spans: list[Span] = []
    placed: list[PlacedName] = []
    left = 0
    for position, name in enumerate(names):
        key, text = f" F{position + 1}", f" {name}" if name else ""
        if left + len(key) + width_of(text) > width:
            break
        spans.append((key, Role.KEY))
        if text:
            spans.append((text, Role.TAB_CURRENT if position == current else Role.DIM))
        right = left + len(key) + width_of(text)
        placed.append(PlacedName(position, left, right))
        left = right
    shown: list[Span] = []
    used = 0
    for key, text in hints:
        cells = width_of(key) + width_of(text) + 2
        if left + used + cells + 1 > width:
            continue
        shown += [(f" {key}", Role.KEY), (f" {text}", Role.DIM)]
        used += cells
    used = sum(width_of(text) for text, _ in shown)
    line = (*fit(spans, width - used), *shown)
    return ChromeLine(line, tuple(placed))


def small_screen(program: str, least: tuple[int, int], size: tuple[int, int]) -> tuple[Line, ...]:
    """Return the lines of a terminal that is too small, as many as it has.

    Args:
        program: its name.
        least: cells across and down that it needs.
        size: those of the terminal.
    """
    width, height = size
    needed = f"{least[0]}x{least[1]}"
    text: tuple[str, ...] = (program, f"needs {needed},", f"has {width}x{height}", "(q: quit)")
    if width < max(map(len, text)):
        text = ("needs", needed, "q: quit")
    lines = [fit(((line.center(width), Role.PLAIN),), width) for line in text]
    blank = fit((), width)
    above = max(0, (height - len(lines)) // 2)
    drawn = [*[blank] * above, *lines][:height]
    return (*drawn, *[blank] * (height - len(drawn)))
