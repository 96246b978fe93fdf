"""Listeners that must finish pending work before a rebuilt library takes over its operators."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable

_listeners: list[WeakMethod[Callable[[], None]]] = []


def before_takeover(listener: Callable[[], None]) -> None:
    """Call a method before operators get new code; its object is not kept alive."""
    _listeners.append(WeakMethod(listener))


def signal_takeover() -> None:
    """Call all listeners: operators are about to get new code."""
    for reference in tuple(_listeners):
        listener = reference()
        if listener is None:
            _listeners.remove(reference)
        else:
            listener()
