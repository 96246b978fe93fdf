"""Themes: the style of each role, and a monochrome one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.style import Style

from neurontools.tui.names import AUTO, COLORBLIND
from neurontools.tui.widgets.lines import HEAT, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOLD_UNDERLINE = Style(bold=True, underline=True)

# Colours of the themes: dark, light, colorblind on dark and on light terminals. The last two run from blue to yellow
# (cividis-like) instead of green to red: distinct with every common kind of colour blindness, and by lightness alone.
_PALETTES = """
    text            #d5dbe3  #24292f  #d5dbe3  #24292f
    strong          #ffffff  #000000  #ffffff  #000000
    dim             #6b7683  #7a838c  #6b7683  #6e7781
    head            #8fa3b8  #57606a  #8fa3b8  #57606a
    good            #3fb950  #1a7f37  #56b4e9  #0072b2
    good_part       #1f6f33  #8ccf9b  #2b5f80  #8fc1de
    off             #3b434d  #c5cbd1  #3b434d  #c5cbd1
    bad             #f2604d  #cf222e  #e69f00  #b35900
    mark            #1d4a9c  #b6d4fe  #3d3d5c  #f5e6a8
    mark_on         #56e06b  #0f6b2c  #8fd0f5  #00527f
    mark_part       #2f9e4a  #4f9b66  #5d9cc4  #4a8fb8
    mark_off        #5d7fb8  #7d97bd  #8888a8  #8a8052
    bar             #1b4f9e  #0a4aa8  #0b3d66  #0b3d66
    on_bar          #ffffff  #ffffff  #ffffff  #ffffff
    on_bar_dim      #b8cdf0  #c5d9f7  #b8cdf0  #b8cdf0
    on_bar_current  #6ff08a  #8ff0a4  #f0e442  #f0e442
    section         #2fb0bd  #b9e3e8  #88a6c0  #c3d7e8
    on_section      #06262b  #06363d  #06182b  #06182b
    on_section_dim  #0b4a52  #2f6169  #1f3a52  #2f4d68
    selected        #a4202c  #ffd8a8  #f0e442  #12305f
    on_selected     #ffe066  #7a1020  #10101a  #ffe45c
    trouble         #e3b341  #bf8700  #f0e442  #f0c419
    on_trouble      #1a1a1a  #ffffff  #10101a  #10101a
    alert           #ffa657  #bc4c00  #f0e442  #a34700
    graph           #58a6ff  #0969da  #56b4e9  #0072b2
    heat_0          #3b434d  #c5cbd1  #3b434d  #d8dde3
    heat_1          #1f6f33  #9bd8a8  #2b4a7f  #cbb94a
    heat_2          #3fb950  #2da44e  #4a78b5  #a1986a
    heat_3          #d4c94a  #bf8700  #7fa8c9  #787775
    heat_4          #f0883e  #d4691e  #c9b458  #48557a
    heat_5          #f2604d  #cf222e  #f7e225  #0a2a5e
"""
_DARK, _LIGHT, _COLORBLIND, _COLORBLIND_ON_LIGHT = (
    {name: colours[column] for name, *colours in map(str.split, _PALETTES.strip().splitlines())}
    for column in range(4)
)

_BOLD = Style(bold=True)
_FAINT = Style(dim=True)
_REVERSE = Style(reverse=True)

_PLAIN_STYLES = {
    **dict.fromkeys(Role, Style()),
    Role.DIM: _FAINT,
    Role.STRONG: _BOLD,
    Role.TITLE: _REVERSE + _BOLD,
    Role.TITLE_DIM: _REVERSE,
    Role.TROUBLE: _BOLD + Style(blink=False, underline=True),
    Role.SECTION: _REVERSE,
    Role.SECTION_DIM: _REVERSE,
    Role.SECTION_KEY: _REVERSE + _BOLD_UNDERLINE,
    Role.SECTION_CURRENT: _REVERSE + _BOLD,
    Role.METER_ON: _BOLD,
    Role.METER_OFF: _FAINT,
    Role.METER_SYSTEM: _BOLD,
    Role.MARKED_ON: _REVERSE,
    Role.MARKED_PART: _REVERSE,
    Role.MARKED_OFF: _REVERSE,
    Role.SELECTED: _REVERSE + _BOLD,
    Role.BAR_CURRENT: _BOLD + Style(underline=True),
    Role.ALERT: _BOLD,
    Role.HEAT_0: _FAINT,
}

_BLUE_TO_YELLOW = "blue to yellow instead of green to red, dark or light as the terminal is"

ADAPTING = frozenset({AUTO, COLORBLIND})
"""Names of the themes that have a dark and a light variant."""


@dataclass(frozen=True, slots=True)
class Theme:
    """A background and a style for every role."""

    name: str
    meaning: str
    background: str
    styles: Mapping[Role, Style]
    dark: bool = True


def _styles(colours: Mapping[str, str]) -> dict[Role, Style]:
    bar, section = colours["bar"], colours["section"]
    styles = {
        Role.PLAIN: Style(color=colours["text"]),
        Role.DIM: Style(color=colours["dim"]),
        Role.STRONG: Style(color=colours["strong"], bold=True),
        Role.VALUE: Style(color=colours["good"]),
        Role.TITLE: Style(color=colours["on_bar"], bgcolor=bar, bold=True),
        Role.TITLE_DIM: Style(color=colours["on_bar_dim"], bgcolor=bar),
        Role.TROUBLE: Style(color=colours["on_trouble"], bgcolor=colours["trouble"], bold=True),
        Role.SECTION: Style(color=colours["on_section"], bgcolor=section, bold=True),
        Role.SECTION_DIM: Style(color=colours["on_section_dim"], bgcolor=section),
        Role.SECTION_KEY: Style(color=colours["on_section"], bgcolor=section) + _BOLD_UNDERLINE,
        Role.SECTION_CURRENT: Style(color=colours["on_selected"], bgcolor=colours["selected"], bold=True),
        Role.HEAD: Style(color=colours["head"]),
        Role.METER_ON: Style(color=colours["good"]),
        Role.METER_PART: Style(color=colours["good_part"]),
        Role.METER_OFF: Style(color=colours["off"]),
        Role.MARKED_ON: Style(color=colours["mark_on"], bgcolor=colours["mark"]),
        Role.MARKED_PART: Style(color=colours["mark_part"], bgcolor=colours["mark"]),
        Role.MARKED_OFF: Style(color=colours["mark_off"], bgcolor=colours["mark"]),
        Role.METER_SYSTEM: Style(color=colours["bad"]),
        Role.SELECTED: Style(color=colours["on_selected"], bgcolor=colours["selected"], bold=True),
        Role.BAR: Style(color=colours["on_bar"], bgcolor=bar),
        Role.BAR_DIM: Style(color=colours["on_bar_dim"], bgcolor=bar),
        Role.BAR_CURRENT: Style(color=colours["on_bar_current"], bgcolor=bar, bold=True),
        Role.ALERT: Style(color=colours["alert"], bold=True),
        Role.GRAPH: Style(color=colours["graph"]),
    }
    styles |= {role: Style(color=colours[f"heat_{step}"]) for step, role in enumerate(HEAT)}
    return styles


MONOCHROME = Theme("monochrome", "no colours at all", "#0d1117", _PLAIN_STYLES)
THEMES = {
    theme.name: theme
    for theme in (
        Theme("dark", "for dark terminals", "#0d1117", _styles(_DARK)),
        Theme("light", "for light terminals", "#ffffff", _styles(_LIGHT), dark=False),
        Theme(COLORBLIND, _BLUE_TO_YELLOW, "#0d1117", _styles(_COLORBLIND)),
    )
}
"""The themes by name; the first is the default. Adaptive themes are in their dark variant."""

DEFAULT_THEME = THEMES["dark"]

_ON_LIGHT = {
    AUTO: THEMES["light"],
    COLORBLIND: Theme(COLORBLIND, _BLUE_TO_YELLOW, "#ffffff", _styles(_COLORBLIND_ON_LIGHT), dark=False),
}


def theme_for(name: str, *, dark: bool) -> Theme:
    """Return a theme by name; adaptive themes in their dark or light variant."""
    if not dark and name in ADAPTING:
        return _ON_LIGHT[name]
    return DEFAULT_THEME if name == AUTO else THEMES[name]


def meaning_of(name: str) -> str:
    """Return a short description of a theme."""
    return "dark or light, as the terminal is" if name == AUTO else THEMES[name].meaning
