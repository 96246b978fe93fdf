"""Fields of an entry, one table for filters, sort keys, columns, JSON and help; and the filters on them.

An entry matches filters such as `state=failed`, `size>1GB`, `used>30d`, `compiler~2.16` if all conditions hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.filters import AGE, COUNT, SIZE, TEXT, WORD, FilterCondition, FilterParser
from neurontools.base.units import format_age, format_size
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.entries import Entry


_CLOCK_SKEW_S = 60.0
FUTURE = "future"
_YES_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an entry.

    `kind` is one of `neurontools.base.filters`; the stored value of an AGE is a time (Unix seconds). `stored` returns its value
    as JSON has it under `json_name`: text, list of texts, truth value, bytes, Unix seconds or number. `words` are all
    values of a WORD. `details` is set if the value is read from the content of files.
    """

    name: str
    kind: str
    meaning: str
    stored: Callable[[Entry], Any]
    json_name: str = ""
    words: tuple[str, ...] = ()
    details: bool = False
    separator: str = " "

    def value(self, entry: Entry, now: float) -> str | float:
        """Return the value that filters compare: an AGE in seconds before `now`, everything else as text or number."""
        stored = self.stored(entry)
        if self.kind == AGE:
            return float(now - stored)
        if isinstance(stored, bool):
            return "yes" if stored else "no"
        if isinstance(stored, list):
            return self.separator.join(stored)
        return stored  # type: ignore[no-any-return]

    def format(self, entry: Entry, now: float) -> str:
        """Return the value as a table shows it."""
        value = self.value(entry, now)
        if self.kind == SIZE:
            return format_size(float(value))
        return format_elapsed(float(value)) if self.kind == AGE else str(value) or "-"

    @property
    def is_number(self) -> bool:
        """Whether the default order is descending, as of numbers and times."""
        return self.kind in {SIZE, AGE, COUNT}


FIELDS = {
    field.name: field
    for field in (
        Field("state", WORD, "state of the entry", lambda e: e.state.value, words=tuple(State)),
        Field("size", SIZE, "bytes on disk", lambda e: e.size_bytes, "size_bytes"),
        Field("made", AGE, "time since it was compiled", lambda e: e.made_unix_s, "made_unix_s"),
        Field("used", AGE, "time since its last use", lambda e: e.used_unix_s, "used_unix_s"),
        Field("hits", COUNT, "hits of this user", lambda e: e.hits),
        Field("compiler", TEXT, "compiler version", lambda e: e.compiler),
        Field("flags", TEXT, "compiler flags", lambda e: list(e.flags), details=True),
        Field("name", TEXT, "name of the network", lambda e: e.name, details=True),
        Field("module", TEXT, "name of its directory or file", lambda e: e.module),
        Field("path", TEXT, "path", lambda e: e.path),
        Field("note", TEXT, "why it failed, or which process holds its lock", lambda e: e.note),
        Field("layout", WORD, "layout of the cache", lambda e: e.layout.value, words=tuple(CacheLayout)),
        Field("pinned", WORD, "whether it is pinned", lambda e: e.pinned, words=_YES_NO),
        Field("tags", TEXT, "tags", lambda e: list(e.tags), separator=","),
        Field("ours", WORD, "whether this simulator compiled it", lambda e: e.ours, words=_YES_NO),
    )
}
"""Every field by its name, in the order of documentation."""

ALIASES = {"accessed": "used", "age": "made", "created": "made", "model": "name", "tag": "tags"}
"""Other names of fields."""


def find_field(name: str) -> Field | None:
    """Return the field with a name or an alias; None if unknown."""
    return FIELDS.get(ALIASES.get(name, name))


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry's JSON form: bytes and Unix seconds."""
    return {field.json_name or field.name: field.stored(entry) for field in FIELDS.values()}


def format_elapsed(seconds: float) -> str:
    """Return an elapsed time such as `5h`; `future` if the timestamp is more than a minute ahead of this clock."""
    return FUTURE if seconds < -_CLOCK_SKEW_S else format_age(seconds)


_PARSER = FilterParser(
    {name: field.kind for name, field in FIELDS.items()},
    {name: field.words for name, field in FIELDS.items()},
    "state=failed 'size>1GB' 'used>30d' compiler~2.16",
    ALIASES,
)


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions that must all hold; without conditions, every entry matches."""

    conditions: tuple[FilterCondition, ...] = ()

    @property
    def needs_details(self) -> bool:
        """Whether a field is read from the content of files."""
        return any(FIELDS[condition.field].details for condition in self.conditions)

    def matches(self, entry: Entry, now: float) -> bool:
        """Return whether an entry matches every condition at a time (Unix seconds)."""
        return all(
            condition.matches(FIELDS[condition.field].value(entry, now)) for condition in self.conditions
        )


def parse_filters(texts: Iterable[str]) -> EntryFilter:
    """Return the filter with the conditions of all texts.

    Raises:
        FilterError: a text is invalid; the message points at the character.
    """
    return EntryFilter(tuple(condition for text in texts for condition in _PARSER.parse(text)))
