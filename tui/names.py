"""Names that users write in the configuration: pages, themes, keys. Imports nothing heavy."""

from __future__ import annotations

PAGE_NAMES = ("overview", "history", "processes", "devices", "events")
"""The pages of neuron-top in their order, a class of `top/pages` each; F1 is the first."""

AUTO = "auto"
COLORBLIND = "colorblind"
SIXTEEN = "ansi"
THEME_NAMES = (AUTO, "dark", "light", COLORBLIND, SIXTEEN)
"""The themes; the first is the default: dark or light, as the terminal is."""

TEXTUAL_THEMES = (
    "nord",
    "gruvbox",
    "catppuccin-mocha",
    "catppuccin-macchiato",
    "catppuccin-frappe",
    "catppuccin-latte",
    "dracula",
    "tokyo-night",
    "monokai",
    "flexoki",
    "solarized-dark",
    "solarized-light",
    "rose-pine",
    "rose-pine-moon",
    "rose-pine-dawn",
    "atom-one-dark",
    "atom-one-light",
)
"""Textual's own themes, whose colours our roles can take."""

_KEY_NAMES = """
    up down left right home end pageup pagedown enter escape space tab backspace delete insert slash question_mark comma
    full_stop less_than_sign greater_than_sign plus minus equals_sign semicolon colon apostrophe left_square_bracket
    right_square_bracket left_curly_bracket right_curly_bracket backslash grave_accent tilde exclamation_mark at
    number_sign dollar_sign percent_sign circumflex_accent ampersand asterisk left_parenthesis right_parenthesis
    underscore vertical_line quotation_mark
"""
_NAMED_KEYS = frozenset(_KEY_NAMES.split()) | {f"f{number}" for number in range(1, 25)}
_MODIFIERS = ("ctrl+", "shift+", "alt+")

_SHORT_KEYS = {
    "question_mark": "?",
    "slash": "/",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "comma": ",",
    "full_stop": ".",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "left_parenthesis": "(",
    "right_parenthesis": ")",
    "minus": "-",
    "plus": "+",
    "equals_sign": "=",
    "pageup": "page up",
    "pagedown": "page down",
}


def key_problem(key: str) -> str:
    """Return the error in the name of a key, "" for a key that a terminal can send.

    Args:
        key: as Textual names it: `x`, `X`, `ctrl+x`, `f5`, `slash`.
    """
    name = key
    while name.startswith(_MODIFIERS):
        name = name.partition("+")[2]
    is_letter = len(name) == 1 and name.isalnum() and (name.isascii() or name == key)
    if name in _NAMED_KEYS or is_letter:
        return ""
    return f"unknown key {key!r}"


def shown_key(key: str) -> str:
    """Return the display name of a key: `?` for `question_mark`."""
    return _SHORT_KEYS.get(key, key)
