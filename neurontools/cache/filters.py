"""Filters on entries: `state=failed`, `size>1GB`, `used>30d`, `compiler~2.16`. An entry matches if all conditions hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.filters import FilterCondition, FilterParser
from neurontools.cache.fields import ALIASES, FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.cache.entries import Entry

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
