"""Lines of terminal text as plain values: spans with a role each, and the sequences that a terminal draws.

Equal lines look the same, so a pane finds changes by comparing lines.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from neurontools.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.color import ColorSystem
    from rich.style import Style


PLAIN_PART = ":"
PLAIN_OFF = "."

SINGLE_CELLS = re.compile("[ -~·─-▟⠀-⣿…]*")
"""Texts of characters that are one cell wide: ASCII, frames, blocks, braille."""

_ERRORS = "neurontools-ascii"
_HEIGHTS = ".:+#"
BLOCKS = "▁▂▃▄▅▆▇█"
"""Eight heights of a cell."""
_BRAILLE = range(0x2800, 0x2900)
_LEFT_DOTS, _RIGHT_DOTS = 0x47, 0xB8
_OTHERS = {
    **dict(zip("…║│▌▐─▔", ".#|||--", strict=True)),
    **dict(zip("╭╮╰╯├┤·▸▾▏▎▍▋▊▉●", "++++||.>v.::++#*", strict=True)),
    **dict(zip("↑↓←→⇧⏎×┊╵░■", "^v<>^^x:'.#", strict=True)),
}


class Role(Enum):
    """The purpose of a span of text."""

    # fmt: off
    (
        PLAIN, DIM, STRONG, VALUE, TITLE, TITLE_DIM, TROUBLE, SECTION, SECTION_DIM, HEAD, METER_ON,
        METER_PART, METER_OFF, MARKED_ON, MARKED_PART, MARKED_OFF, METER_SYSTEM, SELECTED, BAR, BAR_DIM,
        BAR_CURRENT, ALERT, GRAPH, SECTION_KEY, SECTION_CURRENT, HEAT_0, HEAT_1, HEAT_2, HEAT_3, HEAT_4,
        HEAT_5, CLASSIC_VALUE, CLASSIC_ALERT, FRAME, FRAME_TITLE, FRAME_KEY, FRAME_NOTE, CURSOR, ON_PLAIN,
        ON_DIM, ON_STRONG, ON_VALUE, ON_ALERT, ON_GRAPH, WARNING, TRACK, USE_1, USE_2, USE_3, USE_4, USE_5,
        USE_FULL, SHADE_1, SHADE_2, SHADE_3, SHADE_4, SHADE_5, CELL_0, CELL_1, CELL_2, CELL_3, CELL_4,
        CELL_5, BADGE, BADGE_WARNING, BADGE_BAD, TAB, TAB_CURRENT, KEY, USER_1, USER_2, USER_3, USER_4,
        USER_5, USER_6,
    ) = range(75)
    # fmt: on

    # Members are compared and hashed for every span of every frame; identity is enough and needs no Python call.
    __hash__ = object.__hash__


HEAT = (Role.HEAT_0, Role.HEAT_1, Role.HEAT_2, Role.HEAT_3, Role.HEAT_4, Role.HEAT_5)
"""The roles of a share by how large it is: nothing, then five equal parts."""

Span = tuple[str, Role]
Line = tuple[Span, ...]


def width_of(text: str) -> int:
    """Return the width of a text in terminal cells."""
    # Nearly every line is drawn with characters of one cell; an expression tells that ten times as fast as rich.
    return len(text) if text.isascii() or SINGLE_CELLS.fullmatch(text) else cell_len(text)


def fixed(text: str, width: int) -> str:
    """Cut or pad a text to exactly `width` cells; a cut text ends in `…`."""
    text = printable(text)
    if width_of(text) <= width:
        return text + " " * (width - width_of(text))
    if width < 2:
        return set_cell_size(text, max(0, width))
    return set_cell_size(text, width - 1) + "…"


def fit(spans: Iterable[Span], width: int, fill: Role = Role.PLAIN) -> Line:
    """Cut or pad a line to exactly `width` cells; control characters become visible."""
    wanted = [span for span in spans if span[0]]
    whole = "".join([text for text, _ in wanted])
    if not whole.isprintable():
        wanted = [(printable(text), role) for text, role in wanted]
        whole = printable(whole)
    cells = len(whole)
    if cells <= width and width_of(whole) == cells:
        if cells < width:
            wanted.append((" " * (width - cells), fill))
        return tuple(wanted)
    kept: list[Span] = []
    left = width
    for text, role in wanted:
        taken = width_of(text)
        if taken >= left:
            if left:
                kept.append((text if taken == left else set_cell_size(text, left), role))
            return tuple(kept)
        if taken:
            kept.append((text, role))
            left -= taken
    kept.append((" " * left, fill))
    return tuple(kept)


def dotted(spans: Iterable[Span], width: int, fill: Role = Role.PLAIN) -> Line:
    """Cut or pad a line to exactly `width` cells; a cut text ends in `…`."""
    wanted = tuple(spans)
    if sum(width_of(text) for text, _ in wanted) <= width or width < 2:
        return fit(wanted, width, fill)
    kept = fit(wanted, width - 1, fill)
    return (*kept, ("…", kept[-1][1]))


def wrapped(text: str, width: int) -> list[str]:
    """Split a text into pieces of at most `width` cells, between words where possible."""
    pieces: list[str] = []
    text = printable(text)
    while len(text) > width or width_of(text) > width:
        piece = set_cell_size(text[: max(1, width)], width).rstrip()
        blank = text.rfind(" ", 0, len(piece) + 1)
        end = blank if blank > 0 else max(1, len(piece))
        pieces.append(text[:end])
        text = text[end:].lstrip()
        if not text:
            return pieces
    return [*pieces, text]


def fact_lines(name: str, text: str, width: int, label: int, role: Role = Role.PLAIN) -> Iterator[Line]:
    """Yield lines with a name, padded to a width, and a wrapped text beside it."""
    for number, piece in enumerate(wrapped(text, width - label)):
        yield fit(((f" {'' if number else name:<{label - 1}}", Role.HEAD), (piece, role)), width)


def heat(share: float) -> Role:
    """Return the role of a share (0..1)."""
    if share <= 0:
        return Role.HEAT_0
    return HEAT[1 + min(4, int(share * 5))]


def text_of(line: Line) -> str:
    """Return a line as plain text."""
    return "".join(text for text, _ in line)


def printed(line: Line) -> str:
    """Return a line as text that is printed: without the marker of the selection."""
    return "".join(" " if role is Role.CURSOR else text for text, role in line).rstrip()


_PLAIN = (Role.METER_ON, Role.METER_PART, Role.METER_OFF)
_STACKED = (Role.METER_ON, Role.METER_SYSTEM, Role.METER_OFF)
_MARKED = (Role.MARKED_ON, Role.MARKED_PART, Role.MARKED_OFF)


def meter(share: float, width: int, *, colour: bool, marked: bool = False) -> tuple[Span, ...]:
    """Draw a share (0..1): full steps, a darker partial step, then the rest.

    Without colour the three differ by their characters.
    """
    steps = (round(share, 4) if 0.0 < share < 1.0 else 1.0 if share >= 1.0 else 0.0) * width
    whole = int(steps + 1e-9)
    begun = 1 if whole < width and steps - whole > 1e-9 else 0
    return _drawn(whole, begun, width - whole - begun, colour, marked)


@lru_cache(maxsize=4096)
def _drawn(whole: int, begun: int, rest: int, colour: bool, marked: bool) -> tuple[Span, ...]:
    return _bar(whole, begun, rest, PLAIN_PART, _MARKED if marked else _PLAIN, colour=colour)


def stacked_meter(user: float, system: float, width: int, *, colour: bool) -> tuple[Span, ...]:
    """Draw two shares one after the other (user time, then system time) and the rest."""
    user_steps = min(width, round(max(0.0, user) * width))
    system_steps = min(width - user_steps, round(max(0.0, system) * width))
    rest = width - user_steps - system_steps
    return _bar(user_steps, system_steps, rest, "#", _STACKED, colour=colour)


def _bar(
    first: int, second: int, rest: int, mark: str, roles: tuple[Role, Role, Role], *, colour: bool
) -> tuple[Span, ...]:
    marks = "|||" if colour else f"|{mark}{PLAIN_OFF}"
    spans = zip(marks, (first, second, rest), roles, strict=True)
    return tuple([(char * steps, role) for char, steps, role in spans if steps > 0])


def ascii_only(text: str) -> str:
    """Return a text in ASCII: curves in four heights, `?` for other characters."""
    return text if text.isascii() else text.encode("ascii", _ERRORS).decode()


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    if ord(character) in _BRAILLE:
        dots = ord(character) - _BRAILLE.start
        height = max((dots & _LEFT_DOTS).bit_count(), (dots & _RIGHT_DOTS).bit_count())
        return _HEIGHTS[height - 1] if height else " "
    if character in BLOCKS:
        return _HEIGHTS[BLOCKS.index(character) // 2]
    return _OTHERS.get(character) or "?" * cell_len(character)


codecs.register_error(_ERRORS, _replaced)


_TEXT = "x"


def style_sequences(style_of: Mapping[Role, Style], system: ColorSystem) -> dict[Role, str]:
    """Return the sequence that starts a span of each role.

    Args:
        style_of: the style of every role, with background.
        system: the terminal's colours.
    """
    return {role: _sequence(style, system) for role, style in style_of.items()}


def _sequence(style: Style, system: ColorSystem) -> str:
    drawn = style.render(_TEXT, color_system=system).partition(_TEXT)[0]
    return f"\x1b[0;{drawn[2:]}" if drawn else "\x1b[0m"


def line_sequences(line: Line, begins: Mapping[Role, str]) -> str:
    """Return what draws a line from the cursor on.

    Args:
        line: its spans.
        begins: of `style_sequences`.
    """
    pieces: list[str] = []
    before: Role | None = None
    for text, role in line:
        if role is not before:
            before = role
            pieces.append(begins[role])
        pieces.append(text)
    pieces.append("\x1b[0m")
    return "".join(pieces)
