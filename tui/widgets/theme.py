"""Themes: the style of each role, and a monochrome one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property

from msgspec import Struct
from rich.style import Style

from neurontools.tui.names import AUTO, COLORBLIND, SIXTEEN, TEXTUAL_THEMES
from neurontools.tui.widgets.lines import HEAT, Role

_BOLD_UNDERLINE = Style(bold=True, underline=True)

# One table of colours for every theme: dark, light, colorblind on dark and on light terminals, 16 colours of the
# terminal. Use is drawn in one neutral hue that only becomes brighter; yellow and red mean trouble and nothing else. The
# colorblind themes run from blue to yellow (cividis-like): distinct with every common kind of colour blindness, and by
# lightness alone. The rows below `classic` are the real neuron-top's screen, which keeps its own colours.
_PALETTES = """
    background      #0d1117  #ffffff  #0d1117  #ffffff  default
    text            #d5dbe3  #24292f  #d5dbe3  #24292f  default
    strong          #ffffff  #000000  #ffffff  #000000  bright_white
    dim             #6b7683  #7a838c  #6b7683  #6e7781  bright_black
    head            #8fa3b8  #57606a  #8fa3b8  #57606a  white
    accent          #7dcfff  #0550ae  #56b4e9  #0072b2  bright_cyan
    frame           #36414d  #c3cad2  #36414d  #c3cad2  bright_black
    title           #b6c8da  #32404e  #b6c8da  #32404e  bright_white
    cursor          #7dcfff  #0969da  #f0e442  #0072b2  bright_cyan
    selection       #1c2733  #e6eef7  #26283c  #f5eecb  black
    track           #1a212b  #e8ecf0  #1a212b  #e8ecf0  default
    use_1           #2b5c85  #9cc4e8  #284a80  #c9bb62  blue
    use_2           #3576a8  #78aede  #355f94  #a1986a  blue
    use_3           #3f90c8  #5497d3  #5d86b0  #7b7a74  cyan
    use_4           #54addf  #2f80c6  #a0a58c  #4d5c78  cyan
    use_5           #7dcfff  #0a62ab  #f0d85a  #123468  bright_cyan
    warning         #e3b341  #9a6700  #f0e442  #8a5a00  bright_yellow
    bad             #f2604d  #cf222e  #e69f00  #b35900  bright_red
    on_badge        #10141a  #ffffff  #10101a  #ffffff  black
    cell_0          #161d26  #eef1f4  #161d26  #eef1f4  default
    cell_1          #16324a  #d3e6f7  #1a2c4f  #f2e9b8  blue
    cell_2          #1d4a6d  #a9d0f1  #2f4a75  #dccf83  blue
    cell_3          #266592  #7bb5e6  #566f8f  #a1986a  cyan
    cell_4          #3586bd  #4793d3  #9a9a70  #5c6478  cyan
    cell_5          #54b0e8  #1769b5  #ecd650  #123468  bright_cyan
    on_cell_0       #4a5665  #a4aeb8  #4a5665  #a4aeb8  bright_black
    on_cell_1       #b9d3e8  #16436b  #c4d2ee  #4c4200  bright_white
    on_cell_2       #d8e9f7  #0c3560  #dbe4f5  #3a3200  bright_white
    on_cell_3       #ffffff  #06264a  #ffffff  #10101a  black
    on_cell_4       #ffffff  #ffffff  #10101a  #ffffff  black
    on_cell_5       #04121d  #ffffff  #10101a  #ffffff  black
    user_1          #7dcfff  #0550ae  #56b4e9  #0072b2  bright_cyan
    user_2          #c3a6ff  #6f42c1  #cc9ac0  #8e4585  bright_magenta
    user_3          #7fd1ae  #116a53  #4fc1a6  #00735c  bright_green
    user_4          #f0a6c8  #a8326e  #e8b4d0  #a04a7c  magenta
    user_5          #a9b8ff  #3949ab  #9fb6e8  #33518c  bright_blue
    user_6          #c8cf9a  #5d6420  #c9c46a  #6b6200  white
    classic         -        -        -        -        -
    good            #3fb950  #1a7f37  #56b4e9  #0072b2  green
    good_part       #1f6f33  #8ccf9b  #2b5f80  #8fc1de  green
    off             #3b434d  #c5cbd1  #3b434d  #c5cbd1  bright_black
    mark            #1d4a9c  #b6d4fe  #3d3d5c  #f5e6a8  blue
    mark_on         #56e06b  #0f6b2c  #8fd0f5  #00527f  bright_green
    mark_part       #2f9e4a  #4f9b66  #5d9cc4  #4a8fb8  green
    mark_off        #5d7fb8  #7d97bd  #8888a8  #8a8052  bright_black
    bar             #1b4f9e  #0a4aa8  #0b3d66  #0b3d66  blue
    on_bar          #ffffff  #ffffff  #ffffff  #ffffff  bright_white
    on_bar_dim      #b8cdf0  #c5d9f7  #b8cdf0  #b8cdf0  white
    on_bar_current  #6ff08a  #8ff0a4  #f0e442  #f0e442  bright_green
    section         #2fb0bd  #b9e3e8  #88a6c0  #c3d7e8  cyan
    on_section      #06262b  #06363d  #06182b  #06182b  black
    on_section_dim  #0b4a52  #2f6169  #1f3a52  #2f4d68  black
    selected        #a4202c  #ffd8a8  #f0e442  #12305f  red
    on_selected     #ffe066  #7a1020  #10101a  #ffe45c  bright_yellow
    trouble         #e3b341  #bf8700  #f0e442  #f0c419  yellow
    on_trouble      #1a1a1a  #ffffff  #10101a  #10101a  black
    alert           #ffa657  #bc4c00  #f0e442  #a34700  bright_yellow
"""
_COLUMNS = {name: colours for name, *colours in map(str.split, _PALETTES.strip().splitlines())}
_DARK, _LIGHT, _COLORBLIND, _COLORBLIND_ON_LIGHT, _SIXTEEN = (
    {name: colours[column] for name, colours in _COLUMNS.items()} for column in range(5)
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
    Role.FRAME: _FAINT,
    Role.FRAME_TITLE: _BOLD,
    Role.FRAME_KEY: _BOLD_UNDERLINE,
    Role.FRAME_NOTE: _FAINT,
    Role.CURSOR: _BOLD,
    **dict.fromkeys((Role.ON_PLAIN, Role.ON_VALUE, Role.ON_GRAPH, Role.ON_DIM), _REVERSE),
    Role.ON_STRONG: _REVERSE + _BOLD,
    Role.ON_ALERT: _REVERSE + _BOLD,
    Role.WARNING: _BOLD,
    Role.TRACK: _FAINT,
    Role.USE_FULL: _BOLD,
    Role.CELL_0: _FAINT,
    Role.CELL_4: _BOLD,
    Role.CELL_5: _BOLD,
    Role.BADGE: _REVERSE,
    Role.BADGE_WARNING: _REVERSE + _BOLD,
    Role.BADGE_BAD: _REVERSE + _BOLD,
    Role.TAB_CURRENT: _REVERSE + _BOLD,
    Role.KEY: _BOLD,
}

_BLUE_TO_YELLOW = "blue to yellow, dark or light as the terminal is"
_TRACKED = (Role.USE_1, Role.USE_2, Role.USE_3, Role.USE_4, Role.USE_5)
_SHADES = (Role.SHADE_1, Role.SHADE_2, Role.SHADE_3, Role.SHADE_4, Role.SHADE_5)
_CELLS = (Role.CELL_0, Role.CELL_1, Role.CELL_2, Role.CELL_3, Role.CELL_4, Role.CELL_5)
_USERS = (Role.USER_1, Role.USER_2, Role.USER_3, Role.USER_4, Role.USER_5, Role.USER_6)

ADAPTING = frozenset({AUTO, COLORBLIND})
"""Names of the themes that have a dark and a light variant."""


class Theme(Struct, frozen=True, dict=True):
    """A background and colours by name; `colours` is empty for the theme without any.

    `textual` is the theme of Textual's own widgets, such as the command palette.
    """

    name: str
    meaning: str
    colours: Mapping[str, str]
    dark: bool = True
    textual: str = ""

    @property
    def background(self) -> str:
        """The colour behind everything."""
        colour = self.colours.get("background", "#0d1117")
        return "ansi_default" if colour == "default" else colour

    @cached_property
    def styles(self) -> Mapping[Role, Style]:
        """The style of every role, made when it is first needed."""
        return (
            {**_classic_styles(self.colours), **_modern_styles(self.colours)}
            if self.colours
            else _PLAIN_STYLES
        )

    @property
    def backed_styles(self) -> Mapping[Role, Style]:
        """The style of every role on the theme's background, as a whole screen shows it."""
        background = Style(color="default", bgcolor=self.colours.get("background", "default"))
        return {role: background + style for role, style in self.styles.items()}


def _modern_styles(colours: Mapping[str, str]) -> dict[Role, Style]:
    track, selection, on_badge = colours["track"], colours["selection"], colours["on_badge"]
    accent = colours["accent"]
    shades = [colours[f"use_{step}"] for step in range(1, 6)]
    styles = {
        Role.FRAME: Style(color=colours["frame"]),
        Role.FRAME_TITLE: Style(color=colours["title"], bold=True),
        Role.FRAME_KEY: Style(color=accent, bold=True),
        Role.FRAME_NOTE: Style(color=colours["dim"]),
        Role.CURSOR: Style(color=colours["cursor"], bgcolor=selection, bold=True),
        Role.ON_PLAIN: Style(color=colours["text"], bgcolor=selection),
        Role.ON_DIM: Style(color=colours["dim"], bgcolor=selection),
        Role.ON_STRONG: Style(color=colours["strong"], bgcolor=selection, bold=True),
        Role.ON_VALUE: Style(color=accent, bgcolor=selection),
        Role.ON_ALERT: Style(color=colours["warning"], bgcolor=selection, bold=True),
        Role.ON_GRAPH: Style(color=shades[3], bgcolor=selection),
        Role.WARNING: Style(color=colours["bad"], bold=True),
        Role.TRACK: Style(color=colours["frame"], bgcolor=track),
        Role.USE_FULL: Style(color=colours["warning"], bgcolor=track),
        Role.BADGE: Style(color=on_badge, bgcolor=accent, bold=True),
        Role.BADGE_WARNING: Style(color=on_badge, bgcolor=colours["warning"], bold=True),
        Role.BADGE_BAD: Style(color=on_badge, bgcolor=colours["bad"], bold=True),
        Role.TAB: Style(color=colours["head"]),
        Role.TAB_CURRENT: Style(color=accent, bgcolor=selection, bold=True),
        Role.KEY: Style(color=accent),
        Role.GRAPH: Style(color=shades[3]),
        Role.VALUE: Style(color=accent),
        Role.ALERT: Style(color=colours["warning"], bold=True),
    }
    styles |= {
        role: Style(color=colour, bgcolor=track) for role, colour in zip(_TRACKED, shades, strict=True)
    }
    styles |= {role: Style(color=colour) for role, colour in zip(_SHADES, shades, strict=True)}
    styles |= {
        role: Style(color=colours[f"on_cell_{step}"], bgcolor=colours[f"cell_{step}"])
        for step, role in enumerate(_CELLS)
    }
    styles |= {role: Style(color=colours[f"user_{number}"]) for number, role in enumerate(_USERS, 1)}
    heat = (colours["off"], *shades)
    return styles | {role: Style(color=colour) for role, colour in zip(HEAT, heat, strict=True)}


def _classic_styles(colours: Mapping[str, str]) -> dict[Role, Style]:
    bar, section = colours["bar"], colours["section"]
    return {
        Role.PLAIN: Style(color=colours["text"]),
        Role.DIM: Style(color=colours["dim"]),
        Role.STRONG: Style(color=colours["strong"], bold=True),
        Role.CLASSIC_VALUE: Style(color=colours["good"]),
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
        Role.CLASSIC_ALERT: Style(color=colours["alert"], bold=True),
    }


MONOCHROME = Theme("monochrome", "no colours at all", {})
THEMES = {
    theme.name: theme
    for theme in (
        Theme("dark", "for dark terminals", _DARK),
        Theme("light", "for light terminals", _LIGHT, dark=False),
        Theme(COLORBLIND, _BLUE_TO_YELLOW, _COLORBLIND),
        Theme(SIXTEEN, "the terminal's own 16 colours", _SIXTEEN, textual="ansi-dark"),
    )
}
"""The themes by name; the first is the default. Adaptive themes are in their dark variant."""

DEFAULT_THEME = THEMES["dark"]

_ON_LIGHT = {
    AUTO: THEMES["light"],
    COLORBLIND: Theme(COLORBLIND, _BLUE_TO_YELLOW, _COLORBLIND_ON_LIGHT, dark=False),
}


def theme_for(name: str, *, dark: bool) -> Theme:
    """Return a theme by name, ours or Textual's; adaptive themes in their dark or light variant."""
    if not dark and name in ADAPTING:
        return _ON_LIGHT[name]
    if name in TEXTUAL_THEMES:
        return _textual_theme(name)
    return DEFAULT_THEME if name == AUTO else THEMES[name]


def meaning_of(name: str) -> str:
    """Return a short description of a theme."""
    if name in TEXTUAL_THEMES:
        return "a theme of Textual"
    return "dark or light, as the terminal is" if name == AUTO else THEMES[name].meaning


@cache
def _textual_theme(name: str) -> Theme:
    from textual.color import Color
    from textual.theme import BUILTIN_THEMES

    theme = BUILTIN_THEMES[name]
    back = Color.parse(theme.background or "#000000")
    fore = Color.parse(theme.foreground or "#ffffff")
    accent = Color.parse(theme.primary)

    def mixed(share: float, colour: Color = fore) -> str:
        return back.blend(colour, share).hex6

    def readable(on: str) -> str:
        return Color.parse(on).get_contrast_text(1.0).hex6

    base = dict(_DARK if theme.dark else _LIGHT)
    base |= {
        "background": back.hex6,
        "text": mixed(0.92),
        "strong": fore.hex6,
        "dim": mixed(0.48),
        "head": mixed(0.62),
        "accent": accent.hex6,
        "frame": mixed(0.24),
        "title": mixed(0.82),
        "cursor": accent.hex6,
        "selection": mixed(0.12),
        "track": mixed(0.07),
        "warning": theme.warning or base["warning"],
        "bad": theme.error or base["bad"],
    }
    shares = (0.38, 0.52, 0.66, 0.82, 1.0)
    base |= {f"use_{step}": mixed(share, accent) for step, share in enumerate(shares, 1)}
    cells = (0.04, 0.2, 0.36, 0.54, 0.74, 0.96)
    base |= {f"cell_{step}": mixed(share, accent) for step, share in enumerate(cells)}
    base |= {f"on_cell_{step}": readable(base[f"cell_{step}"]) for step in range(1, 6)}
    base |= {"on_cell_0": mixed(0.35), "on_badge": readable(base["warning"])}
    return Theme(name, "a theme of Textual", base, dark=theme.dark, textual=name)
