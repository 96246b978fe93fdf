"""JSON encoding of typed values for the wire, records, journals and recordings; decoding checks the types.

Values are msgspec structs or dataclasses. Text may hold lone surrogates, which stand for bytes of a command line that is
not UTF-8. msgspec rejects those, so such a value goes through `json`, which is slower.
"""

from __future__ import annotations

import json
import os
from typing import Any, TypeVar

import msgspec

from neurontools.base.files import READ_SAFELY
from neurontools.base.json_reader import load_json

T = TypeVar("T")


def encode(value: object) -> str:
    """Return the JSON text of a value, on one line."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def decode(data: bytes | str, value_type: type[T]) -> T:
    """Return the value in a JSON text.

    Raises:
        ValueError: the text is not JSON, or does not match the type (`msgspec.ValidationError`).
    """
    try:
        return msgspec.json.decode(data, type=value_type)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        return convert(load_json(data, any_text=True), value_type)


def convert(data: Any, value_type: type[T]) -> T:
    """Return a value from its JSON form.

    Raises:
        msgspec.ValidationError: the data does not match the type.
    """
    return msgspec.convert(data, value_type)


def to_builtins(value: object) -> Any:
    """Return the JSON form of a value: dicts, lists, numbers and texts."""
    return msgspec.to_builtins(value)


def read_file(path: str, value_type: type[T], *, inside: int | None = None) -> T | None:
    """Return the value in a JSON file, None when there is none, or it is damaged, a link or of another version.

    Args:
        path: the file.
        value_type: the type of the value.
        inside: descriptor of the directory that a relative path starts from.
    """
    try:
        with os.fdopen(os.open(path, READ_SAFELY, dir_fd=inside), "rb") as file:
            return decode(file.read(), value_type)
    except (OSError, ValueError):
        return None
