"""Who must know before a library that was built anew takes over its operators: whatever keeps what the old code gave."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable

_listeners: list[WeakMethod[Callable[[], None]]] = []


def before_takeover(listener: Callable[[], None]) -> None:
    """Call a method before operators get other code; its object is not kept alive."""
    _listeners.append(WeakMethod(listener))


def announce_takeover() -> None:
    """Tell everybody that operators are about to get other code."""
    for reference in tuple(_listeners):
        listener = reference()
        if listener is None:
            _listeners.remove(reference)
        else:
            listener()
