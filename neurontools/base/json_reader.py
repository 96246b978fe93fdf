"""JSON of files and peers that may be damaged or hostile: values that every program here can hold, or a ValueError.

Numbers are finite and of at most 64 bits, texts are UTF-8 without NUL, and nesting is bounded. The fields of a format
are for its own reader to check.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from neurontools.base.text import is_plain

MAX_INTEGER = 2**63 - 1
_LONGEST_SMALL = 18
_MAX_DEPTH = 200
_SHOWN = 20


def load_json(data: bytes | str, *, any_text: bool = False) -> Any:
    r"""Return the value of a JSON text.

    Args:
        data: the text; bytes are UTF-8.
        any_text: whether texts may hold NUL and lone surrogates, which stand for the bytes of a command line.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number or text that is not as this module says.
    """
    text = data if isinstance(data, str) else str(data, "utf-8")
    try:
        value = json.loads(text, parse_int=_parse_integer, parse_float=_parse_float, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        _check_depth(value)
    if not any_text and "\\u" in text:
        _check_texts(value)
    return value


def to_float(value: object) -> float:
    """Return a number of a document as a float.

    Raises:
        TypeError: it is not a number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise TypeError("not a number")


def _parse_integer(text: str) -> int:
    number = int(text)
    if len(text) > _LONGEST_SMALL and not -MAX_INTEGER - 1 <= number <= MAX_INTEGER:
        raise ValueError(f"the number {_shortened(text)} is too large")
    return number


def _parse_float(text: str) -> float:
    number = float(text)
    if number - number != 0:  # infinite
        raise ValueError(f"the number {_shortened(text)} is too large")
    return number


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _check_depth(value: Any) -> None:
    # Python 3.12 and later nest far deeper than the programs that walk the value can.
    level = [value]
    for _ in range(_MAX_DEPTH):
        items = [item.values() if isinstance(item, dict) else item for item in level]
        level = [child for item in items for child in item if isinstance(child, dict | list)]
        if not level:
            return
    raise ValueError("nested too deeply")


def _check_texts(value: Any) -> None:
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, dict):
            remaining += item
            remaining += item.values()
        elif isinstance(item, list):
            remaining += item
        elif isinstance(item, str) and not is_plain(item):
            raise ValueError("a text has NUL or a lone surrogate")
