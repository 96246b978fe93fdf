"""Frames around panes, with titles, keys and notes in their edges; panes below and beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.widgets.lines import Line, Role, Span, fit, width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIDE: Span = ("│", Role.FRAME)
_LEAST_EDGE = 6
_BOXED_WIDTH, _BOXED_HEIGHT = 90, 28


def is_boxed(width: int, height: int) -> bool:
    """Return whether a page of this size has room for whole frames; else panes have an upper edge only."""
    return width >= _BOXED_WIDTH and height >= _BOXED_HEIGHT


def inner_width(width: int, *, boxed: bool) -> int:
    """Return the cells of a line inside a frame."""
    return width - 2 if boxed else width


def chrome_lines(*, boxed: bool) -> int:
    """Return the lines that a frame takes of the height of its pane."""
    return 2 if boxed else 1


def edge(title: str, width: int, *, key: str = "", note: str = "", boxed: bool = True) -> Line:
    """Return the upper edge of a frame.

    Args:
        title: the name of the pane, "" for none.
        width: cells.
        key: the key that leads to the pane, before its name.
        note: on the right, if there is room; of several parts with commas between, the last ones that have room.
        boxed: whether corners lead down to the sides.
    """
    left, right = ("╭─", "─╮") if boxed else ("──", "──")
    spans: list[Span] = [(left, Role.FRAME)]
    if title:
        spans.append((" ", Role.FRAME))
        if key:
            spans.append((f"{key} ", Role.FRAME_KEY))
        spans.append((title, Role.FRAME_TITLE))
        spans.append((" ", Role.FRAME))
    used = sum(width_of(text) for text, _ in spans) + len(right)
    while ", " in note and used + width_of(note) + _LEAST_EDGE > width:
        note = note.partition(", ")[2]
    if note and used + width_of(note) + _LEAST_EDGE <= width:
        rest = width - used - width_of(note) - 2
        spans += [("─" * rest + " ", Role.FRAME), (note, Role.FRAME_NOTE), (" ", Role.FRAME)]
    elif used <= width:
        spans.append(("─" * (width - used), Role.FRAME))
    else:
        return (*fit(spans, max(0, width - len(right)), Role.FRAME), (right, Role.FRAME))
    spans.append((right, Role.FRAME))
    return tuple(spans)


def framed(
    title: str,
    body: Iterable[Line],
    size: tuple[int, int],
    *,
    key: str = "",
    note: str = "",
    foot: str = "",
    boxed: bool = True,
) -> list[Line]:
    """Return a pane of exactly a size, with a frame around its lines.

    Args:
        title: as in `edge`.
        body: its lines, each as wide as `inner_width` says; lines that have no room are left out.
        size: cells across and down.
        key: as in `edge`.
        note: as in `edge`.
        foot: keys of the pane, in the lower edge.
        boxed: a whole frame; else the upper edge alone.
    """
    width, height = size
    room = max(0, height - chrome_lines(boxed=boxed))
    lines = list(body)[:room]
    blank = fit((), inner_width(width, boxed=boxed))
    lines += [blank] * (room - len(lines))
    top = edge(title, width, key=key, note=note, boxed=boxed)
    if not boxed:
        return [top, *lines][:height]
    return [top, *[(_SIDE, *line, _SIDE) for line in lines], _bottom(foot, width)][:height]


def beside(left: Sequence[Line], right: Sequence[Line]) -> list[Line]:
    """Return two panes of one height beside each other."""
    return [(*one, *other) for one, other in zip(left, right, strict=True)]


def _bottom(foot: str, width: int) -> Line:
    if not foot or width_of(foot) + _LEAST_EDGE > width:
        return (("╰" + "─" * max(0, width - 2) + "╯", Role.FRAME),)
    rest = width - width_of(foot) - 6
    return (
        ("╰" + "─" * (rest + 1) + " ", Role.FRAME),
        (foot, Role.FRAME_NOTE),
        (" ─╯", Role.FRAME),
    )


_ON = {
    Role.PLAIN: Role.ON_PLAIN,
    Role.DIM: Role.ON_DIM,
    Role.HEAD: Role.ON_PLAIN,
    Role.STRONG: Role.ON_STRONG,
    Role.VALUE: Role.ON_VALUE,
    Role.KEY: Role.ON_VALUE,
    Role.ALERT: Role.ON_ALERT,
    Role.WARNING: Role.ON_ALERT,
    Role.GRAPH: Role.ON_GRAPH,
    **dict.fromkeys((Role.SHADE_1, Role.SHADE_2, Role.SHADE_3, Role.SHADE_4, Role.SHADE_5), Role.ON_GRAPH),
    **dict.fromkeys(
        (Role.USER_1, Role.USER_2, Role.USER_3, Role.USER_4, Role.USER_5, Role.USER_6), Role.ON_STRONG
    ),
}

MARKER = "▌"


def row(spans: Iterable[Span], width: int, *, selected: bool = False) -> Line:
    """Return a row of a list: a cell for the marker of the selection, then the spans.

    A selected row has a marker and a dim background; bars and cells keep their colours.
    """
    if not selected:
        return fit(((" ", Role.PLAIN), *spans), width)
    lit = [(text, _ON.get(role, role)) for text, role in spans]
    return fit(((MARKER, Role.CURSOR), *lit), width, Role.ON_PLAIN)
