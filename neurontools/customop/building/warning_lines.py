"""Warnings of the checks: from the runtime's lines to lines that name core, place and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.customop.backtrace import user_location
from neurontools.customop.remedies import remedy_for

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELDS = 3  # text, core, addresses


def readable(warnings: Sequence[str], library: bytes, sources: Sequence[str]) -> tuple[str, ...]:
    """Return warnings as `tcm: what, on core 0 at kernel.cpp:12; what to do`.

    Args:
        warnings: lines of the runtime: text, core and hexadecimal addresses, separated by tabs.
        library: the ELF file that the addresses are of.
        sources: absolute paths of the user's files.
    """
    return tuple(_readable(line, library, sources) for line in warnings)


def _readable(line: str, library: bytes, sources: Sequence[str]) -> str:
    fields = line.split("\t")
    if len(fields) != _FIELDS:
        return line
    text, core, places = fields
    frames = [int(place, 16) for place in places.split(",") if place]
    location = user_location(library, frames, sources)
    kind, _, reason = text.partition(": ")
    place = f" at {location}" if location else ""
    return f"{text} on core {core}{place}; {remedy_for(kind, reason)}"
