"""`neuron-ls --filter`, a form of ours: reading one condition, and whether it holds for a value.

A filter is `KEY OPERATOR VALUE[,VALUE...]`; one of the values must hold. Keys are of the device (`state=busy`) or of the
process (`tag~train`). What they leave of a machine is in `selection`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Value = str | int | float

_OPERATORS = ("!=", "!~", ">=", "<=", "=", "~", ">", "<")
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
STATES = ("idle", "busy", "executing")

_NUMBER, _SIZE, _TEXT, _OWNER, _STATE = "number", "size", "text", "owner", "state"
DEVICE_KEYS = {
    "device": _NUMBER,
    "numa": _NUMBER,
    "bdf": _TEXT,
    "state": _STATE,
    "processes": _NUMBER,
    "memory": _SIZE,
    "memory-used": _SIZE,
    "memory-free": _SIZE,
}
PROCESS_KEYS = {
    "pid": _NUMBER,
    "command": _TEXT,
    "tag": _TEXT,
    "owner": _OWNER,
    "runtime": _TEXT,
    "origin": _TEXT,
}
_OPERATORS_OF = {
    _NUMBER: ("=", "!=", ">", ">=", "<", "<="),
    _SIZE: ("=", "!=", ">", ">=", "<", "<="),
    _TEXT: ("=", "!=", "~", "!~"),
    _OWNER: ("=", "!="),
    _STATE: ("=", "!="),
}


class FilterError(ValueError):
    """A filter makes no sense; the text says why."""


class Filter:
    """One condition."""

    __slots__ = ("key", "operator", "values")

    def __init__(self, key: str, operator: str, values: tuple[Value, ...]) -> None:
        self.key = key
        self.operator = operator
        self.values = values

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{','.join(map(str, self.values))}"

    @property
    def of_process(self) -> bool:
        """Whether it is about a process, not a device."""
        return self.key in PROCESS_KEYS

    def holds(self, *found: Value) -> bool:
        """Return whether it holds for what was found under its key (a state can be two things at once)."""
        operator = self.operator.removeprefix("!")
        result = any(_compare(operator, one, value) for one in found for value in self.values)
        return result != self.operator.startswith("!")


def looks_like_filter(word: str) -> bool:
    """Return whether a word is meant as a filter: it has an operator, whatever is around it."""
    return bool(_split(word)[1])


def parse_filter(text: str) -> Filter:
    """Return the filter that a text means.

    Raises:
        FilterError: an unknown key, an operator that the key does not have, or a value that makes no sense.
    """
    key, operator, rest = _split(text)
    kinds = {**DEVICE_KEYS, **PROCESS_KEYS}
    if not operator:
        raise FilterError("expected KEY, one of = != ~ !~ > >= < <=, VALUE, such as state=busy")
    if key not in kinds:
        raise FilterError(f"no key {key!r}; known are {', '.join(sorted(kinds))}")
    kind = kinds[key]
    if operator not in _OPERATORS_OF[kind]:
        raise FilterError(f"{key} knows {' '.join(_OPERATORS_OF[kind])}, not {operator}")
    if "\n" in rest or "\0" in rest:
        raise FilterError("a value has no line breaks")
    return Filter(key, operator, tuple(_value(key, kind, word.strip()) for word in rest.split(",")))


def _split(text: str) -> tuple[str, str, str]:
    places = [(text.find(operator), -len(operator)) for operator in _OPERATORS if operator in text]
    if not places:
        return text.strip(), "", ""
    place, length = min(places)
    return text[:place].strip(), text[place : place - length], text[place - length :].strip()


def _value(key: str, kind: str, word: str) -> Value:
    if kind == _TEXT:
        return word
    if not word:
        raise FilterError(f"{key} needs a value")
    if kind == _STATE:
        if word not in STATES:
            raise FilterError(f"no state {word!r}; known are {', '.join(STATES)}")
        return word
    convert: dict[str, Callable[[str], Value]] = {_NUMBER: int, _SIZE: _size, _OWNER: _uid}
    try:
        return convert[kind](word)
    except (ValueError, OverflowError):
        what = {_NUMBER: "a whole number", _SIZE: "a size such as 512MB or 1.5GB", _OWNER: "a user or a uid"}
        raise FilterError(f"{key} needs {what[kind]}, not {word!r}") from None


def _size(word: str) -> int:
    number = word.rstrip("BbIiKkMmGgTt")
    unit = word[len(number) :].upper()
    if len(unit) > 1:
        unit = unit.removesuffix("B").removesuffix("I")
    size = float(number) * _UNITS[unit] if unit in _UNITS else -1.0
    if not 0 <= size < 2**63:
        raise ValueError(word)
    return int(size)


def _uid(word: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    if word == "me":
        import os

        return os.getuid()
    import pwd

    try:
        return pwd.getpwnam(word).pw_uid
    except KeyError:
        raise ValueError(word) from None


def _compare(operator: str, found: Value, value: Value) -> bool:
    match found, value:
        case str(), str():
            return value.casefold() in found.casefold() if operator == "~" else found == value
        case ((int() | float()), (int() | float())):
            return {
                "=": found == value,
                ">": found > value,
                ">=": found >= value,
                "<": found < value,
                "<=": found <= value,
            }[operator]
    return False
