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


@dataclass(frozen=True, slots=True)
class Theme:
    """A background and a style for every role."""

    name: str
    meaning: str
    background: str
    styles: Mapping[Role, Style]
    dark: bool = True


@dataclass(frozen=True, slots=True)
class _Colours:
    """The colours that a theme is made of."""

    text: str
    strong: str
    dim: str
    head: str
    good: str
    good_part: str
    off: str
    bad: str
    mark: str
    mark_on: str
    mark_part: str
    mark_off: str
    bar: str
    on_bar: str
    on_bar_dim: str
    on_bar_current: str
    section: str
    on_section: str
    on_section_dim: str
    selected: str
    on_selected: str
    trouble: str
    on_trouble: str
    alert: str
    graph: str
    heat: tuple[str, str, str, str, str, str]


_DARK = _Colours(
    text="#d5dbe3",
    strong="#ffffff",
    dim="#6b7683",
    head="#8fa3b8",
    good="#3fb950",
    good_part="#1f6f33",
    off="#3b434d",
    bad="#f2604d",
    mark="#1d4a9c",
    mark_on="#56e06b",
    mark_part="#2f9e4a",
    mark_off="#5d7fb8",
    bar="#1b4f9e",
    on_bar="#ffffff",
    on_bar_dim="#b8cdf0",
    on_bar_current="#6ff08a",
    section="#2fb0bd",
    on_section="#06262b",
    on_section_dim="#0b4a52",
    selected="#a4202c",
    on_selected="#ffe066",
    trouble="#e3b341",
    on_trouble="#1a1a1a",
    alert="#ffa657",
    graph="#58a6ff",
    heat=("#3b434d", "#1f6f33", "#3fb950", "#d4c94a", "#f0883e", "#f2604d"),
)
_LIGHT = _Colours(
    text="#24292f",
    strong="#000000",
    dim="#7a838c",
    head="#57606a",
    good="#1a7f37",
    good_part="#8ccf9b",
    off="#c5cbd1",
    bad="#cf222e",
    mark="#b6d4fe",
    mark_on="#0f6b2c",
    mark_part="#4f9b66",
    mark_off="#7d97bd",
    bar="#0a4aa8",
    on_bar="#ffffff",
    on_bar_dim="#c5d9f7",
    on_bar_current="#8ff0a4",
    section="#b9e3e8",
    on_section="#06363d",
    on_section_dim="#2f6169",
    selected="#ffd8a8",
    on_selected="#7a1020",
    trouble="#bf8700",
    on_trouble="#ffffff",
    alert="#bc4c00",
    graph="#0969da",
    heat=("#c5cbd1", "#9bd8a8", "#2da44e", "#bf8700", "#d4691e", "#cf222e"),
)
# Blue to yellow (cividis-like) instead of green to red: distinct with every common kind of colour blindness, and by
# lightness alone.
_COLOURBLIND = _Colours(
    text="#d5dbe3",
    strong="#ffffff",
    dim="#6b7683",
    head="#8fa3b8",
    good="#56b4e9",
    good_part="#2b5f80",
    off="#3b434d",
    bad="#e69f00",
    mark="#3d3d5c",
    mark_on="#8fd0f5",
    mark_part="#5d9cc4",
    mark_off="#8888a8",
    bar="#0b3d66",
    on_bar="#ffffff",
    on_bar_dim="#b8cdf0",
    on_bar_current="#f0e442",
    section="#88a6c0",
    on_section="#06182b",
    on_section_dim="#1f3a52",
    selected="#f0e442",
    on_selected="#10101a",
    trouble="#f0e442",
    on_trouble="#10101a",
    alert="#f0e442",
    graph="#56b4e9",
    heat=("#3b434d", "#2b4a7f", "#4a78b5", "#7fa8c9", "#c9b458", "#f7e225"),
)
# The same where the background is light: yellow to blue, the busier the darker.
_COLOURBLIND_ON_LIGHT = _Colours(
    text="#24292f",
    strong="#000000",
    dim="#6e7781",
    head="#57606a",
    good="#0072b2",
    good_part="#8fc1de",
    off="#c5cbd1",
    bad="#b35900",
    mark="#f5e6a8",
    mark_on="#00527f",
    mark_part="#4a8fb8",
    mark_off="#8a8052",
    bar="#0b3d66",
    on_bar="#ffffff",
    on_bar_dim="#b8cdf0",
    on_bar_current="#f0e442",
    section="#c3d7e8",
    on_section="#06182b",
    on_section_dim="#2f4d68",
    selected="#12305f",
    on_selected="#ffe45c",
    trouble="#f0c419",
    on_trouble="#10101a",
    alert="#a34700",
    graph="#0072b2",
    heat=("#d8dde3", "#cbb94a", "#a1986a", "#787775", "#48557a", "#0a2a5e"),
)


def _styles(colours: _Colours) -> dict[Role, Style]:
    bar, section = colours.bar, colours.section
    styles = {
        Role.PLAIN: Style(color=colours.text),
        Role.DIM: Style(color=colours.dim),
        Role.STRONG: Style(color=colours.strong, bold=True),
        Role.VALUE: Style(color=colours.good),
        Role.TITLE: Style(color=colours.on_bar, bgcolor=bar, bold=True),
        Role.TITLE_DIM: Style(color=colours.on_bar_dim, bgcolor=bar),
        Role.TROUBLE: Style(color=colours.on_trouble, bgcolor=colours.trouble, bold=True),
        Role.SECTION: Style(color=colours.on_section, bgcolor=section, bold=True),
        Role.SECTION_DIM: Style(color=colours.on_section_dim, bgcolor=section),
        Role.SECTION_KEY: Style(color=colours.on_section, bgcolor=section) + _BOLD_UNDERLINE,
        Role.SECTION_CURRENT: Style(color=colours.on_selected, bgcolor=colours.selected, bold=True),
        Role.HEAD: Style(color=colours.head),
        Role.METER_ON: Style(color=colours.good),
        Role.METER_PART: Style(color=colours.good_part),
        Role.METER_OFF: Style(color=colours.off),
        Role.MARKED_ON: Style(color=colours.mark_on, bgcolor=colours.mark),
        Role.MARKED_PART: Style(color=colours.mark_part, bgcolor=colours.mark),
        Role.MARKED_OFF: Style(color=colours.mark_off, bgcolor=colours.mark),
        Role.METER_SYSTEM: Style(color=colours.bad),
        Role.SELECTED: Style(color=colours.on_selected, bgcolor=colours.selected, bold=True),
        Role.BAR: Style(color=colours.on_bar, bgcolor=bar),
        Role.BAR_DIM: Style(color=colours.on_bar_dim, bgcolor=bar),
        Role.BAR_CURRENT: Style(color=colours.on_bar_current, bgcolor=bar, bold=True),
        Role.ALERT: Style(color=colours.alert, bold=True),
        Role.GRAPH: Style(color=colours.graph),
    }
    styles.update({role: Style(color=colour) for role, colour in zip(HEAT, colours.heat, strict=True)})
    return styles


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

MONOCHROME = Theme("monochrome", "no colours at all", "#0d1117", _PLAIN_STYLES)
_BLUE_TO_YELLOW = "blue to yellow instead of green to red, dark or light as the terminal is"
THEMES = {
    theme.name: theme
    for theme in (
        Theme("dark", "for dark terminals", "#0d1117", _styles(_DARK)),
        Theme("light", "for light terminals", "#ffffff", _styles(_LIGHT), dark=False),
        Theme(COLORBLIND, _BLUE_TO_YELLOW, "#0d1117", _styles(_COLOURBLIND)),
    )
}
"""The themes by name; the first is the default. Adaptive themes are in their dark variant."""

DEFAULT_THEME = THEMES["dark"]
ADAPTING = frozenset({AUTO, COLORBLIND})
"""Names of the themes that have a dark and a light variant."""

_ON_LIGHT = {
    AUTO: THEMES["light"],
    COLORBLIND: Theme(COLORBLIND, _BLUE_TO_YELLOW, "#ffffff", _styles(_COLOURBLIND_ON_LIGHT), dark=False),
}


def theme_for(name: str, *, dark: bool) -> Theme:
    """Return a theme by name; adaptive themes in their dark or light variant."""
    if not dark and name in ADAPTING:
        return _ON_LIGHT[name]
    return DEFAULT_THEME if name == AUTO else THEMES[name]


def meaning_of(name: str) -> str:
    """Return a short description of a theme."""
    return "dark or light, as the terminal is" if name == AUTO else THEMES[name].meaning
