"""Waiting until one of some files changes. Looks at their stamps: that works on every file system and for every editor."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PERIOD_S = 0.15

Stamps = dict[str, tuple[int, int, int] | None]


def stamps(paths: Iterable[str]) -> Stamps:
    """Return what tells a file's contents apart: identity, size and time of the last change; None when it is gone."""
    return {path: _stamp(path) for path in paths}


def wait_for_change(before: Stamps, sleep: Callable[[float], None] = time.sleep) -> tuple[str, ...]:
    """Wait until files differ from what they were, and stand still again for one look.

    Args:
        before: the stamps that a change is told from.
        sleep: waits for a number of seconds.

    Returns:
        The paths that changed.
    """
    while True:
        sleep(PERIOD_S)
        now = stamps(before)
        if now == before:
            continue
        while (later := _after(sleep, now)) != now:
            now = later
        changed = tuple(path for path in before if now[path] != before[path])
        if changed:
            return changed


def _after(sleep: Callable[[float], None], now: Stamps) -> Stamps:
    sleep(PERIOD_S / 3)
    return stamps(now)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
