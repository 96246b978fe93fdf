"""Choosing and ordering entries for `neuron-cache ls`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache.states import State
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry

_KEYS: dict[str, tuple[Callable[[Entry], Any], bool]] = {
    "used": (lambda entry: entry.used_unix_s, True),
    "made": (lambda entry: entry.made_unix_s, True),
    "age": (lambda entry: -entry.made_unix_s, True),
    "size": (lambda entry: entry.size_bytes, True),
    "hits": (lambda entry: entry.hits, True),
    "state": (lambda entry: entry.state.value, False),
    "name": (lambda entry: entry.name, False),
    "compiler": (lambda entry: entry.compiler, False),
}


@dataclass(frozen=True, slots=True)
class Order:
    """A sort key and its direction."""

    key: str
    descending: bool


def parse_order(text: str) -> Order:
    """Return the order that `KEY`, `KEY:asc` or `KEY:desc` asks for; numbers come largest first by themselves.

    Raises:
        UsageError: no such key or direction.
    """
    key, separator, direction = text.partition(":")
    if key not in _KEYS:
        raise UsageError(f"cannot sort by {key!r}", f"choose one of {', '.join(_KEYS)}")
    if separator and direction not in {"asc", "desc"}:
        raise UsageError(f"no sort direction {direction!r}", "choose asc or desc")
    return Order(key, direction == "desc" if separator else _KEYS[key][1])


def select(
    entries: Sequence[Entry], order: Order, *, failed: bool = False, limit: int | None = None
) -> tuple[Entry, ...]:
    """Return entries in order: at most `limit`, and only failed and interrupted ones when asked.

    Raises:
        UsageError: the limit is negative.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"a limit of {limit} makes no sense", "give 0 or more")
    wanted = {State.FAILED, State.INTERRUPTED}
    chosen = [entry for entry in entries if not failed or entry.state in wanted]
    chosen.sort(key=lambda entry: entry.path)
    chosen.sort(key=_KEYS[order.key][0], reverse=order.descending)
    return tuple(chosen[:limit])
