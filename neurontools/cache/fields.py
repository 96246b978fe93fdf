"""What can be asked of an entry by name: for filters, sort keys and columns alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.quantities import format_age, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry


class FieldKind(Enum):
    """How a field's values are written and compared."""

    WORD = auto()
    TEXT = auto()
    SIZE = auto()
    AGE = auto()
    NUMBER = auto()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an entry.

    `value` gets the entry and the time: bytes, seconds, a number or a text. `details` says that it needs the files'
    content (flags, name). `words` are all values of a WORD.
    """

    name: str
    kind: FieldKind
    value: Callable[[Entry, float], str | float]
    meaning: str
    words: tuple[str, ...] = ()
    details: bool = False

    def shown(self, entry: Entry, now: float) -> str:
        """Return the value as a table shows it."""
        value = self.value(entry, now)
        match self.kind:
            case FieldKind.SIZE:
                return format_size(int(value))
            case FieldKind.AGE:
                return format_age(float(value))
            case _:
                return str(value) or "-"


_YES_NO = ("yes", "no")

FIELDS = {
    field.name: field
    for field in (
        Field("state", FieldKind.WORD, lambda e, _: e.state.value, "state of the entry", tuple(State)),
        Field("size", FieldKind.SIZE, lambda e, _: e.size_bytes, "bytes on disk"),
        Field("made", FieldKind.AGE, lambda e, now: now - e.made_unix_s, "time since it was made"),
        Field("used", FieldKind.AGE, lambda e, now: now - e.used_unix_s, "time since its last use"),
        Field("hits", FieldKind.NUMBER, lambda e, _: e.hits, "hits of this user"),
        Field("compiler", FieldKind.TEXT, lambda e, _: e.compiler, "compiler version"),
        Field("flags", FieldKind.TEXT, lambda e, _: " ".join(e.flags), "compiler flags", details=True),
        Field("name", FieldKind.TEXT, lambda e, _: e.name, "network's name", details=True),
        Field("module", FieldKind.TEXT, lambda e, _: e.module, "name of its directory or file"),
        Field("path", FieldKind.TEXT, lambda e, _: e.path, "path"),
        Field("note", FieldKind.TEXT, lambda e, _: e.note, "why it failed, who holds it"),
        Field(
            "layout",
            FieldKind.WORD,
            lambda e, _: e.layout.value,
            "layout it is stored in",
            tuple(CacheLayout),
        ),
        Field("pinned", FieldKind.WORD, lambda e, _: _YES_NO[not e.pinned], "whether it must stay", _YES_NO),
        Field("tags", FieldKind.TEXT, lambda e, _: ",".join(e.tags), "tags that people gave it"),
        Field(
            "ours",
            FieldKind.WORD,
            lambda e, _: _YES_NO[not e.ours],
            "whether this simulator made it",
            _YES_NO,
        ),
    )
}
"""Every field by its name, in the order of documentation."""

ALIASES = {"accessed": "used", "age": "made", "created": "made", "model": "name", "tag": "tags"}
"""Other names of fields."""


def find_field(name: str) -> Field | None:
    """Return a field by its name or another name of it, None for no field."""
    return FIELDS.get(ALIASES.get(name, name))
