"""Damaged text of a Chrome trace: repairs of what JSON does not allow, and the events beside damage."""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec

BLANKS = b" \t\r\n,"
BETWEEN = re.compile(rb"\}\s*,\s*\{")
"""What stands between two events, though not only there."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading raises where a text is not JSON, or is nested too deeply."""
_MOST_TRIES = 64
_CONTROL = bytes(max(code, 32) for code in range(256))
_WRONG_ESCAPE = re.compile(
    rb"\\(?:[\"\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(\\(?:u[0-9a-fA-F]{4})?)"
)
_NO_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:NaN|Infinity)\b")
_NAME = re.compile(rb'("name": ")(.*)(",\s+"pid":)')
_QUOTE = re.compile(rb'(?<!\\)"')
_PLACE = re.compile(r"\(byte (\d+)\)")
_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])


def repair(data: bytes) -> bytes:
    """Return the text with control characters as blanks, and without what JSON does not have."""
    data = data.translate(_CONTROL)
    data = data.decode("utf-8", "replace").encode()
    if b"\\" in data:
        data = _WRONG_ESCAPE.sub(lambda match: b"?" if match[1] else match[0], data)
    if b"NaN" in data or b"Infinity" in data:
        data = _NO_NUMBER.sub(rb"\g<1>null", data)
    return data


def is_damaged(text: bytes) -> bool:
    """Return whether events that cannot be read as an array, without its brackets, are damaged; else they are cut off."""
    try:
        _split(text)
    except UNREADABLE as error:
        return _place(error) is not None
    return True


def split_events(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the texts of the events of a damaged array, damaged ones among them, and what is left.

    That begins with the end of the array, or with the events in which the text is cut off.

    Args:
        text: the events, repaired, without the opening bracket of the array.
    """
    events: list[bytes] = []
    while text := text.lstrip(BLANKS):
        try:
            return events + _split(text), b""
        except UNREADABLE as error:
            at = _place(error)
            if at is not None and "trailing characters" in str(error):
                close = text.rindex(b"]", 0, at - 1)  # msgspec names the byte after the first one too many
                return events + _split(text[:close]), text[close:]
        if at is None:
            return events, text
        border = BETWEEN.search(text, at)
        end = border.start() + 1 if border else len(text.rstrip(BLANKS))
        events += split_last(text[:end], at)
        text = text[end:]
    return events, b""


def split_last(text: bytes, at: int) -> list[bytes]:
    """Return the texts of events of which the last one is damaged at a place."""
    for border in reversed(list(BETWEEN.finditer(text, 0, at))[-_MOST_TRIES:]):
        with suppress(*UNREADABLE):
            return [*_split(text[: border.start() + 1]), _quote(text[border.end() - 1 :])]
    return list(map(_quote, _split_at_borders(text)))


def _split(text: bytes) -> list[bytes]:
    return list(map(bytes, _EVENTS.decode(b"[" + text.rstrip(BLANKS) + b"]")))


def _place(error: BaseException) -> int | None:
    """Return where a text is not JSON, if that is why it cannot be read."""
    match = _PLACE.search(str(error))
    return int(match[1]) - 1 if match else None


def _split_at_borders(text: bytes) -> list[bytes]:
    borders = [border.span() for border in BETWEEN.finditer(text)]
    starts = [0, *(end - 1 for _, end in borders)]
    ends = [*(start + 1 for start, _ in borders), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _quote(event: bytes) -> bytes:
    """Escape the quotes in the name of an event, which torch.profiler does not (torch 2.13)."""
    return _NAME.sub(lambda match: match[1] + _QUOTE.sub(rb'\\"', match[2]) + match[3], event)
