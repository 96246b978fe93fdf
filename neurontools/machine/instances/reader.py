"""Typed reading of YAML mappings: every error names the file, the key and what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_RATE_UNITS = {"GiB/s": 2**30, "TiB/s": 2**40, "GB/s": 1e9, "TB/s": 1e12}


class CatalogueError(NeuronToolsError):
    """A file of the catalogue is missing or does not follow the schema."""

    def __init__(self, file: str, key: str, problem: str) -> None:
        super().__init__(
            f"instance catalogue: {file}: {key}: {problem}"
            if key
            else f"instance catalogue: {file}: {problem}",
            "correct the file, or install neurontools again",
        )


class Reader:
    """Reads one mapping key by key.

    Args:
        file: name of the file, for messages.
        path: dotted key of the mapping inside the file, for messages; "" for the whole file.
        value: what the YAML parser returned.

    Raises:
        CatalogueError: the value is no mapping with text keys.
    """

    __slots__ = ("_file", "_path", "_seen", "_value")

    def __init__(self, file: str, path: str, value: object) -> None:
        self._file = file
        self._path = path
        self._seen: set[str] = set()
        if not isinstance(value, dict):
            raise CatalogueError(file, path, f"expected a mapping, found {_show(value)}")
        self._value: dict[str, Any] = {str(key): item for key, item in value.items()}

    @property
    def name(self) -> str:
        """The last part of the mapping's key."""
        return self._path.rpartition(".")[2]

    def names(self) -> tuple[str, ...]:
        """Return the keys in the file's order."""
        return tuple(self._value)

    def mapping(self, key: str) -> Reader:
        """Return a reader of the mapping under a key."""
        return Reader(self._file, self._dotted(key), self._take(key))

    def text(self, key: str, *, choices: tuple[str, ...] = ()) -> str:
        """Return a text, one of `choices` if there are any."""
        expected = "one of " + ", ".join(choices) if choices else "a text"
        return self._checked(key, expected, lambda value: _text(value, choices))

    def integer(self, key: str, *, least: int = 1) -> int:
        """Return an integer of at least `least`."""
        return self._checked(key, f"an integer of at least {least}", lambda value: _integer(value, least))

    def number(self, key: str) -> float:
        """Return a number above zero."""
        return self._checked(key, "a number above 0", _number)

    def rate(self, key: str) -> float:
        """Return a bandwidth such as `820 GiB/s` in bytes per second."""
        return self._checked(key, f"a number and one of {', '.join(_RATE_UNITS)}", _rate)

    def texts(self, key: str, *, count: int | None = None) -> list[str]:
        """Return a list of texts, of a given length if there is one."""
        return self._list(key, "texts", lambda value: _text(value, ()), count)

    def integers(self, key: str) -> list[int]:
        """Return a list of integers of at least 0."""
        return self._list(key, "integers", lambda value: _integer(value, 0), None)

    def integer_rows(self, key: str) -> list[list[int]]:
        """Return a list of lists of integers of at least 0."""
        return self._list(key, "lists of integers", _integers, None)

    def optional_text(self, key: str) -> str:
        """Return a text, or "" if the key is not there."""
        self._seen.add(key)
        return self.text(key) if key in self._value else ""

    def optional_texts(self, key: str) -> list[str]:
        """Return a list of texts, or an empty one if the key is not there."""
        self._seen.add(key)
        return self.texts(key) if key in self._value else []

    def optional_integer(self, key: str) -> int | None:
        """Return an integer of at least 1, None if the key is not there."""
        self._seen.add(key)
        return self.integer(key) if key in self._value else None

    def optional_mapping(self, key: str) -> Reader | None:
        """Return the reader of a mapping, None if the key is not there."""
        self._seen.add(key)
        return self.mapping(key) if key in self._value else None

    def is_text(self, key: str) -> bool:
        """Return whether the value under a key is a text."""
        return isinstance(self._value.get(key), str)

    def is_mapping(self, key: str) -> bool:
        """Return whether the value under a key is a mapping."""
        return isinstance(self._value.get(key), dict)

    def finish(self) -> None:
        """Raise a CatalogueError if a key was never asked for: it is a misspelling."""
        for key in self._value:
            if key not in self._seen:
                raise CatalogueError(
                    self._file, self._dotted(key), f"unknown key; known are {', '.join(sorted(self._seen))}"
                )

    def error(self, key: str, problem: str) -> CatalogueError:
        """Return the error of a value that is well-formed but makes no sense."""
        return CatalogueError(self._file, self._dotted(key), problem)

    def _list(self, key: str, what: str, convert: Callable[[object], _T], count: int | None) -> list[_T]:
        expected = f"a list of {what}" if count is None else f"a list of {count} {what}"

        def items(value: object) -> list[_T]:
            if not isinstance(value, list) or (count is not None and len(value) != count):
                raise ValueError
            return [convert(item) for item in value]

        return self._checked(key, expected, items)

    def _checked(self, key: str, expected: str, convert: Callable[[object], _T]) -> _T:
        value = self._take(key)
        try:
            return convert(value)
        except (ValueError, TypeError) as error:
            raise self.error(key, f"expected {expected}, found {_show(value)}") from error

    def _take(self, key: str) -> object:
        self._seen.add(key)
        if key not in self._value:
            raise self.error(key, "missing")
        return self._value[key]

    def _dotted(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _show(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or not value or (choices and value not in choices):
        raise ValueError
    return value


def _integer(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError
    return value


def _integers(value: object) -> list[int]:
    if not isinstance(value, list):
        raise TypeError
    return [_integer(item, 0) for item in value]


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError
    return float(value)


def _rate(value: object) -> float:
    number, _, unit = _text(value, ()).partition(" ")
    if unit not in _RATE_UNITS:
        raise ValueError
    return _number(float(number)) * _RATE_UNITS[unit]
