"""Fields of an entry: one table for filters, sort keys, columns, JSON and help."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from neurontools.base.units import format_age, format_size
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry

_CLOCK_SKEW_S = 60.0
FUTURE = "future"
_YES_NO = ("yes", "no")


class FieldKind(Enum):
    """How the values of a field are written and compared. The stored value of an AGE is a time (Unix seconds)."""

    WORD = auto()
    TEXT = auto()
    SIZE = auto()
    AGE = auto()
    NUMBER = auto()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an entry.

    `stored` returns its value as JSON has it under `json_name`: text, list of texts, truth value, bytes, Unix seconds
    or number. `words` are all values of a WORD. `details` is set if the value is read from the content of files.
    """

    name: str
    kind: FieldKind
    meaning: str
    stored: Callable[[Entry], Any]
    json_name: str = ""
    words: tuple[str, ...] = ()
    details: bool = False
    separator: str = " "

    def value(self, entry: Entry, now: float) -> str | float:
        """Return the value that filters compare: an AGE in seconds before `now`, everything else as text or number."""
        stored = self.stored(entry)
        if self.kind is FieldKind.AGE:
            return float(now - stored)
        if isinstance(stored, bool):
            return "yes" if stored else "no"
        if isinstance(stored, list):
            return self.separator.join(stored)
        return stored  # type: ignore[no-any-return]

    def format(self, entry: Entry, now: float) -> str:
        """Return the value as a table shows it."""
        value = self.value(entry, now)
        match self.kind:
            case FieldKind.SIZE:
                return format_size(float(value))
            case FieldKind.AGE:
                return format_elapsed(float(value))
            case _:
                return str(value) or "-"

    @property
    def is_number(self) -> bool:
        """Whether the default order is descending, as of numbers and times."""
        return self.kind in {FieldKind.SIZE, FieldKind.AGE, FieldKind.NUMBER}


_WORD, _TEXT, _SIZE, _AGE, _NUMBER = FieldKind

FIELDS = {
    field.name: field
    for field in (
        Field("state", _WORD, "state of the entry", lambda e: e.state.value, words=tuple(State)),
        Field("size", _SIZE, "bytes on disk", lambda e: e.size_bytes, "size_bytes"),
        Field("made", _AGE, "time since it was compiled", lambda e: e.made_unix_s, "made_unix_s"),
        Field("used", _AGE, "time since its last use", lambda e: e.used_unix_s, "used_unix_s"),
        Field("hits", _NUMBER, "hits of this user", lambda e: e.hits),
        Field("compiler", _TEXT, "compiler version", lambda e: e.compiler),
        Field("flags", _TEXT, "compiler flags", lambda e: list(e.flags), details=True),
        Field("name", _TEXT, "name of the network", lambda e: e.name, details=True),
        Field("module", _TEXT, "name of its directory or file", lambda e: e.module),
        Field("path", _TEXT, "path", lambda e: e.path),
        Field("note", _TEXT, "why it failed, or which process holds its lock", lambda e: e.note),
        Field("layout", _WORD, "layout of the cache", lambda e: e.layout.value, words=tuple(CacheLayout)),
        Field("pinned", _WORD, "whether it is pinned", lambda e: e.pinned, words=_YES_NO),
        Field("tags", _TEXT, "tags", lambda e: list(e.tags), separator=","),
        Field("ours", _WORD, "whether this simulator compiled it", lambda e: e.ours, words=_YES_NO),
    )
}
"""Every field by its name, in the order of documentation."""

ALIASES = {"accessed": "used", "age": "made", "created": "made", "model": "name", "tag": "tags"}
"""Other names of fields."""


def find_field(name: str) -> Field | None:
    """Return the field with a name or an alias, None where there is none."""
    return FIELDS.get(ALIASES.get(name, name))


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry's JSON form: bytes and Unix seconds."""
    return {field.json_name or field.name: field.stored(entry) for field in FIELDS.values()}


def format_elapsed(seconds: float) -> str:
    """Return an elapsed time such as `5h`; `future` if the timestamp is more than a minute ahead of this clock."""
    return FUTURE if seconds < -_CLOCK_SKEW_S else format_age(seconds)
