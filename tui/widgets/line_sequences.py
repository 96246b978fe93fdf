"""Lines as the sequences that a terminal draws, without Textual: a style is set once for adjacent spans of one role."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.color import ColorSystem
    from rich.style import Style

    from neurontools.tui.widgets.lines import Line, Role

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
