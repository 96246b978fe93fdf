"""What each role looks like on a terminal, with colours and without."""

from __future__ import annotations

from rich.style import Style

from neurontools.tui.lines import Role

BACKGROUND = "#0d1117"
_TEXT = "#d5dbe3"
_GREEN = "#3fb950"
_DARK_GREEN = "#1f6f33"
_MARK = "#1d4a9c"
_BLUE = "#1b4f9e"
_CYAN = "#2fb0bd"

COLOUR = {
    Role.PLAIN: Style(color=_TEXT),
    Role.DIM: Style(color="#6b7683"),
    Role.STRONG: Style(color="#ffffff", bold=True),
    Role.VALUE: Style(color=_GREEN),
    Role.TITLE: Style(color="#ffffff", bgcolor=_BLUE, bold=True),
    Role.TITLE_DIM: Style(color="#b8cdf0", bgcolor=_BLUE),
    Role.TROUBLE: Style(color="#1a1a1a", bgcolor="#e3b341", bold=True),
    Role.SECTION: Style(color="#06262b", bgcolor=_CYAN, bold=True),
    Role.SECTION_DIM: Style(color="#0b4a52", bgcolor=_CYAN),
    Role.HEAD: Style(color="#8fa3b8"),
    Role.METER_ON: Style(color=_GREEN),
    Role.METER_PART: Style(color=_DARK_GREEN),
    Role.METER_OFF: Style(color="#3b434d"),
    Role.MARKED_ON: Style(color="#56e06b", bgcolor=_MARK),
    Role.MARKED_PART: Style(color="#2f9e4a", bgcolor=_MARK),
    Role.MARKED_OFF: Style(color="#5d7fb8", bgcolor=_MARK),
    Role.METER_SYSTEM: Style(color="#f2604d"),
    Role.SELECTED: Style(color="#ffe066", bgcolor="#a4202c", bold=True),
    Role.BAR: Style(color="#ffffff", bgcolor=_BLUE),
    Role.BAR_DIM: Style(color="#b8cdf0", bgcolor=_BLUE),
    Role.BAR_CURRENT: Style(color="#6ff08a", bgcolor=_BLUE, bold=True),
}

_NORMAL = Style()
_BOLD = Style(bold=True)
_FAINT = Style(dim=True)
_REVERSE = Style(reverse=True)

MONOCHROME = {
    **dict.fromkeys(Role, _NORMAL),
    Role.DIM: _FAINT,
    Role.STRONG: _BOLD,
    Role.TITLE: _REVERSE + _BOLD,
    Role.TITLE_DIM: _REVERSE,
    Role.TROUBLE: _BOLD + Style(blink=False, underline=True),
    Role.SECTION: _REVERSE,
    Role.SECTION_DIM: _REVERSE,
    Role.METER_ON: _BOLD,
    Role.METER_OFF: _FAINT,
    Role.METER_SYSTEM: _BOLD,
    Role.MARKED_ON: _REVERSE,
    Role.MARKED_PART: _REVERSE,
    Role.MARKED_OFF: _REVERSE,
    Role.SELECTED: _REVERSE + _BOLD,
    Role.BAR_CURRENT: _BOLD + Style(underline=True),
}
