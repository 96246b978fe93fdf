"""Section `top` of config.yaml: how neuron-top looks. Mistakes are reported, and the default is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from neurontools import env
from neurontools.base.text import did_you_mean
from neurontools.config import types
from neurontools.config.reader import FLAG, LIST, MAPPING, FormatError, Section, in_order, read_yaml
from neurontools.config.settings import read_file
from neurontools.dashboard.alerts import DEFAULT_RULES, Condition, Rule
from neurontools.tui.names import PAGE_NAMES, TEXTUAL_THEMES, THEME_NAMES, key_problem
from neurontools.tui.top.pages.columns import COLUMNS, DEFAULT_COLUMNS, Column

if TYPE_CHECKING:
    from neurontools.config.reader import Value

SECTION = "top"
SHORTEST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 3600.0
_THEME = types.choice((*THEME_NAMES, *TEXTUAL_THEMES), "theme")
_PAGE = types.choice(PAGE_NAMES, "page")
_INTERVAL = types.number(
    SHORTEST_INTERVAL_S,
    LONGEST_INTERVAL_S,
    expected=f"{SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} seconds",
)
_THRESHOLD = types.number(expected="a number of at least 0, or false to switch it off")
_SECONDS = types.number(expected="a number of seconds")


class TopSettings(Struct, frozen=True):
    """What neuron-top looks like. `keys` are Textual's names of keys by the name of what they do."""

    theme: str = THEME_NAMES[0]
    page: str = PAGE_NAMES[0]
    interval_s: float = 1.0
    columns: tuple[Column, ...] = DEFAULT_COLUMNS
    keys: Mapping[str, str] = {}
    rules: tuple[Rule, ...] = DEFAULT_RULES
    ascii: bool = False
    """Draw with ASCII alone."""
    classic: bool = False
    """Show the real tool's screen as the overview."""


def load_settings(path: str | None = None) -> tuple[TopSettings, tuple[str, ...]]:
    """Return the user's settings, and a message for each mistake.

    Args:
        path: the file, None for config.yaml of this environment.
    """
    path = path or env.config_file()
    try:
        root = read_yaml(read_file(path))
    except (OSError, FormatError):
        return TopSettings(), ()  # every tool reports a file that cannot be read
    value = root.section().get(SECTION) if root.kind == MAPPING else None
    if value is None:
        return TopSettings(), ()
    root.problems.clear()  # likewise
    settings = _read_settings(value.section("a mapping, such as 'theme: light' on an indented line"))
    return settings, tuple(problem.located(path) for problem in in_order(root.problems))


def _read_settings(section: Section) -> TopSettings:
    usual = TopSettings()
    settings = TopSettings(
        theme=section.read("theme", _THEME, None) or usual.theme,
        page=section.read("page", _PAGE, None) or usual.page,
        interval_s=section.read("interval", _INTERVAL, usual.interval_s),
        columns=_read_columns(section.get("columns")),
        keys=_read_keys(section.section("keys", "a mapping such as 'quit: Q'")),
        rules=_read_rules(section.section("alerts", "a mapping such as 'device-memory: 0.8'")),
        ascii=section.read("ascii", types.FLAG, default=False),
        classic=section.read("classic", types.FLAG, default=False),
    )
    section.finish()
    return settings


def _read_columns(value: Value | None) -> tuple[Column, ...]:
    if value is None:
        return DEFAULT_COLUMNS
    if value.is_scalar:
        names = value.text.replace(",", " ").split()
    else:
        names = [item.text for item in value.items("a list such as [pid, cores, utilization]")]
    for name in names:
        if name not in COLUMNS:
            value.fail(f"unknown column {name!r}", did_you_mean(name, COLUMNS))
    return tuple(COLUMNS[name] for name in dict.fromkeys(names) if name in COLUMNS) or DEFAULT_COLUMNS


def _read_keys(section: Section | None) -> dict[str, str]:
    keys = {}
    for name, value in section or ():
        words = [item.text for item in value.items()] if value.kind == LIST else [value.text]
        problems = [problem for word in words if (problem := key_problem(word))]
        if problems or not words:
            value.fail(problems[0] if problems else "no key", "the default key is used")
        else:
            keys[name] = ",".join(words)
    return keys


def _read_rules(section: Section | None) -> tuple[Rule, ...]:
    rules = {rule.condition: rule for rule in DEFAULT_RULES}
    for name, value in section or ():
        if name not in list(Condition):
            value.fail_key("unknown alert", did_you_mean(name, Condition))
        elif value.kind == FLAG and not value.read(types.FLAG, default=True):
            del rules[Condition(name)]
        else:
            rules[Condition(name)] = _read_rule(rules[Condition(name)], value)
    return tuple(rules.values())


def _read_rule(rule: Rule, value: Value) -> Rule:
    if value.kind != MAPPING:
        return replace(rule, threshold=value.read(_THRESHOLD, rule.threshold))
    section = value.section()
    rule = replace(
        rule,
        threshold=section.read("threshold", _THRESHOLD, rule.threshold),
        for_s=section.read("for", _SECONDS, rule.for_s),
        clear_s=section.read("clear", _SECONDS, rule.clear_s),
    )
    section.finish()
    return rule
