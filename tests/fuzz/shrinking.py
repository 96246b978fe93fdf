"""The shortest input that still fails: parts are taken away as long as the failure stays the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.fuzz.mutation import Format, dump, parse, slots

if TYPE_CHECKING:
    from collections.abc import Callable


def shrink(data: bytes, form: Format, fails: Callable[[bytes], bool], limit_s: float = 20.0) -> bytes:
    """Return a short input that fails as another does.

    Args:
        data: that input.
        form: what it is made of.
        fails: whether an input fails in the same way.
        limit_s: when to stop looking for shorter ones.
    """
    end_s = time.monotonic() + limit_s
    if form not in {Format.TEXT, Format.BINARY}:
        data = _without_values(data, form, fails, end_s)
    return _without_bytes(data, fails, end_s)


def _without_values(data: bytes, form: Format, fails: Callable[[bytes], bool], end_s: float) -> bytes:
    root = _parsed(data, form)
    index = 0
    while root is not None and time.monotonic() < end_s:
        places = list(slots([root]))[1:]
        if index >= len(places):
            break
        places[index].remove()
        candidate = dump(root, form)
        if fails(candidate):
            data = candidate  # what was below is gone; the next place has this index now
        else:
            root = _parsed(data, form)
            index += 1
    return data


def _parsed(data: bytes, form: Format) -> Any:
    try:
        return parse(data, form)
    except Exception:  # any reader's error: it is shortened by bytes
        return None


def _without_bytes(data: bytes, fails: Callable[[bytes], bool], end_s: float) -> bytes:
    size = max(1, len(data) // 2)
    while True:
        start = 0
        while start < len(data):
            if time.monotonic() > end_s:
                return data
            candidate = data[:start] + data[start + size :]
            if fails(candidate):
                data = candidate
            else:
                start += size
        if size == 1:
            return data
        size //= 2
