"""The user's wishes for neuron-top: section `top` of config.yaml. What makes no sense is named, and the default is used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from neurontools import env
from neurontools.dashboard.alerts import DEFAULT_RULES, Condition, Rule
from neurontools.dashboard.process_table import Column
from neurontools.tui.top.names import PAGE_NAMES, THEME_NAMES, key_problem
from neurontools.tui.top.pages.columns import DEFAULT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

SECTION = "top"
SHORTEST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 3600.0
_MOST_BYTES = 1 << 20
_RULE_KEYS = ("threshold", "for", "clear")


@dataclass(frozen=True, slots=True)
class TopSettings:
    """What neuron-top looks like. `keys` are Textual's names of keys by the name of what they do."""

    theme: str = THEME_NAMES[0]
    page: str = PAGE_NAMES[0]
    interval_s: float = 1.0
    columns: tuple[Column, ...] = DEFAULT_COLUMNS
    keys: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = DEFAULT_RULES
    ascii: bool = False
    """Draw with ASCII alone."""


def load_settings(path: str | None = None) -> tuple[TopSettings, tuple[str, ...]]:
    """Return the settings of this user, and a line for everything that is not obeyed.

    Args:
        path: the file, None for config.yaml of this environment. One without a section `top` says nothing.
    """
    path = path or env.config_file()
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return TopSettings(), ()
    if b"top" not in text:
        return TopSettings(), ()
    import yaml

    try:
        whole = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError):
        return TopSettings(), ()  # every tool says that the file is no YAML
    section = whole.get(SECTION) if isinstance(whole, dict) else None
    if section is None:
        return TopSettings(), ()
    if not isinstance(section, dict):
        return TopSettings(), (f"{SECTION}: must be a mapping, such as 'theme: light' on an indented line",)
    reader = _Reader()
    settings = reader.settings(section)
    return settings, tuple(reader.problems)


class _Reader:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def settings(self, section: Mapping[Any, Any]) -> TopSettings:
        found = TopSettings()
        readers: dict[str, Callable[[Any, TopSettings], TopSettings]] = {
            "theme": lambda value, now: replace(
                now, theme=self._one_of("theme", value, THEME_NAMES, now.theme)
            ),
            "page": lambda value, now: replace(now, page=self._one_of("page", value, PAGE_NAMES, now.page)),
            "interval": lambda value, now: replace(now, interval_s=self._interval(value, now.interval_s)),
            "columns": lambda value, now: replace(now, columns=self._columns(value)),
            "keys": lambda value, now: replace(now, keys=self._keys(value)),
            "alerts": lambda value, now: replace(now, rules=self._rules(value)),
            "ascii": lambda value, now: replace(now, ascii=self._yes("ascii", value)),
        }
        for name, value in section.items():
            if name not in readers:
                self._unknown("setting", str(name), readers)
            elif value is not None:
                found = readers[name](value, found)
        return found

    def _problem(self, text: str) -> None:
        self.problems.append(f"{SECTION}: {text}")

    def _unknown(self, what: str, name: str, known: Iterable[str], instead: str = "it is not used") -> None:
        names = [str(one) for one in known]
        from difflib import get_close_matches

        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
        self._problem(f"unknown {what} {name!r}, {instead}; {hint}")

    def _one_of(self, what: str, value: object, known: Collection[str], default: str) -> str:
        if value in known:
            return str(value)
        self._unknown(what, str(value), known, f"{default!r} is used")
        return default

    def _yes(self, what: str, value: object) -> bool:
        if not isinstance(value, bool):
            self._problem(f"{what} must be true or false, not {value!r}")
        return value is True

    def _interval(self, value: object, default: float) -> float:
        if _is_number(value) and SHORTEST_INTERVAL_S <= value <= LONGEST_INTERVAL_S:
            return float(value)
        self._problem(
            f"interval must be {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} seconds, not {value!r}"
        )
        return default

    def _columns(self, value: object) -> tuple[Column, ...]:
        names = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(names, list):
            self._problem(f"columns must be a list such as [pid, cores, utilization], not {value!r}")
            return DEFAULT_COLUMNS
        found: list[Column] = []
        for name in names:
            if name not in list(Column):
                self._unknown("column", str(name), list(Column), "it is left out")
            elif Column(name) not in found:
                found.append(Column(name))
        return tuple(found) or DEFAULT_COLUMNS

    def _keys(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            self._problem("keys must be a mapping such as 'quit: Q'")
            return {}
        found = {}
        for name, keys in value.items():
            words = keys if isinstance(keys, list) else [keys]
            bad = [problem for word in words if (problem := key_problem(str(word)))]
            if bad or not words:
                self._problem(f"{name}: {bad[0] if bad else 'no key'}, its usual key is used")
            else:
                found[str(name)] = ",".join(str(word) for word in words)
        return found

    def _rules(self, value: object) -> tuple[Rule, ...]:
        rules = {rule.condition: rule for rule in DEFAULT_RULES}
        if not isinstance(value, dict):
            self._problem("alerts must be a mapping such as 'device-memory: 0.8'")
            return DEFAULT_RULES
        for name, wish in value.items():
            if name not in list(Condition):
                self._unknown("alert", str(name), list(Condition))
                continue
            condition = Condition(name)
            if wish is False:
                del rules[condition]
                continue
            rules[condition] = self._rule(rules[condition], wish)
        return tuple(rules.values())

    def _rule(self, rule: Rule, wish: object) -> Rule:
        wanted = wish if isinstance(wish, dict) else {"threshold": wish}
        for name, value in wanted.items():
            if name not in _RULE_KEYS:
                self._unknown(f"key of {rule.condition}", str(name), _RULE_KEYS)
            elif not _is_number(value) or float(value) < 0:
                self._problem(
                    f"{rule.condition}: {name} must be a number from 0, or false to switch it off, not {value!r}"
                )
            elif name == "threshold":
                rule = replace(rule, threshold=float(value))
            elif name == "for":
                rule = replace(rule, for_s=float(value))
            else:
                rule = replace(rule, clear_s=float(value))
        return rule


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
